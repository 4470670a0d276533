"""SGLang's host pool and transfer engine under the adapter's probes, without a server: each fault once, and the same
use without it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from adapters.device import on_host
from kvsan.hooks.adapters.sglang import host
from kvsan.hooks.adapters.sglang.watch import HOST, KV, Doing, Watch
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.l2_transfer import L2Transfer, L2TransferEngine
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.pool_host.base import HostKVCache

from .watching import Way, begin, end, kinds

SIZE = 64


class Copies(HostKVCache):
    """SGLang's host pool over one plain tensor."""

    layer_num = target_layer_num = 1

    def init_kv_buffer(self) -> Any:
        """One number for each slot."""
        return torch.zeros(self.size)

    def get_size_per_token(self) -> int:
        """In bytes."""
        return 4

    def backup_from_device_all_layer(self, device: Any, host_indices: Any, device_indices: Any, backend: str) -> None:
        """To the host."""
        self.kv_buffer[host_indices] = device[device_indices].cpu()

    def load_to_device_per_layer(
        self, device: Any, host_indices: Any, device_indices: Any, layer: int, backend: str, **named: Any
    ) -> None:
        """And back."""
        device[device_indices] = self.kv_buffer[host_indices].to(device.device)

    def get_data_page(self, index: int, flat: bool = True) -> Any:
        """Not used: there is no storage."""
        raise NotImplementedError

    def get_dummy_flat_data_page(self) -> Any:
        """Not used."""
        raise NotImplementedError

    def set_from_flat_data_page(self, index: int, data_page: Any) -> None:
        """Not used."""
        raise NotImplementedError


@pytest.fixture
def watch(way: Way) -> Iterator[Watch]:
    """A watch over 64 token slots and 129 slots on the host, with SGLang's own controller and engine."""
    device = torch.arange(SIZE + 1, dtype=torch.float32, device=way.device)
    allocator = TokenToKVPoolAllocator(SIZE, torch.float32, way.device, device, False)
    pool = Copies(
        dtype=torch.float32, device_capacity_tokens=SIZE, size_per_token=4, start_layer=0, end_layer=0,
        host_to_device_ratio=2.0, host_size=0, page_size=1, layout="layer_first", pin_memory=False, device="cpu",
    )  # fmt: skip
    controller = object.__new__(HybridCacheController)
    controller.mem_pool_host = SimpleNamespace(get_entry=lambda: SimpleNamespace(host_pool=pool))
    controller.mem_pool_device_allocator = allocator
    controller.l2_transfer_engine = L2TransferEngine("direct")
    controller.load_queue = []
    tree = type("UnifiedRadixCache", (SimpleNamespace,), {})(
        cache_controller=controller, token_to_kv_pool_allocator=allocator, buffer_pipeline=None, sidecar_pool_specs=[]
    )
    watch = begin(ReqToTokenPool(4, SIZE, way.device, False), allocator, way)
    watch.tree, watch.host = tree, host.watched(tree)
    assert host.obstacle(watch, watch.host) is None
    host.declare(watch, watch.host)
    yield watch
    end(watch)


def cached(watch: Watch, count: int) -> torch.Tensor:
    """Token slots that a node of the cache holds."""
    slots = watch.kv.alloc(count).clone()
    ids = on_host(slots).numpy().copy()
    watch.san.own(KV, ids, owner="a")
    watch.hold(ids, watch.node_number("7"))
    watch.node_slots["7"] = count
    watch.san.insert(KV, ids, node="7", owner="a")
    watch.san.req_end(owner="a")
    return slots


def copy(watch: Watch, device: torch.Tensor, copies: torch.Tensor) -> L2Transfer:
    """What the engine is asked for."""
    return L2Transfer(watch.host.pool, watch.host.device, copies, device)


def evict(watch: Watch, slots: torch.Tensor) -> None:
    """The cache gives token slots back."""
    with watch.within(Doing("evict")):
        watch.kv.free(slots)


@pytest.mark.parametrize("waited", [True, False])
def test_an_eviction_while_a_copy_is_on_its_way(watch: Watch, waited: bool) -> None:
    slots = cached(watch, 8)
    copies = watch.host.pool.alloc(8)
    completion = watch.host.tree.cache_controller.l2_transfer_engine.submit_device_to_host([copy(watch, slots, copies)])
    if waited:
        completion.finish_event.synchronize()
    evict(watch, slots)
    assert kinds(watch) == ([] if waited else ["free_in_flight"])
    if not waited:
        finding = watch.san.findings[0]
        assert (finding.pool, set(finding.slots)) == (KV, set(slots.tolist()))
        assert "kv to host, read" in finding.extra["xfer"]


@pytest.mark.parametrize("waited", [True, False])
def test_a_copy_that_is_given_back_while_it_is_loaded(watch: Watch, waited: bool) -> None:
    slots = cached(watch, 8)
    copies = watch.host.pool.alloc(8)
    engine = watch.host.tree.cache_controller.l2_transfer_engine
    engine.submit_device_to_host([copy(watch, slots, copies)]).finish_event.synchronize()
    evict(watch, slots)
    back = watch.host.tree.cache_controller.load(copies, node_id=7)
    completion = engine.submit_host_to_device([copy(watch, back, copies)], transfer_layer_id_max=1)
    if waited:
        completion.finish_event.synchronize()
    watch.host.pool.free(copies)
    assert kinds(watch) == ([] if waited else ["free_in_flight"])
    if not waited:
        assert (watch.san.findings[0].pool, set(watch.san.findings[0].slots)) == (HOST, set(copies.tolist()))
        assert "host to kv, read" in watch.san.findings[0].extra["xfer"]


def test_what_is_loaded_is_the_nodes(watch: Watch) -> None:
    """Nobody else may give it back; the cache may."""
    copies = watch.host.pool.alloc(8)
    back = watch.host.tree.cache_controller.load(copies, node_id=7)
    watch.san.idle()
    watch.san.count(KV, available=watch.kv.available_size(), evictable=8, protected=0, total=SIZE)
    assert kinds(watch) == []
    evict(watch, back[:4])
    assert kinds(watch) == []
    with watch.within(Doing("release", owner="b")):
        watch.kv.free(back[4:])
    assert kinds(watch) == ["free_not_owner"]
    assert (watch.san.findings[0].owner, watch.san.findings[0].holder) == ("b", "tree:7")


def test_a_flush_empties_the_host(watch: Watch) -> None:
    watch.host.pool.alloc(8)
    watch.host.pool.clear()
    watch.host.pool.alloc(16)
    watch.san.count(HOST, available=watch.host.pool.available_size(), total=watch.host.pool.logical_size)
    assert kinds(watch) == []
