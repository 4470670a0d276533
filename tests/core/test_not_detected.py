"""What is not detected, or not exactly, and where the limit ends. Each documented limit is shown, and only misses.

A limit that disappears fails here, so that the documents follow.
"""

from __future__ import annotations

import numpy as np
import pytest
from oracle.judge import judge

from kvsan import batches
from kvsan.encoding import GENERATION_MASK, GENERATION_ONE
from kvsan.events import Alloc, Capture, Free
from kvsan.tracker import Tracker

from .feeding import KV, ROW, Dict, facts, feed, indexed, pool


def take(tracker: Tracker, *events: Alloc | Free | Capture) -> None:
    for event in events:
        event.at = tracker.state.events
        tracker.take(event)


def test_a_row_that_maps_two_pools_at_a_time() -> None:
    """Cells of one pool are forgotten where the row goes on with another: the orphan among them is not named."""
    events = indexed([
        ROW, KV, pool("other", "kv", 16),
        {"op": "alloc", "pool": "row", "slots": [1], "owner": "A"},
        {"op": "alloc", "pool": "kv", "slots": [3], "owner": "A"},
        {"op": "alloc", "pool": "other", "slots": [3, 4], "owner": "A"},
        {"op": "row_write", "pool": "row", "row": 1, "pos": 0, "into": "kv", "slots": [3], "owner": "A"},
        {"op": "row_write", "pool": "row", "row": 1, "pos": 1, "into": "other", "slots": [3], "owner": "A"},
        {"op": "row_write", "pool": "row", "row": 1, "pos": 0, "into": "other", "slots": [4], "owner": "A"},
    ])  # fmt: skip
    assert [(verdict.kind, verdict.at) for verdict in judge(events)] == [("orphan", 8)]
    assert facts(feed(events).findings) == []


def test_a_row_that_changes_its_pool_cell_by_cell_is_judged() -> None:
    events = indexed([
        ROW, KV, pool("other", "kv", 16),
        {"op": "alloc", "pool": "row", "slots": [1], "owner": "A"},
        {"op": "alloc", "pool": "kv", "slots": [3], "owner": "A"},
        {"op": "alloc", "pool": "other", "slots": [3], "owner": "A"},
        {"op": "row_write", "pool": "row", "row": 1, "pos": 0, "into": "kv", "slots": [3], "owner": "A"},
        {"op": "row_write", "pool": "row", "row": 1, "pos": 0, "into": "other", "slots": [3], "owner": "A"},
    ])  # fmt: skip
    assert [(verdict.kind, verdict.at) for verdict in judge(events)] == [("orphan", 7)]
    assert facts(feed(events).findings) == [("orphan", 7, "kv:3")]


def life(tenancies: int) -> Tracker:
    """A cell is written, then its slot goes through so many further tenancies, then the row is captured."""
    tracker = feed([
        ROW, KV,
        {"op": "alloc", "pool": "row", "slots": [1], "owner": "A"},
        {"op": "alloc", "pool": "kv", "slots": [3], "owner": "A"},
        {"op": "row_write", "pool": "row", "row": 1, "pos": 0, "into": "kv", "slots": [3], "owner": "A"},
    ])  # fmt: skip
    shadow = tracker.state.pools["kv"]
    take(tracker, Free(pool="kv", slots=np.array([3]), owner="A"))
    # All but one of the tenancies in one stroke: nothing of a tenancy that is over stays but its number.
    shadow.tenancy[3] = (int(shadow.tenancy[3]) + (tenancies - 1) * GENERATION_ONE) & (2**63 - 1)
    take(tracker, Alloc(pool="kv", slots=np.array([3]), owner="B"))
    take(tracker, Capture(batch="b", pool="row", row=1, upto=1, owner="A"))
    return tracker


@pytest.mark.parametrize("tenancies", [1, 2, 2**22, 2**23 - 1, 2**23 + 1, 2**24 - 1])
def test_a_stale_cell_is_known_by_its_generation(tenancies: int) -> None:
    assert facts(life(tenancies).findings) == [("use_after_free", 7, "kv:3")]


@pytest.mark.parametrize("tenancies", [2**23, 2**24])
def test_a_multiple_of_8388608_tenancies_later_a_stale_cell_looks_fresh(tenancies: int) -> None:
    assert GENERATION_MASK // GENERATION_ONE + 1 == 2**23
    assert facts(life(tenancies).findings) == []


def test_a_host_thread_that_appears_late_misses_what_runs_have_merged() -> None:
    """Writes that every thread so far has seen are one run; one of them that the newcomer has not seen is missed."""
    write = {"op": "row_write", "agent": "sched", "pool": "row", "row": 1, "into": "kv", "owner": "A"}
    events: list[Dict] = [
        ROW, KV,
        {"op": "alloc", "pool": "row", "slots": [1], "owner": "A"},
        {"op": "alloc", "pool": "kv", "slots": [1, 2, 3, 4], "owner": "A"},
        {**write, "pos": 0, "slots": [1]},
        {"op": "record", "agent": "sched", "event": "e"},
        {**write, "pos": 1, "slots": [2]},
        {**write, "pos": 2, "slots": [3]},
        {"op": "sync", "on": "sched"},
        {**write, "pos": 3, "slots": [4]},
        {"op": "wait", "agent": "host:late", "event": "e"},
    ]  # fmt: skip
    capture = {"op": "capture", "agent": "host:late", "batch": "b", "pool": "row", "row": 1, "owner": "A"}
    seen = indexed([*events, {**capture, "from": 0, "upto": 1}])
    unseen = indexed([*events, {**capture, "from": 1, "upto": 2}])
    fresh = indexed([*events, {**capture, "from": 3, "upto": 4}])
    assert [verdict.kind for verdict in judge(seen)] == []
    assert facts(feed(seen).findings) == [], "no false alarm"
    assert [(verdict.kind, verdict.at) for verdict in judge(unseen)] == [("race", 11)]
    assert facts(feed(unseen).findings) == [], "the limit"
    assert facts(feed(fresh).findings) == [("race", 11, "row:1")], "what is not merged is exact"
    known = indexed([*events[:4], {"op": "step", "agent": "host:late"}, *events[4:], {**capture, "from": 1, "upto": 2}])
    assert facts(feed(known).findings) == [("race", 12, "row:1")], "so is what a thread does that appeared before"


@pytest.mark.parametrize("readers", [1, 2, 3, 6])
def test_readers_past_the_two_dedicated_ones_are_exact_all_the_same(readers: int) -> None:
    names = [f"stream{number}" for number in range(readers)]
    for late in names:
        events: list[Dict] = [KV, {"op": "alloc", "pool": "kv", "slots": [1, 2], "owner": "A"}]
        for name in names:
            events.append({"op": "read", "agent": name, "pool": "kv", "slots": [1, 2], "owner": "A"})
            if name != late:
                events.append({"op": "sync", "on": name})
        events.append({"op": "write", "pool": "kv", "slots": [2], "owner": "A"})
        (finding,) = feed(events).findings
        assert facts([finding]) == [("race", len(events) - 1, "kv:2")]
        assert finding.earlier is not None and finding.earlier.agent == late


def test_captures_of_the_oldest_batches_are_forgotten_when_a_thousand_others_are_outstanding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of an engine that never says that a batch is done, and never waits for one."""
    monkeypatch.setattr(batches, "KEPT_BATCHES", 8)

    def found(others: int) -> list[tuple[str, int, str]]:
        events: list[Dict] = [
            ROW, KV,
            {"op": "alloc", "pool": "row", "slots": [1], "owner": "A"},
            {"op": "alloc", "pool": "kv", "slots": [1], "owner": "A"},
            {"op": "row_write", "pool": "row", "row": 1, "pos": 0, "into": "kv", "slots": [1], "owner": "A"},
            {"op": "capture", "agent": "fwd", "batch": "first", "pool": "row", "row": 1, "upto": 1, "owner": "A"},
            *({"op": "launch", "agent": "fwd", "batch": f"b{number}"} for number in range(others)),
            {"op": "free", "pool": "kv", "slots": [1], "owner": "A"},
        ]  # fmt: skip
        tracker = feed(events)
        assert tracker.state.batches.dropped == (others > 7)
        return facts(tracker.findings)

    assert found(7) == [("stale_capture", 13, "kv:1")]
    assert found(8) == []


def test_what_reserved_slots_hold_is_nobodys_race() -> None:
    """Padding lanes may read and write them in any order."""
    events: list[Dict] = [KV, {"op": "write", "agent": "fwd", "pool": "kv", "slots": [0]},
                          {"op": "read", "agent": "copy", "pool": "kv", "slots": [0]}]  # fmt: skip
    assert facts(feed(events).findings) == []


def test_a_lower_level_does_not_see_data() -> None:
    events: list[Dict] = [
        KV, {"op": "alloc", "pool": "kv", "slots": [1], "owner": "A"},
        {"op": "write", "agent": "fwd", "pool": "kv", "slots": [1], "owner": "A"},
        {"op": "read", "agent": "copy", "pool": "kv", "slots": [1], "owner": "A"},
        {"op": "read", "agent": "copy", "pool": "kv", "slots": [2], "owner": "A"},
        {"op": "free", "pool": "kv", "slots": [3], "owner": "A"},
    ]  # fmt: skip
    assert facts(feed(events, "full").findings) == [
        ("race", 3, "kv:1"),
        ("use_after_free", 4, "kv:2"),
        ("invalid_free", 5, "kv:3"),
    ]
    assert facts(feed(events, "slots").findings) == [("invalid_free", 5, "kv:3")]
    assert facts(feed(events, "rows").findings) == []


def test_a_transfer_orders_at_every_level() -> None:
    """Though its slots are not watched at `rows`, its end says what came before it."""
    events: list[Dict] = [
        ROW, KV,
        {"op": "alloc", "pool": "row", "slots": [1], "owner": "A"},
        {"op": "alloc", "pool": "kv", "slots": [1], "owner": "A"},
        {"op": "read", "agent": "nic", "pool": "row", "slots": [1], "owner": "A"},
        {"op": "xfer_begin", "agent": "nic", "xfer": "x", "access": "read", "pool": "kv", "slots": [1], "owner": "A"},
        {"op": "xfer_end", "xfer": "x"},
        {"op": "row_write", "pool": "row", "row": 1, "pos": 0, "into": "kv", "slots": [1], "owner": "A"},
    ]  # fmt: skip
    for level in ("rows", "slots", "full"):
        assert facts(feed(events, level).findings) == []
        assert facts(feed(events[:6] + events[7:], level).findings) == [("race", 6, "row:1")]


@pytest.mark.parametrize("access", ["read", "write"])
def test_a_transfer_of_a_row_lasts_until_its_end(access: str) -> None:
    begin = {
        "op": "xfer_begin",
        "agent": "fwd",
        "xfer": "x",
        "access": access,
        "pool": "row",
        "slots": [1],
        "owner": "A",
    }
    write = {
        "op": "row_write",
        "agent": "fwd",
        "pool": "row",
        "row": 1,
        "pos": 0,
        "into": "kv",
        "slots": [1],
        "owner": "A",
    }
    held: list[Dict] = [
        ROW, KV, {"op": "alloc", "pool": "row", "slots": [1], "owner": "A"},
        {"op": "alloc", "pool": "kv", "slots": [1], "owner": "A"},
    ]  # fmt: skip
    for level in ("rows", "slots", "full"):
        (finding,) = feed([*held, begin, write], level).findings
        assert facts([finding]) == [("race", 5, "row:1")]
        assert finding.earlier is not None and (finding.earlier.at, finding.earlier.what) == (4, access)
        assert facts(feed([*held, begin, {"op": "xfer_end", "xfer": "x"}, write], level).findings) == []
        other = {**write, "agent": "host:b"}
        found = facts(feed([*held, begin, {"op": "xfer_end", "xfer": "x"}, other], level).findings)
        assert found == [("race", 6, "row:1")], "only the thread that saw it end is ordered"
