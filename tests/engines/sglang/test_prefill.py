"""SGLang's queues and senders of a prefill server under the adapter's probes, without a server: each fault once, and
the same use without it."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from adapters.device import on_host
from kvsan.hooks.adapters.sglang import disaggregation
from kvsan.hooks.adapters.sglang.watch import KV, ROWS, WINDOW, Watch
from sglang.srt.disaggregation import prefill, utils
from sglang.srt.disaggregation.base import KVPoll
from sglang.srt.disaggregation.common.conn import CommonKVSender
from sglang.srt.disaggregation.fake import FakeKVSender
from sglang.srt.disaggregation.nixl.conn import NixlKVSender
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.sampling.sampling_params import SamplingParams

from .test_cache import SIZE, compute, core, finish, look_up, prompt, settle, watch
from .test_window import Row
from .test_window import watch as windowed
from .watching import Way, begin, kinds
from .watching import settle as settle_ids

__all__ = ["core", "watch", "windowed"]


class Server(prefill.SchedulerDisaggregationPrefillMixin):
    """As much of a prefill server's scheduler as its queues and sends ask for."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.token_to_kv_pool_allocator, self.req_to_token_pool, self.tree_cache = watch.kv, watch.rows, watch.tree
        self.enable_overlap, self.enable_staging = True, False
        self.forward_stream = torch.cpu.Stream()
        self.kv_checksum_computer = self.scheduler_stage_metrics = None
        self.attn_cp_cpu_group = self.attn_tp_cpu_group = None
        self.disagg_metadata_buffers = SimpleNamespace(set_buf=lambda req: None)
        self.disagg_prefill_bootstrap_queue = SimpleNamespace(
            kv_manager=SimpleNamespace(kv_args=SimpleNamespace(state_types=[]))
        )
        self.disagg_prefill_pending_chunk_rids: set[str] = set()
        self.disagg_prefill_inflight_queue: list[Any] = []
        self.waiting_queue: list[Any] = []
        self.output_streamer = SimpleNamespace(stream_output=lambda *answers: None)
        self.metrics_reporter = SimpleNamespace(enable_metrics=False)
        self.processed_tokens_counter = 0
        self.req_to_metadata_buffer_idx_allocator = None

    def _release_aborted_request(self, req: Any) -> None:
        """Nothing of the cache's is left behind here."""

    def computes(self, rid: str, *parts: int, length: int | None = None) -> Any:
        """A request whose prompt is computed and published, with the stand-in's sender."""
        return self.prepares(rid, prompt(*parts)[:length], FakeKVSender(SimpleNamespace(), "nowhere", 1))

    def prepares(self, rid: str, tokens: list[int], sender: Any) -> Any:
        req = look_up(self.watch, rid, tokens)
        req.disagg_kv_sender, req.bootstrap_host = sender, "nowhere"
        req.pending_bootstrap, req.start_send_idx, req.metadata_buffer_index = False, 0, -1
        compute(self.watch, req)
        return req

    def sends(self, req: Any) -> set[int]:
        """The last piece of a request is sent, and the request waits until that is over; the slots of its row."""
        self.disagg_prefill_inflight_queue.append(req)
        self.send_kv_chunk(req, last_chunk=True)
        return set(self.watch.rows.req_to_token[req.kv.req_pool_idx, : len(req.origin_input_ids)].tolist())


@pytest.fixture
def server(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A prefill server of one rank."""
    monkeypatch.setattr(utils, "_all_reduce_polls", lambda polls, group: polls)
    monkeypatch.setattr(torch.cuda, "Event", torch.cpu.Event)
    monkeypatch.setattr(prefill, "get_parallel", lambda: SimpleNamespace(tp_rank=0))
    monkeypatch.setattr(prefill, "get_disagg", lambda: SimpleNamespace(
        optimistic_prefill_attempts=3, disaggregation_decode_allocation_policy="auto"
    ))  # fmt: skip
    return Server(watch)


def test_the_numbers_of_what_has_concluded() -> None:
    assert (KVPoll.Failed, KVPoll.Success) == disaggregation.CONCLUDED


@pytest.mark.parametrize("longest", [64, 63])
def test_a_prompt_that_is_too_long(watch: Watch, longest: int) -> None:
    """It is turned away at the door, which is its end."""
    scheduler = object.__new__(Scheduler)
    queue = object.__new__(prefill.PrefillBootstrapQueue)
    queue.__dict__.update(
        scheduler=scheduler, queue=[], max_input_len=longest, max_total_num_tokens=longest,
        transfer_backend=prefill.TransferBackend.FAKE,
        kv_manager=None, bootstrap_port=1,
    )  # fmt: skip
    scheduler.__dict__.update(
        enable_priority_scheduling=False, abort_on_priority_when_disabled=False, enable_hicache_storage=False,
        enable_lmcache=False,
        disaggregation_mode=prefill.DisaggregationMode.PREFILL, disagg_prefill_bootstrap_queue=queue,
        model_config=SimpleNamespace(num_key_value_heads=1),
        output_streamer=SimpleNamespace(stream_output=lambda *answers: None),
    )  # fmt: skip
    scheduler._add_request_to_queue(
        Req("a", "", array("q", prompt(1, 2)), SamplingParams(temperature=0, max_new_tokens=1))
    )
    assert [req.rid for req in queue.queue] == (["a"] if longest == 64 else [])
    assert watch.live == ({"a"} if longest == 64 else set())
    assert kinds(watch) == []


def test_requests_are_sent_and_end(server: Server, watch: Watch) -> None:
    """One in two pieces, one with the same beginning; both wait for their transfers, and then nobody holds anything."""
    first = server.computes("a", 1, 2, length=55)
    server.send_kv_chunk(first, end_idx=40)
    assert first.start_send_idx == 40 // watch.page * watch.page
    server.sends(first)
    second = server.computes("b", 1, 3, length=55)
    server.sends(second)
    assert len(watch.sending) == 2
    assert len(server.process_disagg_prefill_inflight_queue()) == 2
    assert watch.sending == {}
    assert watch.live == set()
    settle(watch)
    assert kinds(watch) == []


@pytest.mark.parametrize("polled", [True, False])
def test_a_release_while_the_other_side_reads(server: Server, watch: Watch, polled: bool) -> None:
    """What the cache took over is in use until then as well: it may not be evicted."""
    req = server.computes("a", 1, 2, length=55)
    slots = server.sends(req)
    if polled:
        server.process_disagg_prefill_inflight_queue()
    else:
        finish(watch, req)
    assert watch.tree.evict(EvictParams(num_tokens=SIZE)) is not None
    assert set(kinds(watch)) == (set() if polled else {"free_in_flight"})
    if not polled:
        assert {finding.pool for finding in watch.san.findings} == {KV}
        assert {slot for finding in watch.san.findings for slot in finding.slots} == slots
        assert {finding.extra["xfer"] for finding in watch.san.findings} == {"send of a"}


@pytest.mark.parametrize("polled", [True, False])
def test_what_is_sent_is_written_again(server: Server, watch: Watch, way: Way, polled: bool) -> None:
    server.watch = watch = at_level_full(watch, way)
    slots = server.sends(server.computes("a", 1, 2))
    if polled:
        server.process_disagg_prefill_inflight_queue()
    watch.san.write(KV, np.array(sorted(slots)[:4]), agent="fwd")
    assert kinds(watch) == ([] if polled else ["race"])
    if not polled:
        finding = watch.san.findings[0]
        assert (finding.pool, set(finding.slots), finding.extra["xfer"]) == (KV, set(sorted(slots)[:4]), "send of a")


@pytest.mark.parametrize("polled", [True, False])
def test_a_window_that_moves_on_while_the_other_side_reads_it(
    windowed: Watch, polled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies behind the window when the last piece is sent is not read."""
    monkeypatch.setattr(utils, "_all_reduce_polls", lambda polls, group: polls)
    server, row = Server(windowed), Row(windowed, "a")
    server.sliding_window_size = 32
    row.extend(64)
    windowed.san.sync(on=windowed.stream())
    sender = FakeKVSender(SimpleNamespace(), "nowhere", 1)
    row.req.__dict__.update(
        disagg_kv_sender=sender, start_send_idx=0, disagg_decode_prefix_len=0, origin_input_ids=[0] * 64, extend_end=64
    )
    settle_ids(windowed)  # from here on the shadow knows the map
    slots = set(windowed.window.mapped(on_host(row.slots[32:]).numpy()).tolist())
    assert len(slots) == 32
    server.send_kv_chunk(row.req, last_chunk=True)
    row.slide(0, 32)
    assert kinds(windowed) == []
    if polled:
        prefill.poll_and_all_reduce_attn_cp_tp_group([sender], None, None)
    row.slide(32, 64)
    assert kinds(windowed) == ([] if polled else ["free_in_flight"])
    if not polled:
        finding = windowed.san.findings[0]
        assert (finding.pool, set(finding.slots), finding.extra["xfer"]) == (WINDOW, slots, "send of a")


@pytest.mark.parametrize("told", [True, False])
def test_an_abort_between_two_pieces(server: Server, watch: Watch, told: bool) -> None:
    """The engine tells the sender before it takes the slots back."""
    req = server.computes("a", 1, 2, length=55)
    server.send_kv_chunk(req, end_idx=32)
    req.to_finish = prefill.FINISH_ABORT("Aborted")
    if told:
        assert server._retire_aborted_prefill_result(req)
    else:
        req.update_finish_state()
        release_kv_cache(req, watch.tree, checkpoint=False)
    watch.tree.evict(EvictParams(num_tokens=SIZE))
    assert set(kinds(watch)) == (set() if told else {"free_in_flight"})
    assert watch.live == set()


def test_a_transfer_that_fails(server: Server, watch: Watch) -> None:
    req = server.computes("a", 1, 2, length=55)
    server.sends(req)
    req.disagg_kv_sender.poll = lambda: KVPoll.Failed
    assert server.process_disagg_prefill_inflight_queue() == [req]
    assert (watch.sending, watch.live) == ({}, set())
    settle(watch)
    assert kinds(watch) == []


@pytest.mark.parametrize("gives_back", [True, False])
def test_a_request_that_nobody_takes(
    server: Server, watch: Watch, gives_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was computed before the handshake, which then fails: it ends, and what it had must be free."""
    req = server.computes("a", 1, 2, length=55)
    req.pending_bootstrap = True
    server.disagg_prefill_inflight_queue.append(req)
    req.disagg_kv_sender.abort()
    row = req.kv.req_pool_idx
    if not gives_back:
        monkeypatch.setattr(prefill, "release_kv_cache", lambda *args, **named: None)
    server.process_disagg_prefill_inflight_queue()
    assert watch.live == set()
    settle_ids(watch)
    found = {(each.kind, each.pool, each.slots) for each in watch.san.findings if each.pool == ROWS}
    assert found == (set() if gives_back else {("leak", ROWS, (row,))})
    assert (kinds(watch) == []) is gives_back


def test_a_request_that_is_computed_again(server: Server, watch: Watch) -> None:
    """It was computed before the handshake, and others get its place; later it begins anew."""
    req = server.computes("a", 1, 2, length=55)
    req.pending_bootstrap = True
    server.optimistic_release_and_requeue(req)
    assert server.waiting_queue == [req]
    assert watch.live == {"a"}
    again = look_up(watch, "a", prompt(1, 2)[:55])
    again.disagg_kv_sender, again.bootstrap_host = req.disagg_kv_sender, "nowhere"
    again.start_send_idx, again.metadata_buffer_index, again.pending_bootstrap = 0, -1, False
    compute(watch, again)
    server.sends(again)
    server.process_disagg_prefill_inflight_queue()
    settle(watch)
    assert kinds(watch) == []


@pytest.mark.parametrize("sender_class", [CommonKVSender, NixlKVSender])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_send_while_a_forward_computes_what_it_reads(
    server: Server, watch: Watch, way: Way, overlap: bool, sender_class: type
) -> None:
    """A cached prefix is sent before a request's own forward; its event says when the forward before has ended.
    SGLang's sender for NIXL drops the event."""
    server.watch = watch = at_level_full(watch, way)
    watch.streams[id(server.forward_stream)] = "fwd"
    manager = SimpleNamespace(
        kv_shard_size=1, enable_all_cp_ranks_for_transfer=False, is_dummy_cp_rank=False,
        _dcp_pack_max_tokens=None,
        prepare_send_state_indices=lambda states: states, add_transfer_request=lambda *args, **named: None,
    )  # fmt: skip
    sender = object.__new__(sender_class)
    sender.__dict__.update(
        kv_mgr=manager, conclude_state=None, curr_idx=0, num_kv_indices=64 // watch.page, bootstrap_room=1,
        aux_index=0, trace_ctx=SimpleNamespace(copy_for_thread=lambda: None), _transfer_start_time=0.0,
        _early_send_wait_event=None, _transfer_num_kv_indices=0, _transfer_num_state_indices=0,
    )  # fmt: skip
    req = server.prepares("a", prompt(1, 2), sender)
    slots = watch.rows.req_to_token[req.kv.req_pool_idx, :64].tolist()
    watch.san.write(KV, np.array(slots), agent="fwd")
    if overlap:
        req.prefix_len, req.host_hit_length = 64, 0
        server.maybe_send_cached_prefix_chunk(req)
    else:
        server.send_kv_chunk(req, end_idx=64)
    assert req.start_send_idx == 64
    waits = overlap and sender_class is CommonKVSender
    assert kinds(watch) == ([] if waits else ["race"])
    if not waits:
        finding = watch.san.findings[0]
        assert (finding.pool, set(finding.slots)) == (KV, set(slots))


def at_level_full(watch: Watch, way: Way) -> Watch:
    """The same pools, watched at level full."""
    tree = watch.tree
    watch = begin(watch.rows, watch.kv, way, level="full")
    watch.tree = tree
    return watch
