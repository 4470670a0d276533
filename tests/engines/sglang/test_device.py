"""What the adapter does with tensors on a device at the call, over tensors that have a device and no numbers.

torch's device `meta` refuses what a GPU cannot do, or cannot do without being waited for: to mix devices, to look at a
number.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kvsan.hooks.adapters.sglang.tree import matched
from kvsan.hooks.adapters.sglang.watch import Doing, Watch
from sglang.srt.disaggregation import decode
from sglang.srt.mem_cache import allocation
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from .on_its_way import DEVICE, Copies
from .test_pools import request_
from .watching import begin

SIZE = 64


@pytest.fixture(params=[1, 16])
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A watch over rows and 64 token slots on a device that has no memory."""
    page = int(request.param)
    common = {"dtype": torch.bfloat16, "device": DEVICE, "kvcache": None, "need_sort": False}
    monkeypatch.setattr(allocation, "attention_backends", lambda: ("torch_native", "torch_native"))
    allocator = (
        TokenToKVPoolAllocator(SIZE, **common)
        if page == 1
        else PagedTokenToKVPoolAllocator(SIZE, page_size=page, **common)
    )
    watch = begin(decode.DecodeReqToTokenPool(2, SIZE, DEVICE, False, 2), allocator, late=True)
    watch.readback = Copies()
    yield watch
    assert not watch.blind
    assert watch.san.report().failures == ()


def _both(*numbers: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor on the device, and the host's own."""
    host = torch.tensor(numbers)
    return host.to(DEVICE), host


def _row(watch: Watch, rid: str) -> Any:
    req = request_(rid)
    watch.san.req_start(owner=rid)
    watch.rows.alloc([req])
    return req


def _extend(watch: Watch, reqs: list[Any], prefixes: list[int], counts: list[int]) -> torch.Tensor:
    """Slots for a batch of prompts, and what is written into rows. A request without a prefix has an empty one, which
    SGLang has on the host."""
    ends = [prefix + count for prefix, count in zip(prefixes, counts, strict=True)]
    table, numbers = watch.rows.req_to_token, [req.kv.req_pool_idx for req in reqs]
    cached = [
        table[number, :prefix].to(torch.int64) if prefix else allocation._EMPTY_PREFIX
        for number, prefix in zip(numbers, prefixes, strict=True)
    ]
    if watch.page == 1:
        slots = watch.kv.alloc(sum(counts))
    else:
        slots = watch.kv.alloc_extend(*_both(*prefixes), *_both(*ends), _both(*numbers)[0], sum(counts))
    lengths = [each for part in (numbers, prefixes, ends, counts) for each in _both(*part)]
    allocation.write_cache_indices(slots, *lengths, cached, watch.rows)
    return slots


def test_prompts_with_and_without_a_prefix(watch: Watch) -> None:
    """The prefix that is empty is on the host."""
    one, two = _row(watch, "a"), _row(watch, "b")
    _extend(watch, [one], [0], [16])
    assert watch.readback.asked[-3:] == [16, 16, 16]  # what was to be written; what there was before, and then
    _extend(watch, [one, two], [16, 0], [3, 5])
    assert watch.readback.asked[-3:] == [24, 24, 24]
    assert watch.san.waiting


def test_a_decode_step_and_what_is_given_back(watch: Watch) -> None:
    req = _row(watch, "a")
    slots = _extend(watch, [req], [0], [32])
    matched(watch, SimpleNamespace(rid="a", last_node=7), slots[:16])
    number = req.kv.req_pool_idx
    (rows, rows_on_host), (lengths, lengths_on_host) = _both(number), _both(32)
    batch = SimpleNamespace(req_pool_indices_cpu=rows_on_host, seq_lens_cpu=lengths_on_host)
    with watch.within(Doing("decode", batch=batch)):
        slot = watch.kv.alloc(watch.page)
        watch.rows.write((rows, lengths), slot[:1].to(torch.int32))
    with watch.within(Doing("release", owner="a")):
        watch.kv.free_group_begin()
        watch.kv.free_segment(slots[:16], start_pos=0)
        watch.kv.free_group_end()
        watch.kv.free_segment(slots[16:], start_pos=16)
        watch.rows.free(req)
    watch.san.idle()


def test_slots_that_another_server_fills(watch: Watch) -> None:
    """A decode server tells the other side where to write from its row, which is on the device."""
    req = _row(watch, "a")
    slots = _extend(watch, [req], [0], [16])
    req.time_stats = SimpleNamespace(set_decode_transfer_queue_entry_time=lambda: None)
    receiver = SimpleNamespace(send_metadata=lambda *arguments, **named: None)
    queue = object.__new__(decode.DecodePreallocQueue)
    queue.__dict__.update(
        req_to_token_pool=watch.rows, transfer_queue=SimpleNamespace(enable_staging=False),
        _num_published_destinations=0, _transfer_page_indices=lambda request, indices, page: None,
        req_to_metadata_buffer_idx_allocator=SimpleNamespace(alloc=lambda: 0),
    )  # fmt: skip
    asked = len(watch.readback.asked)
    queue._send_kv_metadata(SimpleNamespace(req=req, kv_receiver=receiver, is_rebootstrap=False), slots, watch.page)
    assert watch.readback.asked[asked:] == [16]
    assert watch.arriving == {"arrival of a"}
