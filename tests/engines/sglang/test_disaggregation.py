"""SGLang's row pool and queues of a decode server under the adapter's probes: each fault once, and the same use without
it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from adapters.device import on_host
from kvsan.hooks.adapters.sglang import batches, disaggregation
from kvsan.hooks.adapters.sglang.tables import installed
from kvsan.hooks.adapters.sglang.watch import KV, ROWS, Doing, Watch
from sglang.srt.disaggregation import decode
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from .test_pools import request_
from .watching import Way, begin, end, kinds

SIZE = 64


@pytest.fixture
def watch(way: Way, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A watch over two rows for running requests and four for those to come, and 64 token slots."""
    rows = decode.DecodeReqToTokenPool(2, SIZE, way.device, False, 4)
    watch = begin(rows, TokenToKVPoolAllocator(SIZE, torch.bfloat16, way.device, None, False), way)
    monkeypatch.setattr(decode, "release_kv_cache", lambda req, tree, **named: release(watch, req))
    yield watch
    end(watch)


def release(watch: Watch, req: Any) -> None:
    """What a request has goes back, and it ends."""
    with watch.within(Doing("release", owner=req.rid)):
        watch.kv.free(watch.rows.req_to_token[req.kv.req_pool_idx, : req.kv.kv_allocated_len].to(torch.int64))
        watch.rows.free(req)
    watch.san.req_end(owner=req.rid)


class Arrival:
    """A request whose keys and values come from another server, driven as SGLang's queues drive it."""

    def __init__(self, watch: Watch, rid: str, length: int = 16) -> None:
        self.watch, self.req = watch, request_(rid)
        self.req.bootstrap_room = 1
        self.req.time_stats = SimpleNamespace(set_decode_transfer_queue_entry_time=lambda: None)
        receiver = SimpleNamespace(send_metadata=lambda *arguments, **named: None)
        self.request = SimpleNamespace(req=self.req, kv_receiver=receiver, is_rebootstrap=False)
        self.transfers = object.__new__(decode.DecodeTransferQueue)
        self.transfers.__dict__.update(
            enable_staging=False, enable_host_receive=False, tree_cache=None, req_to_token_pool=watch.rows,
            scheduler=SimpleNamespace(enable_hisparse=False),
        )  # fmt: skip
        queue = object.__new__(decode.DecodePreallocQueue)
        queue.__dict__.update(
            req_to_token_pool=watch.rows, transfer_queue=self.transfers, _num_published_destinations=0,
            req_to_metadata_buffer_idx_allocator=SimpleNamespace(alloc=lambda: 0),
        )  # fmt: skip
        watch.san.req_start(owner=rid)
        watch.rows.alloc([self.req])
        slots = watch.kv.alloc(length)
        watch.san.own(KV, on_host(slots).numpy(), owner=rid)
        watch.rows.write((self.req.kv.req_pool_idx, slice(0, length)), slots.to(torch.int32))
        self.req.kv.kv_allocated_len = length
        self.slots = set(slots.tolist())
        queue._send_kv_metadata(self.request, slots, 1)

    def arrives(self) -> None:
        """The engine takes the request over. (Its own code for that wants a server's buffers: the reader alone.)"""
        for _ in disaggregation.over(self.watch, self.transfers, self.request):
            pass

    def gives_up(self) -> None:
        """The transfer has failed, and the other side has stopped."""
        self.transfers._release_request(self.request)


def test_requests_arrive_and_run(watch: Watch) -> None:
    """More rows than run at once are in use; one request arrives, one is given up."""
    arrivals = [Arrival(watch, name) for name in "abc"]
    watch.san.count(ROWS, available=len(watch.rows.free_slots), total=6)
    arrivals[0].arrives()
    arrivals[1].gives_up()
    release(watch, arrivals[0].req)
    arrivals[2].arrives()
    release(watch, arrivals[2].req)
    watch.san.idle()
    watch.san.count(ROWS, available=len(watch.rows.free_slots), total=6)
    watch.san.count(KV, available=watch.kv.available_size(), total=SIZE)
    assert kinds(watch) == []


def test_a_release_while_the_other_side_writes(watch: Watch) -> None:
    arrival = Arrival(watch, "a")
    release(watch, arrival.req)
    assert kinds(watch) == ["free_in_flight"]
    finding = watch.san.findings[0]
    assert (finding.pool, finding.owner, set(finding.slots)) == (KV, "a", arrival.slots)
    assert finding.extra["xfer"] == "arrival of a"


def test_a_row_taken_ahead_that_is_not_given_back(watch: Watch) -> None:
    arrival = Arrival(watch, "a")
    arrival.arrives()
    row = arrival.req.kv.req_pool_idx
    with watch.within(Doing("release", owner="a")):
        watch.kv.free(torch.tensor(sorted(arrival.slots), device=watch.kv.device))
    watch.san.req_end(owner="a")
    assert kinds(watch) == ["leak"]
    assert (watch.san.findings[0].pool, watch.san.findings[0].slots) == (ROWS, (row,))


def test_a_row_that_is_given_back_twice(watch: Watch) -> None:
    arrival = Arrival(watch, "a")
    arrival.arrives()
    row = arrival.req.kv.req_pool_idx
    release(watch, arrival.req)
    arrival.req.kv.req_pool_idx = row
    watch.rows.free(arrival.req)
    assert kinds(watch) == ["double_free"]
    assert (watch.san.findings[0].pool, watch.san.findings[0].slots) == (ROWS, (row,))


@pytest.mark.parametrize("loop", [each for each in dir(Scheduler) if each.startswith("event_loop_")])
def test_every_loop_takes_in_what_has_come(loop: str) -> None:
    """Those do not that no followed server runs."""
    asked = {each.where.rpartition(".")[2] for each in installed().probes if each.read is batches.iteration}
    called = {*inspect.unwrap(getattr(Scheduler, loop)).__code__.co_names}
    assert bool(called & asked) is (loop not in ("event_loop_pdmux", "event_loop_pp_disagg_prefill"))
