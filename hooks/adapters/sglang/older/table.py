"""The tables of 0.5.4 to 0.5.15: what all of these releases have in common, and what each has alone.

| since | rows | release |
| --- | --- | --- |
| 0.5.4 | `alloc(n)`, `free(row)`; another row for every chunk | `cache_finished_req` |
| 0.5.6 | the same | `release_kv_cache` |
| 0.5.9 | `alloc(reqs)`, `free(req)`; kept between chunks | the same |
| 0.5.11 | the same, numbered from 1 | the same |

From 0.5.13 on other classes take the results in and are idle, and retractions go through a function; 0.5.14 has the
barrier after a forward's reads in a method of its own, and 0.5.15 a cache that closes sessions.
"""

from __future__ import annotations

from ...probes import Probe
from .. import batches, kv
from .. import requests as present_requests
from .. import rows as present_rows
from .. import tree as present_tree
from . import loop, requests, rows, tree

_ALLOCATOR = "sglang.srt.mem_cache.allocator"
_TOKEN = f"{_ALLOCATOR}:TokenToKVPoolAllocator"
_PAGED = f"{_ALLOCATOR}:PagedTokenToKVPoolAllocator"
_BASE = f"{_ALLOCATOR}:BaseTokenToKVPoolAllocator"
_ROWS = "sglang.srt.mem_cache.memory_pool:ReqToTokenPool"
_COMMON = "sglang.srt.mem_cache.common"
_TREE = "sglang.srt.mem_cache.radix_cache:RadixCache"
_NO_TREE = "sglang.srt.mem_cache.chunk_cache:ChunkCache"
_ADDER = "sglang.srt.managers.schedule_policy:PrefillAdder"
_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"
_BATCH = "sglang.srt.managers.schedule_batch"
_WORKER = "sglang.srt.managers.tp_worker"

_SLOTS = "who holds token slots"
_BACK = "who gives token slots back"
_TREES = "what the prefix cache holds"
_MAPS = "what rows map, and who owns it"
_ENDS = "when requests end"


_ALL: tuple[Probe, ...] = (
    # token slots, page 1 and above
    Probe(f"{_TOKEN}.alloc", "alloc", kv.alloc, _SLOTS),
    Probe(f"{_TOKEN}.free", "free", kv.free, _BACK),
    Probe(f"{_TOKEN}.clear", "reset", kv.clear, "flushes of the cache"),
    Probe(f"{_PAGED}.alloc", "alloc", kv.alloc, _SLOTS),
    Probe(f"{_PAGED}.alloc_extend", "alloc", kv.alloc, _SLOTS),
    Probe(f"{_PAGED}.alloc_decode", "alloc", kv.alloc, _SLOTS),
    Probe(f"{_PAGED}.free", "free", kv.free, _BACK),
    Probe(f"{_PAGED}.clear", "reset", kv.clear, "flushes of the cache"),
    Probe(f"{_BASE}.free_group_begin", "free (group)", kv.free_group_begin, "frees that are pending"),
    Probe(f"{_BASE}.free_group_end", "flush", kv.free_group_end, "frees that are pending"),
    # rows
    Probe(f"{_ROWS}.clear", "reset", rows.clear, "flushes of the cache"),
    Probe(f"{_ROWS}.write", "own, row_write", rows.write, _MAPS),
    Probe(f"{_COMMON}:write_cache_indices", "own, row_write", rows.write_cache_indices, _MAPS),
    Probe(f"{_COMMON}:alloc_for_decode", "row_write", present_rows.alloc_for_decode, _MAPS),
    # the prefix cache
    Probe(f"{_TREE}.cache_unfinished_req", "insert, attach", tree.publish, _TREES),
    Probe(f"{_TREE}.insert", "insert", tree.insert, _TREES),
    Probe(f"{_TREE}.match_prefix", "attach", tree.match_prefix, "who uses cached slots"),
    Probe(f"{_TREE}._split_node", "split", tree.split, _TREES),
    Probe(f"{_TREE}.evict", "evict", present_tree.evict, "what is evicted"),
    Probe(f"{_TREE}.inc_lock_ref", "lock", tree.inc_lock_ref, "locks"),
    Probe(f"{_TREE}.dec_lock_ref", "unlock", tree.dec_lock_ref, "locks"),
    Probe(f"{_ADDER}.add_one_req", "match, attach", tree.consider, "who uses cached slots, and lock owners"),
    # the lives of requests
    Probe(f"{_SCHEDULER}._add_request_to_queue", "req_start", requests.queued, "when requests start", needed=False),
    Probe(f"{_SCHEDULER}.abort_request", "req_abort, req_end", requests.abort, "aborts in the queue", needed=False),
    # batches and the loop
    Probe(f"{_SCHEDULER}.get_next_batch_to_run", "step", batches.iteration, "steps", needed=False),
    Probe(f"{_SCHEDULER}.run_batch", "capture, launch", loop.run_batch, "what batches read"),
    Probe(f"{_SCHEDULER}.process_batch_result", "done, req_end", loop.process, _ENDS),
    Probe(
        f"{_WORKER}:TpModelWorker.forward_batch_generation",
        "capture, launch",
        loop.forward,
        "on which stream batches read",
    ),
)


def _of_scheduler(results: str, idle: str) -> tuple[Probe, ...]:
    """What these releases moved: `results` is the class that takes results in, `idle` what is called when there is no
    batch to run."""
    return (
        Probe(f"{results}.process_batch_result_prefill", "free", loop.results, "on whose behalf slots are given back"),
        Probe(f"{results}.process_batch_result_decode", "free", loop.results, "on whose behalf slots are given back"),
        Probe(idle, "idle, count", loop.idle, "leaks at idle, the engine's totals", needed=False),
    )


_RESULTS = "sglang.srt.managers.scheduler_output_processor_mixin:SchedulerOutputProcessorMixin"
_CHECKER = "sglang.srt.managers.scheduler_runtime_checker_mixin:SchedulerRuntimeCheckerMixin"

_RETRACTION = Probe(f"{_BATCH}:ScheduleBatch.release_req", "req_retract", requests.retract, "retractions")

_UP_TO_0_5_10 = (*_ALL, _RETRACTION, *_of_scheduler(_RESULTS, f"{_CHECKER}.self_check_during_idle"))

_ROWS_BY_NUMBER = (
    Probe(f"{_COMMON}:alloc_req_slots", "alloc", rows.alloc_req_slots, "who holds rows"),
    Probe(f"{_ROWS}.alloc", "alloc", rows.alloc, "who holds rows"),
    Probe(f"{_ROWS}.free", "free", rows.free, "who gives rows back"),
)

_RELEASE = (
    Probe(f"{_COMMON}:release_kv_cache", "req_finish, req_abort, free", requests.release_kv_cache, _ENDS),
    Probe(f"{_TREE}.cache_finished_req", "insert", tree.publish, _TREES),
)

SINCE_0_5_4: tuple[Probe, ...] = (
    *_UP_TO_0_5_10,
    *_ROWS_BY_NUMBER,
    Probe(f"{_TREE}.cache_finished_req", "insert, req_finish, req_abort, free", requests.finish, _ENDS),
    Probe(f"{_NO_TREE}.cache_finished_req", "req_finish, req_abort, free", requests.finish, _ENDS),
)

SINCE_0_5_6: tuple[Probe, ...] = (*_UP_TO_0_5_10, *_ROWS_BY_NUMBER, *_RELEASE)

_ROWS_BY_REQUEST = (
    Probe(f"{_ROWS}.alloc", "alloc, reuse", rows.alloc_reqs, "who holds rows"),
    Probe(f"{_ROWS}.free", "free", rows.free, "who gives rows back"),
)

SINCE_0_5_9: tuple[Probe, ...] = (*_UP_TO_0_5_10, *_ROWS_BY_REQUEST, *_RELEASE)

SINCE_0_5_11: tuple[Probe, ...] = (
    *_ALL,
    _RETRACTION,
    *_of_scheduler(_RESULTS, f"{_CHECKER}.on_idle"),
    *_ROWS_BY_REQUEST,
    *_RELEASE,
)

SINCE_0_5_13: tuple[Probe, ...] = (
    *_ALL,
    Probe(f"{_BATCH}:release_req", "req_retract", present_requests.retract, "retractions"),
    *_of_scheduler(
        "sglang.srt.managers.scheduler_components.batch_result_processor:SchedulerBatchResultProcessor",
        f"{_SCHEDULER}.on_idle",
    ),
    *_ROWS_BY_REQUEST,
    *_RELEASE,
)

SINCE_0_5_14: tuple[Probe, ...] = (
    *SINCE_0_5_13,
    Probe(f"{_SCHEDULER}._apply_war_barrier", "record, wait", batches.barrier, "the barrier after a forward's reads"),
)

SINCE_0_5_15: tuple[Probe, ...] = (
    *SINCE_0_5_14,
    Probe(
        "sglang.srt.mem_cache.session_radix_cache:SessionRadixCacheMixin.release_radix_session",
        "evict",
        present_tree.evict,
        "what the cache gives back when a session is closed",
    ),
)
