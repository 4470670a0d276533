"""The table of probes: every place in SGLang that is observed, which events it gives, and what is lost without it.

Places are those of 0.5.23; `tables` says which releases get them. A place that an installed release does not have is
told by `kvsan doctor sglang`.
"""

from __future__ import annotations

from ..probes import Probe
from . import batches, beams, disaggregation, host, kv, requests, rows, speculation, states, tree, window

_ALLOCATOR = "sglang.srt.mem_cache.allocator"
_TOKEN = f"{_ALLOCATOR}.token:TokenToKVPoolAllocator"
_PAGED = f"{_ALLOCATOR}.paged:PagedTokenToKVPoolAllocator"
_BASE = f"{_ALLOCATOR}.base:BaseTokenToKVPoolAllocator"
_ROWS = "sglang.srt.mem_cache.memory_pool:ReqToTokenPool"
_ALLOCATION = "sglang.srt.mem_cache.allocation"
_COMMON = "sglang.srt.mem_cache.common"
_TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_OLD_TREE = "sglang.srt.mem_cache.radix_cache:RadixCache"
_BASE_TREE = "sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache"
_SESSION = "sglang.srt.session.streaming_session:StreamingSession"
_ADDER = "sglang.srt.managers.schedule_policy:PrefillAdder"
_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"

_SLOTS = "who holds token slots"
_BACK = "who gives token slots back"
_TREES = "what the prefix cache holds"

_SWA = f"{_ALLOCATOR}.swa:SWATokenToKVPoolAllocator"
_TORCH_NATIVE = "sglang.srt.layers.attention.torch_native_backend:TorchNativeAttnBackend"

_HALVES = "who holds window slots"
_READS = "which window slots attention reads (level full)"

WINDOWED: tuple[Probe, ...] = (
    Probe(f"{_SWA}.set_full_to_swa_mapping", "map_set, insert", window.set_mapping, _HALVES, needed=False),
    Probe(f"{_SWA}.clear_full_to_swa_mapping", "map_clear", window.clear_mapping, _HALVES, needed=False),
    Probe(f"{_SWA}.alloc_decode", "map_set", window.alloc_decode, _HALVES, needed=False),
    Probe(f"{_SWA}._free_swa_pages", "free", window.free_segment, _HALVES, needed=False),
    Probe(f"{_SWA}._free_swa_pages_cuda", "map_clear", window.clear_pages, _HALVES, needed=False),
    Probe(f"{_SWA}.free_swa", "free", window.free, _HALVES, needed=False),
    Probe(f"{_SWA}.free_group_end", "flush", window.free_group_end, _HALVES, needed=False),
    Probe(f"{_SWA}.clear", "reset", window.clear, "flushes of the cache", needed=False),
    Probe(f"{_BASE_TREE}.evict_sliding_windows", "free", window.slide, "whose window moves on", needed=False),
    Probe(
        f"{_TREE}._apply_cache_action", "evict", window.apply_action, "what tombstones are replaced by", needed=False
    ),
    Probe(
        "sglang.srt.mem_cache.swa_memory_pool:SWAKVPool.set_kv_buffer",
        "write",
        window.set_kv_buffer,
        "which window slots are written (level full)",
        needed=False,
    ),
    Probe(f"{_TORCH_NATIVE}._run_sdpa_forward_extend", "read", window.attend, _READS, needed=False),
    Probe(f"{_TORCH_NATIVE}._run_sdpa_forward_decode", "read", window.attend, _READS, needed=False),
)
"""The sliding window; where one of these has no place, the slots of such a model are not followed."""

_MEMORY = "sglang.srt.mem_cache.memory_pool"
_STATE_SLOTS = f"{_ALLOCATOR}.mamba:MambaSlotAllocator"
_STATE_PART = "sglang.srt.mem_cache.unified_cache.components.mamba:MambaComponent"

_STATES = "who holds recurrent states"
_COPIES = "which states are copied and cleared (level full)"

STATEFUL: tuple[Probe, ...] = (
    Probe(f"{_STATE_SLOTS}._do_alloc", "alloc", states.alloc, _STATES, needed=False),
    Probe(f"{_STATE_SLOTS}.free", "free", states.free, _STATES, needed=False),
    Probe(f"{_STATE_SLOTS}.clear", "reset", states.clear, "flushes of the cache", needed=False),
    Probe(f"{_MEMORY}:HybridReqToTokenPool.alloc", "own", states.bind, _STATES, needed=False),
    Probe(f"{_MEMORY}:HybridReqToTokenPool.set_mamba_ping_pong_slot", "own", states.set_slot, _STATES, needed=False),
    Probe(f"{_STATE_PART}.finalize_match_result_in_cache", "own", states.match, _STATES, needed=False),
    Probe(f"{_STATE_PART}.prepare_for_caching_req", "own", states.prepare, _STATES, needed=False),
    Probe(
        f"{_STATE_PART}.cleanup_after_caching_req", "insert", states.cleanup, "which states are cached", needed=False
    ),
    Probe(f"{_MEMORY}:MambaPool.copy_from", "read, write", states.copy, _COPIES, needed=False),
    Probe(f"{_MEMORY}:MambaPool.clear_slots", "write", states.clear_slots, _COPIES, needed=False),
)
"""Recurrent states; where one of these has no place, the slots of such a model are not followed."""

_BEAM = "sglang.srt.beam_search"
_COORDINATOR = f"{_BEAM}.coordinator:BeamCoordinator"

BEAMS: tuple[Probe, ...] = (
    Probe(f"{_COORDINATOR}._spawn_member_rows", "alloc", beams.spawn, "the rows of beams", needed=False),
    Probe(f"{_COORDINATOR}._reclaim_orphans", "free", beams.reclaim, "whose slots beams give back", needed=False),
    Probe(f"{_BEAM}.fork:free_member_rows", "free", beams.free_members, "whose slots beams give back", needed=False),
)
"""Beam search; without the first of these kvsan stops watching when a beam begins."""

_HOST_POOL = "sglang.srt.mem_cache.pool_host.base:HostKVCache"
_COPY = "sglang.srt.mem_cache.l2_transfer:L2TransferEngine"

_HOSTS = "what is on the host"
_ON_ITS_WAY = "copies between device and host"

HOSTED: tuple[Probe, ...] = (
    Probe(f"{_HOST_POOL}.alloc", "alloc", host.alloc, _HOSTS, needed=False),
    Probe(f"{_HOST_POOL}.free", "free", host.free, _HOSTS, needed=False),
    Probe(f"{_HOST_POOL}.clear", "reset", host.clear, _HOSTS, needed=False),
    Probe(f"{_TREE}._execute_and_commit_kv_backup", "lock", host.backup, "whose locks backups are", needed=False),
    Probe(f"{_TREE}.load_back", "lock", host.load_back, "whose locks loads are", needed=False),
    Probe(
        "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller:HybridCacheController.load",
        "insert",
        host.load,
        "whose slots loads fill",
        needed=False,
    ),
    Probe(f"{_COPY}.submit_device_to_host", "xfer_begin", host.write_out, _ON_ITS_WAY, needed=False),
    Probe(f"{_COPY}.submit_host_to_device", "xfer_begin", host.bring_back, _ON_ITS_WAY, needed=False),
)
"""The host tier; where one of these has no place, the slots of such a server are not followed. A copy's end is told
where its event is waited for (`synchronize`)."""

_DECODE = "sglang.srt.disaggregation.decode"
_DECODE_ROWS = f"{_DECODE}:DecodeReqToTokenPool"
_PREALLOC, _ARRIVAL = f"{_DECODE}:DecodePreallocQueue", f"{_DECODE}:DecodeTransferQueue"
_ARRIVALS = "slots that other servers write"

DECODING: tuple[Probe, ...] = (
    Probe(
        f"{_DECODE}:SchedulerDisaggregationDecodeMixin.get_next_disagg_decode_batch_to_run",
        "step",
        batches.iteration,
        "steps",
        needed=False,
    ),
    Probe(f"{_DECODE_ROWS}.alloc", "alloc, reuse", rows.alloc, "who holds rows", needed=False),
    Probe(f"{_DECODE_ROWS}.free", "free", rows.free, "who gives rows back", needed=False),
    Probe(f"{_DECODE_ROWS}.clear", "reset", rows.clear, "flushes of the cache", needed=False),
    Probe(f"{_DECODE_ROWS}.write", "own, row_write", rows.write, "what rows map", needed=False),
    Probe(f"{_PREALLOC}._pre_alloc", "own", disaggregation.pre_alloc, _SLOTS, needed=False),
    Probe(f"{_PREALLOC}._send_kv_metadata", "xfer_begin", disaggregation.announce, _ARRIVALS, needed=False),
    Probe(f"{_ARRIVAL}._commit_transfer_to_req", "xfer_end", disaggregation.over, _ARRIVALS, needed=False),
    Probe(f"{_ARRIVAL}._release_request", "xfer_end", disaggregation.over, _ARRIVALS, needed=False),
)
"""A decode server that other servers fill; where one of these has no place, its slots are not followed."""

_PREFILL = "sglang.srt.disaggregation.prefill:SchedulerDisaggregationPrefillMixin"
_SENDS, _REFUSED = "slots that other servers read", "requests that end in a prefill server's queues"

PREFILLING: tuple[Probe, ...] = (
    Probe(f"{_PREFILL}.get_next_disagg_prefill_batch_to_run", "step", batches.iteration, "steps", needed=False),
    Probe(f"{_PREFILL}._send_kv_chunk", "xfer_begin", disaggregation.send, _SENDS, needed=False),
    Probe(
        "sglang.srt.disaggregation.utils:poll_and_all_reduce_attn_cp_tp_group",
        "xfer_end",
        disaggregation.polled,
        _SENDS,
        needed=False,
    ),
    Probe(
        "sglang.srt.disaggregation.common.conn:CommonKVSender.abort",
        "xfer_end",
        disaggregation.stopped,
        _SENDS,
        needed=False,
    ),
    Probe(
        "sglang.srt.disaggregation.fake.conn:FakeKVSender.abort",
        "xfer_end",
        disaggregation.stopped,
        _SENDS,
        needed=False,
    ),
    Probe(
        f"{_PREFILL}.optimistic_release_and_requeue", "req_retract", disaggregation.requeue, "retractions", needed=False
    ),
    Probe(f"{_PREFILL}.handle_bootstrap_failure", "req_abort, req_end", disaggregation.refused, _REFUSED, needed=False),
    Probe(
        f"{_PREFILL}.release_aborted_prefill_waiting_req",
        "req_abort, req_end",
        disaggregation.refused,
        _REFUSED,
        needed=False,
    ),
)
"""A prefill server that other servers read from; where one of these has no place, it is not followed."""

_AHEAD = "what rows map in speculative decoding"

SPECULATIVE: tuple[Probe, ...] = (
    Probe(f"{_ALLOCATION}:assign_req_to_token_pool_func", "own, row_write", speculation.assign, _AHEAD, needed=False),
    Probe(f"{_ALLOCATION}:alloc_for_spec_decode", "row_write", speculation.reserve, _AHEAD, needed=False),
    Probe(
        "sglang.srt.speculative.spec_utils:move_accept_tokens_to_target_kvcache",
        "read, write",
        speculation.move,
        "which slots accepted drafts go to (level full)",
        needed=False,
    ),
)
"""Speculative decoding; where one of these has no place, the slots of such a server are not followed."""

TOKEN_SLOTS: tuple[Probe, ...] = (
    Probe(f"{_TOKEN}.alloc", "alloc", kv.alloc, _SLOTS),
    Probe(f"{_TOKEN}.free", "free", kv.free, _BACK),
    Probe(f"{_TOKEN}.free_page_ids", "free", kv.free_page_ids, _BACK),
    Probe(f"{_TOKEN}.clear", "reset", kv.clear, "flushes of the cache"),
    Probe(f"{_PAGED}.alloc", "alloc", kv.alloc, _SLOTS),
    Probe(f"{_PAGED}.alloc_extend", "alloc", kv.alloc, _SLOTS),
    Probe(f"{_PAGED}.alloc_decode", "alloc", kv.alloc, _SLOTS),
    Probe(f"{_PAGED}.free", "free", kv.free, _BACK),
    Probe(f"{_PAGED}.free_segment", "free", kv.free_segment, _BACK),
    Probe(f"{_PAGED}.free_page_ids", "free", kv.free_page_ids, _BACK),
    Probe(f"{_PAGED}.free_group_begin", "free (group)", kv.free_group_begin, "frees that are pending"),
    Probe(f"{_PAGED}.free_group_end", "flush", kv.free_group_end, "frees that are pending"),
    Probe(f"{_PAGED}.clear", "reset", kv.clear, "flushes of the cache"),
    Probe(f"{_BASE}.free_segment", "free", kv.free_segment, _BACK),
    Probe(f"{_BASE}.free_group_begin", "free (group)", kv.free_group_begin, "frees that are pending"),
    Probe(f"{_BASE}.free_group_end", "flush", kv.free_group_end, "frees that are pending"),
)
"""Token slots, page 1 and above."""

REQUEST_ROWS: tuple[Probe, ...] = (
    Probe(f"{_ROWS}.alloc", "alloc, reuse", rows.alloc, "who holds rows"),
    Probe(f"{_ROWS}.alloc_rows", "alloc", beams.alloc_rows, "the rows of beams"),
    Probe(f"{_ROWS}.free_rows", "free", beams.free_rows, "the rows of beams"),
    Probe(f"{_ROWS}.free", "free", rows.free, "who gives rows back"),
    Probe(f"{_ROWS}.clear", "reset", rows.clear, "flushes of the cache"),
    Probe(f"{_ROWS}.write", "own, row_write", rows.write, "what rows map, and who owns it"),
    Probe(f"{_ALLOCATION}:write_cache_indices", "own, row_write", rows.write_cache_indices, "what prefill rows map"),
    Probe(
        f"{_ALLOCATION}:alloc_for_decode",
        "row_write",
        rows.alloc_for_decode,
        "what decode rows map, on a device",
        needed=False,
    ),
)

EVICTED = Probe(f"{_TREE}._apply_eviction_result", "evict", tree.evict, "what is evicted")
EVICTED_UP_TO_0_5_22 = Probe(f"{_TREE}._free_values", "evict", tree.evict, "what is evicted")
"""What the other one does with slots; called at the same six points."""

PREFIX_CACHE: tuple[Probe, ...] = (
    # both cores are behind this one class
    Probe(f"{_TREE}.checkpoint_into_tree", "insert, kv_record", tree.checkpoint, _TREES),
    Probe(f"{_TREE}.insert", "insert", tree.insert, _TREES),
    Probe(f"{_TREE}.path_device_indices", "insert, attach", tree.path_device_indices, _TREES),
    Probe(f"{_TREE}.prefix_device_indices", "match, attach", tree.prefix_device_indices, "who uses cached slots"),
    Probe(f"{_TREE}._evict", "evict", tree.evict, "what is evicted"),
    EVICTED,
    Probe(f"{_TREE}.inc_lock_ref", "lock", tree.inc_lock_ref, "locks"),
    Probe(f"{_TREE}.dec_lock_ref", "unlock", tree.dec_lock_ref, "locks"),
    Probe(
        f"{_ADDER}._commit_prefill_admission",
        "lock",
        tree.admit,
        "lock owners",
        needed=False,
    ),
    Probe(f"{_ADDER}.add_one_req", "lock, unlock", tree.consider, "lock owners", needed=False),
    # the older radix cache
    Probe(f"{_OLD_TREE}.checkpoint", "insert, kv_record", tree.checkpoint, _TREES, older=True),
    Probe(f"{_OLD_TREE}.insert", "insert", tree.insert, _TREES, older=True),
    Probe(f"{_OLD_TREE}.path_device_indices", "insert, attach", tree.path_device_indices, _TREES, older=True),
    Probe(
        f"{_BASE_TREE}.prefix_device_indices",
        "match, attach",
        tree.prefix_device_indices,
        "who uses cached slots",
        older=True,
    ),
    Probe(f"{_OLD_TREE}.evict", "evict", tree.evict, "what is evicted", older=True),
    Probe(f"{_OLD_TREE}.inc_lock_ref", "lock", tree.inc_lock_ref, "locks", older=True),
    Probe(f"{_OLD_TREE}.dec_lock_ref", "unlock", tree.dec_lock_ref, "locks", older=True),
)

REQUESTS: tuple[Probe, ...] = (
    Probe(f"{_SCHEDULER}._add_request_to_queue", "req_start", requests.queued, "when requests start", needed=False),
    Probe(f"{_COMMON}:release_kv_cache", "req_finish, req_abort, req_end", requests.release, "when requests end"),
    Probe("sglang.srt.managers.schedule_batch:release_req", "req_retract", requests.retract, "retractions"),
    Probe(f"{_BASE_TREE}.free_kv_row", "free", requests.free_kv_row, "whose slots are given back", needed=False),
)

ABORTED = Probe(
    f"{_SCHEDULER}.send_abort_output",
    "req_abort, req_end",
    requests.aborted_outside,
    "aborts in the queue",
    needed=False,
)
ABORTED_UP_TO_0_5_22 = Probe(
    "sglang.srt.managers.scheduler_components.output_sender:SenderWrapper.send_output",
    "req_abort, req_end",
    requests.sent,
    "aborts in the queue",
    needed=False,
)

SESSIONS: tuple[Probe, ...] = (
    Probe(f"{_SESSION}.take", "give, lock, unlock", requests.session_take, "sessions"),
    Probe(f"{_SESSION}.release_session", "req_end", requests.session_release, "sessions"),
)

LOOP: tuple[Probe, ...] = (
    Probe(
        f"{_SCHEDULER}.run_event_loop", "what is late", batches.loop, "the end of a scheduler that fails", needed=False
    ),
    Probe(f"{_SCHEDULER}.get_next_batch_to_run", "step", batches.iteration, "steps", needed=False),
    Probe(f"{_SCHEDULER}.run_batch", "capture, launch, kv_record", batches.run_batch, "what batches read"),
    Probe(
        "sglang.srt.managers.tp_worker:TpModelWorker.forward_batch_generation",
        "capture, launch",
        batches.forward,
        "on which stream batches read",
    ),
    Probe(f"{_SCHEDULER}._apply_war_barrier", "record, wait", batches.barrier, "the barrier after a forward's reads"),
    Probe(f"{_SCHEDULER}.process_batch_result", "done", batches.process, "when batches end"),
    Probe(f"{_SCHEDULER}.on_idle", "idle", batches.on_idle, "leaks at idle", needed=False),
    Probe(f"{_SCHEDULER}.is_fully_idle", "idle", batches.fully_idle, "leaks at idle", needed=False),
    Probe(
        "sglang.srt.managers.scheduler_components.invariant_checker:SchedulerInvariantChecker._check_pool_invariant",
        "count",
        batches.totals,
        "the engine's totals",
        needed=False,
    ),
)

PROBES: tuple[Probe, ...] = (
    *TOKEN_SLOTS,
    *REQUEST_ROWS,
    *PREFIX_CACHE,
    *REQUESTS,
    ABORTED,
    *SESSIONS,
    *LOOP,
    *WINDOWED,
    *STATEFUL,
    *BEAMS,
    *SPECULATIVE,
    *HOSTED,
    *DECODING,
    *PREFILLING,
)


def stream_probes(device: str) -> tuple[Probe, ...]:
    """The places of torch's streams and events for a kind of device. On a CPU they do nothing: the order that the code
    asks for is what counts."""
    module = f"torch.{device}"
    events = f"{module}:Event" if device == "cpu" else f"{module}.streams:Event"
    streams = f"{module}:Stream" if device == "cpu" else f"{module}.streams:Stream"
    order = "order between streams"
    return (
        Probe(f"{streams}.wait_stream", "record, wait", batches.wait_stream, order),
        Probe(f"{streams}.wait_event", "wait", batches.wait_event, order),
        Probe(f"{events}.wait", "wait", batches.event_wait, order),
        Probe(f"{events}.record", "record", batches.record_event, order),
        Probe(f"{events}.synchronize", "sync", batches.synchronize_event, order),
    )
