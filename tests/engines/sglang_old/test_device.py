"""What the adapter does with tensors on a device at the call, over tensors that have a device and no numbers.

torch's device `meta` refuses what a GPU cannot do, or cannot do without being waited for: to mix devices, to look at a
number.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from kvsan.hooks.adapters.readback import HostCopies
from kvsan.hooks.adapters.sglang.older.watch import OlderWatch
from kvsan.hooks.adapters.sglang.watch import ROWS
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache import common
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.radix_cache import RadixCache

from ..sglang.interpreted import interpret
from ..sglang.on_its_way import DEVICE, Copies
from .test_pools import KEEPS_ROWS, begin, evict, extend, in_flight, kinds, probes, release, request

__all__ = ["probes"]


@pytest.fixture(params=["1", "16", "1, no cache", "16, no cache"])
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OlderWatch]:
    """A watch over two rows, 256 token slots and a cache on a device that has no memory."""
    page, _, without = request.param.partition(", ")
    page = int(page)
    monkeypatch.setattr(torch, "unique", lambda pages: pages[::page])  # how many there are depends on their numbers
    watch = begin(page, monkeypatch, device=DEVICE, cache=ChunkCache if without else RadixCache)
    watch.readback = Copies()
    yield watch
    assert not watch.blind
    assert watch.san.report().failures == ()


def decode(watch: OlderWatch, req: Req) -> None:
    """SGLang's own for a decode step of one request; pages are handed out by a kernel, which needs a GPU."""
    length = torch.tensor([req.kv_allocated_len])
    batch = SimpleNamespace(
        reqs=[req], tree_cache=watch.tree, req_to_token_pool=watch.rows, token_to_kv_pool_allocator=watch.kv,
        req_pool_indices=torch.tensor([req.req_pool_idx]).to(DEVICE), seq_lens=length.to(DEVICE), seq_lens_cpu=length,
        model_config=SimpleNamespace(is_encoder_decoder=False), maybe_evict_swa=lambda: None,
    )  # fmt: skip
    common.alloc_for_decode(batch, 1)


def test_prompts_with_and_without_a_prefix(watch: OlderWatch) -> None:
    """What is cached of a prompt is on the device; where that is nothing, it may be on the host."""
    asked: list[int] = watch.readback.asked  # type: ignore[union-attr]
    a, b = request("A", list(range(64))), request("B", list(range(100, 132)))
    extend(watch, a)
    assert asked[-3:] == [64, 64, 64]  # what was to be written; what there was before, and then
    with in_flight(watch, a):
        watch.tree.cache_unfinished_req(a)
    a.output_ids.append(1)
    if not KEEPS_ROWS:
        watch.rows.free(a.req_pool_idx)
    extend(watch, a, b)
    assert asked[-3:] == [97, 97, 97]


def test_a_request_comes_and_goes(watch: OlderWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = watch.readback.asked  # type: ignore[union-attr]
    a = request("A", list(range(32)))
    extend(watch, a)
    with in_flight(watch, a):
        watch.tree.cache_unfinished_req(a)
    monkeypatch.setattr(common, "alloc_paged_token_slots_decode", lambda **named: watch.kv.alloc(watch.page)[:1])
    decode(watch, a)
    assert asked[-2:] == [1, 1]
    release(watch, a)
    b = request("B", list(range(40)))  # has a prefix, where there is a cache
    extend(watch, b)
    release(watch, b)
    evict(watch)
    watch.san.idle()
    assert watch.san.waiting


@pytest.mark.parametrize("page", [1, 16])
def test_rows_that_a_kernel_writes(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter runs the kernel; each cell is told as it wrote it, and what it wrote again as the same."""
    watch = begin(page, monkeypatch)
    watch.readback = HostCopies()
    monkeypatch.setattr(common, "support_triton", lambda backend: True)
    interpret(monkeypatch, common, "write_req_to_token_pool_triton")
    a, b = request("A", list(range(64))), request("B", list(range(100, 132)))
    extend(watch, a, chunk=32)
    with in_flight(watch, a):
        watch.tree.cache_unfinished_req(a)
        if not KEEPS_ROWS:
            watch.rows.free(a.req_pool_idx)
        extend(watch, a)
    extend(watch, b)
    watch.san.settle()
    cells = watch.san.tracker.state.tables[ROWS]
    for req, length in ((a, 64), (b, 32)):
        row = int(req.req_pool_idx)
        assert cells.get(row).slots[:length].tolist() == watch.rows.req_to_token[row, :length].tolist()
    assert kinds(watch) == []
    assert watch.san.report().failures == ()
