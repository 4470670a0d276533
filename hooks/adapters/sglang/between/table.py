"""The tables of 0.5.16 to 0.5.21: the present one with other places for publications, admissions and sessions.

| since | what a request holds | prefix cache | publications at the end | token slots go back |
| --- | --- | --- | --- | --- |
| 0.5.16 | its own fields | `RadixCache` | `cache_finished_req` | one by one |
| 0.5.17 | the same | the same | the same | in segments |
| 0.5.19 | its record | `UnifiedRadixCache` | the same | the same |
| 0.5.20 | the same | the same | the same | by pages, too |
| 0.5.21 | the same | the same | `insert_req` | the same |

Sliding windows, recurrent states, the host tier and decode servers are not in them: what a match or an insert says
there is less than what was taken over.
"""

from __future__ import annotations

from ...probes import Probe
from .. import requests, table
from .. import tree as present_tree
from ..older import tree as python_tree
from . import sessions, tree

_TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_PYTHON_TREE = "sglang.srt.mem_cache.radix_cache:RadixCache"
_SESSION = "sglang.srt.session.streaming_session:StreamingSession"
_ADDER = "sglang.srt.managers.schedule_policy:PrefillAdder"

_TREES = "what the prefix cache holds"
_USERS = "who uses cached slots"


def _cache(where: str, at_the_end: str) -> tuple[Probe, ...]:
    return (
        Probe(f"{where}.{at_the_end}", "insert", tree.publish, _TREES),
        Probe(f"{where}.cache_unfinished_req", "insert, attach, kv_record", tree.publish_unfinished, _TREES),
        Probe(f"{where}.insert", "insert", tree.insert, _TREES),
        Probe(f"{where}.match_prefix", "attach", tree.match_prefix, _USERS),
        Probe(f"{_ADDER}.add_one_req", "match, attach, lock, unlock", tree.consider, _USERS),
    )


_NODES_BY_NUMBER = (
    Probe(f"{_TREE}._evict", "evict", present_tree.evict, "what is evicted"),
    table.EVICTED_UP_TO_0_5_22,
    Probe(f"{_TREE}.inc_lock_ref", "lock", tree.inc_lock_ref, "locks"),
    Probe(f"{_TREE}.dec_lock_ref", "unlock", tree.dec_lock_ref, "locks"),
)
_NODES_IN_PYTHON = (
    Probe(f"{_PYTHON_TREE}._split_node", "split", python_tree.split, _TREES),
    Probe(f"{_PYTHON_TREE}.evict", "evict", present_tree.evict, "what is evicted"),
    Probe(f"{_PYTHON_TREE}.inc_lock_ref", "lock", python_tree.inc_lock_ref, "locks"),
    Probe(f"{_PYTHON_TREE}.dec_lock_ref", "unlock", python_tree.dec_lock_ref, "locks"),
)
_SESSIONS = (
    Probe(f"{_SESSION}.try_cache_finished_req", "give, lock, unlock", sessions.keep, "sessions"),
    Probe(f"{_SESSION}.release_session", "req_end", requests.session_release, "sessions"),
)

_SINCE_0_5_19 = (
    *table.TOKEN_SLOTS,
    *table.REQUEST_ROWS,
    *table.REQUESTS,
    table.ABORTED_UP_TO_0_5_22,
    *table.LOOP,
    *table.BEAMS,
    *_NODES_BY_NUMBER,
    *_SESSIONS,
)


def _without(probes: tuple[Probe, ...], *places: str) -> tuple[Probe, ...]:
    return tuple(each for each in probes if not each.where.endswith(places))


SINCE_0_5_21: tuple[Probe, ...] = (*_SINCE_0_5_19, *_cache(_TREE, "insert_req"))
SINCE_0_5_20: tuple[Probe, ...] = (*_SINCE_0_5_19, *_cache(_TREE, "cache_finished_req"))
SINCE_0_5_19: tuple[Probe, ...] = _without(SINCE_0_5_20, ".free_page_ids")

SINCE_0_5_17: tuple[Probe, ...] = _without(
    (
        *table.TOKEN_SLOTS,
        *table.REQUEST_ROWS,
        *table.REQUESTS,
        table.ABORTED_UP_TO_0_5_22,
        *table.LOOP,
        *_NODES_IN_PYTHON,
        *_cache(_PYTHON_TREE, "cache_finished_req"),
    ),
    ".free_page_ids",
    ".alloc_rows",
    ".free_rows",
    ".free_kv_row",
)
SINCE_0_5_16: tuple[Probe, ...] = _without(
    SINCE_0_5_17,
    ".free_segment",
    "PagedTokenToKVPoolAllocator.free_group_begin",
    "PagedTokenToKVPoolAllocator.free_group_end",
)
