"""Findings as an engine would give them, one for every kind, for the tests of the reporters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvsan.findings import KINDS, Access, Failure, Finding, Frame, Held, Joined, PoolTotals, Report, SlotMap

SECOND = 10**9


def frames(*calls: tuple[str, int, str]) -> tuple[Frame, ...]:
    return tuple(Frame(f"reference_engine/{file}", line, function) for file, line, function in calls)


WRITE_STACK = frames(
    ("allocation.py", 88, "write_cache_indices"),
    ("batch.py", 141, "prepare_for_extend"),
    ("scheduler.py", 203, "next_batch"),
)
CAPTURE_STACK = frames(("forward.py", 52, "capture_rows"), ("scheduler.py", 231, "launch"))
NEXT = frames(("scheduler.py", 203, "next_batch"))
STASH = frames(("scheduler.py", 188, "stash_chunk"))
FINISH = frames(("scheduler.py", 312, "process_prefill_result"), ("scheduler.py", 290, "run"))
EXTEND = frames(("allocation.py", 61, "alloc_for_extend"))
RADIX = frames(("radix.py", 140, "insert"), ("scheduler.py", 301, "cache_finished"))

RACE = Finding(
    kind="race",
    at=3412,
    object="req_to_token:1",
    pool="req_to_token",
    slots=(1,),
    owner="b7",
    holder="b7",
    present=Access(
        "write", 3412, "schedule", "b7", "req_to_token", (1,), (0, 128), "12", step=18, stack=WRITE_STACK
    ),
    earlier=Access(
        "read", 3377, "forward", "a3", "req_to_token", (1,), (0, 256), "11", step=17, stack=CAPTURE_STACK,
        note="in flight",
    ),
    provenance=(
        Access("alloc", 3301, owner="a3", stack=NEXT),
        Access("free", 3398, owner="a3", stack=STASH, note="not finished"),
        Access("alloc", 3401, owner="b7", stack=NEXT),
    ),
    generation=8,
    slot_map=SlotMap("req_to_token", 0, "#!oo.o.."),
    why='"a3" gave its row back while batch 11 still reads it, and "b7" was handed the row and wrote to it. '
    "Whether tokens go wrong depends on timing; the fault does not.",
    missing="Nothing makes schedule wait for forward: between event 3377 and event 3412 there is no record/wait or "
    "sync.",
    hint="keep the row until the request's last chunk, or make schedule wait for the forward's shared-read event "
    "before it writes.",
    token="race:allocation.write_cache_indices:forward.capture_rows",
    count=3,
    joined=(Joined("stale_capture", 3420, "kv", (5, 6, 7), "b7"),),
    pid=4711,
    process="scheduler",
    rank=0,
    file="spool/4711.kvt",
)  # fmt: skip

LEAK = Finding(
    kind="leak",
    at=3500,
    object="req_to_token:3",
    pool="req_to_token",
    slots=(3,),
    owner="c9",
    holder="c9",
    present=Access("end", 3500, owner="c9", step=22, time_ns=9 * SECOND, stack=FINISH, note="by abort"),
    held=(
        Held("kv", (40, 41, 42, 43, 44), 5, 4096, Access("alloc", 3441, stack=EXTEND, time_ns=5 * SECOND), "row 3"),
        Held("req_to_token", (3,), 1, 8, Access("alloc", 3440, owner="c9", stack=NEXT, time_ns=49 * SECOND // 10)),
    ),
    generation=2,
    why='"c9" was ended by scheduler.py:312 process_prefill_result, without release_kv_cache.',
    token="leak:scheduler.next_batch:end",
    pid=4711,
    process="scheduler",
    rank=0,
    file="spool/4711.kvt",
)

TOTALS = (
    PoolTotals("req_to_token", "row", 8, 1, 0, 7, 0, 0, 0, 0, 1, 3901, {"leak": 1, "race": 1}),
    PoolTotals("kv", "kv", 4096, 1, 0, 3771, 0, 0, 320, 0, 5, 21442),
)

REPORT = Report(findings=(RACE, LEAK), totals=TOTALS, processes=3, events=25343)
CLEAN = Report(totals=tuple(replace(total, leaked=0, findings={}) for total in TOTALS), processes=3, events=25343)
TROUBLED = Report(
    findings=(LEAK,),
    totals=(*TOTALS, PoolTotals("mamba", "state", 1024, 1, 1, 1000, 3, 20, 0, 0, 0, 77)),
    failures=(
        Failure(
            "detector namespace_mixup", "KeyError: 'node-12'",
            "this detector is off for the rest of process 4712; report it with the trace that --record keeps.", 4712,
        ),
    ),
    notes=("child 4713 (python -E -S worker.py) could not be entered: it was started without site packages.",),
    suppressed=2,
    processes=3,
)  # fmt: skip


def _kv(what: str, at: int, owner: str | None, *slots: int, pool: str = "kv", **more: Any) -> Access:
    return replace(Access(what, at, owner=owner, pool=pool, slots=slots), **more)


def _finding(kind: str, place: str, present: Access | None, earlier: Access | None = None, **more: Any) -> Finding:
    assert present is not None
    base = Finding(
        kind, present.at, place, present.pool, present.slots, present.owner, present=present, earlier=earlier,
        token=f"{kind}:{place}", file=f"traces/{kind}.jsonl",
    )  # fmt: skip
    return replace(base, **more)


EVERY: dict[str, Finding] = {
    finding.kind: finding
    for finding in (
        _finding(
            "reserved_slot", "mamba:0", _kv("alloc", 2, "r1", 0, pool="mamba", stack=EXTEND),
            _kv("pool", 0, None, pool="mamba"), slot_map=SlotMap("mamba", 0, "!...."),
        ),
        _finding(
            "double_alloc", "kv:5", _kv("alloc", 9, "b", 5, 6, stack=EXTEND), _kv("alloc", 4, "a", 5, 6, stack=EXTEND),
            holder="a", generation=3,
        ),
        _finding("invalid_free", "kv:4096", _kv("free", 11, "a", 4096, 4097, stack=FINISH)),
        _finding(
            "double_free", "host:2", _kv("free", 6, "prefetch:p1", 2, 3, 9, pool="host", stack=FINISH),
            _kv("free", 5, "prefetch:p1", 2, 3, pool="host", stack=STASH),
            provenance=(_kv("alloc", 1, "prefetch:p1", 2, 3), _kv("free", 5, "prefetch:p1", 2, 3, stack=STASH)),
            generation=1,
        ),
        _finding(
            "page_double_free", "kv:page2", _kv("free", 6, "a", 36, 37, stack=FINISH),
            _kv("free", 5, "a", 32, 33, 34, 35, stack=FINISH), slot_map=SlotMap("kv", 0, "." * 32 + "!" * 16 + "o" * 9),
        ),
        _finding(
            "free_not_owner", "swa:3", _kv("free", 11, "A", 3, pool="swa", stack=FINISH, note="through map f2s, key 1"),
            _kv("alloc", 9, "B", 3, pool="swa", stack=EXTEND), holder="B", generation=2,
        ),
        _finding(
            "free_in_flight", "kv:1", _kv("free", 4, "a", 1, 2, 3, stack=FINISH),
            _kv("xfer_begin", 3, "a", 1, 2, 3, agent="nic", note="remote write"),
        ),
        _finding(
            "evict_locked", "node:n4", _kv("evict", 20, None, 8, 9, node="n4", stack=RADIX),
            Access("lock", 14, owner="a", node="n4", stack=NEXT), node="n4",
        ),
        _finding(
            "stale_capture", "kv:5", _kv("free", 15, "a", 5, stack=RADIX),
            Access("capture", 12, owner="a", pool="row", slots=(1,), cells=(0, 6), batch="b2", stack=CAPTURE_STACK),
        ),
        _finding(
            "alias", "kv:8", _kv("insert", 9, "a", 8, 9, 10, 11, node="n2", stack=RADIX),
            _kv("insert", 6, "a", 8, 9, 10, 11, node="n1", stack=RADIX),
            provenance=(_kv("alloc", 2, "a", stack=EXTEND), _kv("insert", 6, "a", node="n1", stack=RADIX)),
        ),
        _finding(
            "orphan", "kv:5", Access("write", 8, owner="session:s1", pool="row", slots=(1,), cells=(3, 6)),
            _kv("alloc", 3, "session:s1", 5, stack=EXTEND), pool="kv", slots=(5,),
        ),
        _finding(
            "stale_row", "row:1", _kv("reuse", 4, "a", 1, pool="row", stack=NEXT),
            _kv("free", 3, "a", 1, pool="row", stack=FINISH),
        ),
        _finding(
            "use_after_free", "kv:7", _kv("read", 30, "a", 7, agent="fwd", batch="b3"),
            _kv("free", 22, "a", 7, stack=FINISH), generation=4,
        ),
        RACE,
        _finding(
            "uninit_read", "mamba:2", _kv("read", 9, "a", 2, pool="mamba", agent="fwd", batch="b1"),
            _kv("alloc", 7, "a", 2, pool="mamba", stack=EXTEND),
        ),
        LEAK,
        _finding(
            "lock_leak", "node:n4", Access("end", 40, owner="a", step=7, stack=FINISH),
            Access("lock", 14, owner="a", node="n4", stack=NEXT), node="n4",
        ),
        _finding(
            "lock_underflow", "node:n4", Access("unlock", 41, owner="a", node="n4", stack=FINISH),
            Access("unlock", 40, owner="a", node="n4", stack=FINISH), node="n4",
        ),
        _finding(
            "count_mismatch", "kv", Access("count", 50, pool="kv", step=9),
            extra={"available": "96 by the engine, 80 by the shadow", "sum": "16 more than the pool holds"},
        ),
        _finding(
            "record_contract", "owner:a", Access("record", 33, owner="a", stack=NEXT),
            extra={"allocated": "17", "cells": "16"},
        ),
        _finding(
            "namespace_mixup", "node:n9", Access("match", 12, owner="b", node="n9", note='domain "lora-2"'),
            Access("insert", 8, owner="a", node="n9", note='domain "lora-1"'), node="n9",
        ),
        _finding("rank_divergence", "kv", _kv("alloc", 5, "a", 5, 6), _kv("alloc", 5, "a", 7, 8), rank=1),
    )
}  # fmt: skip

assert set(EVERY) == set(KINDS)
