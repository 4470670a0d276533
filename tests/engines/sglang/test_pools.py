"""SGLang's own pools and allocators under the adapter's probes: without a server, what cannot be met there, fast."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from adapters.device import on_host
from kvsan.hooks.adapters.sglang import tree
from kvsan.hooks.adapters.sglang.watch import KV, ROWS, Doing, Watch
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

from .watching import WAYS, Way, allocator_of, begin, end, kinds

SIZE = 64


@pytest.fixture(params=[1, 16])
def watch(request: pytest.FixtureRequest, way: Way) -> Iterator[Watch]:
    """A watch over a row pool and an allocator of 64 slots."""
    allocator = allocator_of(SIZE, int(request.param), way.device)
    watch = begin(ReqToTokenPool(4, 128, way.device, False), allocator, way)
    yield watch
    end(watch)


def request_(rid: str) -> Any:
    """As much of a request as the pools ask for."""

    class Record(SimpleNamespace):
        @property
        def holds_kv(self) -> bool:
            return self.req_pool_idx is not None

    return SimpleNamespace(rid=rid, kv=Record(req_pool_idx=None, kv_allocated_len=0))


def take(watch: Watch, count: int, owner: str) -> torch.Tensor:
    """Slots for an owner, as prefill takes them: first the slots, then who they are for."""
    slots = watch.kv.alloc(count)
    watch.san.own(KV, on_host(slots).numpy(), owner=owner)
    watch.live.add(owner)
    return slots.clone()


def free(watch: Watch, slots: torch.Tensor, owner: str) -> None:
    with watch.within(Doing("release", owner=owner)):
        watch.kv.free_segment(slots, start_pos=0)


def test_what_is_given_back_is_free(watch: Watch) -> None:
    slots = take(watch, 32, "a")
    free(watch, slots, "a")
    watch.san.req_end(owner="a")
    watch.san.idle()
    watch.san.count(KV, available=watch.kv.available_size(), total=SIZE)
    assert kinds(watch) == []


def test_a_second_free(watch: Watch) -> None:
    slots = take(watch, 32, "a")
    free(watch, slots, "a")
    free(watch, slots, "a")
    assert kinds(watch) == ["double_free"]
    assert watch.san.findings[0].owner == "a"


def test_pending_frees_become_available_at_the_end_of_their_group(watch: Watch) -> None:
    slots = take(watch, 32, "a")
    watch.kv.free_group_begin()
    free(watch, slots, "a")
    watch.san.count(KV, available=watch.kv.available_size())
    watch.kv.free_group_end()
    watch.san.count(KV, available=watch.kv.available_size())
    watch.san.idle()
    assert kinds(watch) == []


def test_a_second_free_in_a_group(watch: Watch) -> None:
    slots = take(watch, 32, "a")
    watch.kv.free_group_begin()
    free(watch, slots, "a")
    free(watch, slots, "a")
    assert kinds(watch) == ["double_free"]


@pytest.mark.parametrize("grouped", [False, True])
def test_a_release_that_loses_slots_below_the_probe(watch: Watch, grouped: bool, monkeypatch: Any) -> None:
    """The probe sees every slot go in; only the free list shows that some did not arrive."""
    slots = take(watch, 32, "a")
    lost = lose(watch, monkeypatch)
    if grouped:
        watch.kv.free_group_begin()
    free(watch, slots, "a")
    if grouped:
        watch.live.discard("a")
        watch.san.req_end(owner="a")
        watch.kv.free_group_end()
    else:
        watch.san.req_end(owner="a")
    assert kinds(watch) == ["leak"]
    finding = watch.san.findings[0]
    assert (finding.owner, finding.pool, set(finding.slots)) == ("a", KV, set(lost(slots)))
    watch.san.count(KV, available=watch.kv.available_size())
    assert kinds(watch) == ["leak"]


def lose(watch: Watch, monkeypatch: Any) -> Any:
    """From here on the allocator forgets the last page of what it is given; tells which slots that are."""
    kv, page = watch.kv, watch.page
    if page == 1:
        cat = torch.cat

        def forgetful(tensors: Any, *rest: Any) -> torch.Tensor:
            free_list, back = tensors if len(tensors) == 2 else (None, tensors[0])
            return cat((free_list, back[:-1]), *rest) if free_list is not None else cat(tensors, *rest)

        monkeypatch.setattr("sglang.srt.mem_cache.allocator.token.torch", proxy(torch, cat=forgetful))
        return lambda slots: slots[-1:].tolist()
    release = type(kv)._release_page_ids
    monkeypatch.setattr(type(kv), "_release_page_ids", lambda self, *pages: release(self, *[p[:-1] for p in pages]))
    return lambda slots: slots[-page:].tolist()


def proxy(module: Any, **other: Any) -> Any:
    """A module with some names replaced."""
    return SimpleNamespace(**{**vars(module), **other})


def test_an_eviction_gives_back_what_the_tree_holds(watch: Watch) -> None:
    slots = take(watch, 32, "a")
    number = watch.node_number("7")
    watch.node_of[on_host(slots).numpy()] = number
    watch.node_slots["7"] = 32
    watch.san.insert(KV, on_host(slots).numpy(), node="7", owner="a")
    with watch.within(Doing("evict")):
        watch.kv.free_segment(slots, start_pos=0)
    watch.san.req_end(owner="a")
    watch.san.idle()
    assert kinds(watch) == []
    assert watch.node_numbers == {}


def test_a_sharer_that_gives_back_what_the_tree_holds(watch: Watch) -> None:
    slots = take(watch, 32, "a")
    ids = on_host(slots).numpy().copy()
    watch.hold(ids, watch.node_number("7"))
    watch.node_slots["7"] = 32
    watch.san.insert(KV, ids, node="7", owner="a")
    watch.san.attach(KV, ids, node="7", owner="b")
    watch.shared["b"] = [ids]
    free(watch, slots, "b")
    assert kinds(watch) == ["free_not_owner"]
    assert watch.san.findings[0].owner == "b"
    assert watch.san.findings[0].holder == "tree:7"


@pytest.mark.parametrize(("domain", "found"), [("tenant", ["namespace_mixup"]), (None, [])])
def test_a_match_that_ends_inside_a_node(watch: Watch, domain: str | None, found: list[str]) -> None:
    """The lookup splits the node off, so that the handle it gives was never inserted."""
    slots = take(watch, 32, "a")
    watch.hold(on_host(slots).numpy(), watch.node_number("7"))
    watch.node_slots["7"] = 32
    watch.san.insert(KV, on_host(slots).numpy(), node="7", owner="a")
    watch.tree = object()
    req = SimpleNamespace(rid="b", last_node=99, extra_key=domain, cache_salt=None)
    reader = tree.prefix_device_indices(watch, watch.tree, req)
    next(reader)
    with pytest.raises(StopIteration):
        reader.send(slots[:16])
    assert kinds(watch) == found
    for finding in watch.san.findings:
        assert (finding.node, finding.owner) == ("7", "b")


def test_rows_come_and_go(watch: Watch) -> None:
    req = request_("a")
    watch.rows.alloc([req])
    req.kv.kv_allocated_len = 3
    watch.rows.alloc([req])  # a later chunk
    slots = take(watch, 16, "a")
    watch.rows.write((req.kv.req_pool_idx, slice(0, 16)), slots)
    free(watch, slots, "a")
    watch.rows.free(req)
    watch.san.req_end(owner="a")
    watch.san.idle()
    assert kinds(watch) == []


def test_a_row_that_is_not_given_back(watch: Watch, monkeypatch: Any) -> None:
    req = request_("a")
    watch.rows.alloc([req])
    monkeypatch.setattr(watch.rows, "free_slots", Forgetful(watch.rows.free_slots))
    watch.rows.free(req)
    watch.san.req_end(owner="a")
    assert kinds(watch) == ["leak"]
    assert watch.san.findings[0].pool == ROWS


def test_a_row_that_is_given_back_twice(watch: Watch) -> None:
    req = request_("a")
    (row,) = watch.rows.alloc([req])
    watch.rows.free(req)
    req.kv.req_pool_idx = row
    watch.rows.free(req)
    assert kinds(watch) == ["double_free"]
    finding = watch.san.findings[0]
    assert (finding.pool, finding.slots, finding.owner) == (ROWS, (row,), "a")


class Forgetful(list[int]):
    """A free list that takes nothing back."""

    def extend(self, values: Any) -> None:
        """Takes nothing."""


def test_a_flush_makes_everything_free(watch: Watch) -> None:
    take(watch, 32, "a")
    watch.rows.alloc([request_("a")])
    watch.rows.clear()
    watch.kv.clear()
    watch.san.req_end(owner="a")
    watch.san.idle()
    watch.san.count(KV, available=watch.kv.available_size(), total=SIZE)
    assert kinds(watch) == []


def test_an_exhausted_pool_hands_out_nothing(watch: Watch) -> None:
    assert watch.kv.alloc(SIZE) is not None
    assert watch.kv.alloc(16) is None
    assert kinds(watch) == []


def test_lists_of_free_slots_are_not_kept_for_slot_ids_that_come_late() -> None:
    """Each free makes a new one, on a device as large as what is free: many, where all requests are taken back."""
    allocator = TokenToKVPoolAllocator(SIZE, torch.bfloat16, "cpu", None, False)
    watch = begin(ReqToTokenPool(4, SIZE, "cpu", False), allocator, WAYS["late"])
    lists = []
    for slots in [allocator.alloc(1) for _ in range(4)]:
        allocator.free(slots)
        lists.append(weakref.ref(allocator.free_pages))
    assert watch.san.waiting == 8
    assert [each() is not None for each in lists] == [False, False, False, True]
    assert kinds(watch) == []
