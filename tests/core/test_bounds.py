"""Nothing grows without bound, however long an engine runs and whatever it never says; and generations that wrap."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from kvsan.hooks.sanitizer import Sanitizer

from kvsan import batches, clocks, history, holders, transfers
from kvsan.encoding import GENERATION_MASK, GENERATION_ONE, WORD_MASK, generation
from kvsan.events import (
    Alloc,
    Attach,
    CacheInsert,
    Capture,
    Evict,
    Free,
    Launch,
    Lock,
    Pool,
    Record,
    ReqEnd,
    ReqFinish,
    ReqStart,
    RowWrite,
    Unlock,
    Wait,
    Write,
    XferBegin,
)
from kvsan.rules import nodeslots
from kvsan.tracker import Tracker
from kvsan.verdicts import Verdicts

from .feeding import MULTIPLIER, facts, feed, pool

CYCLES = 6000 * MULTIPLIER
"""Far beyond the limits of `small`; 40 times as many (KVSAN_SEEDS=40) pass the real ones."""
NO_SLOTS = np.empty(0, np.int64)


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


class Feeder:
    """A tracker and the index of the next event."""

    def __init__(self, level: str = "full") -> None:
        self.tracker = Tracker(level)
        self.state = self.tracker.state
        self.at = 0
        reserved = slots(0)
        self(Pool(pool="row", kind="row", size=16, reserved=reserved))
        self(Pool(pool="kv", kind="kv", size=256, reserved=reserved))
        self(Pool(pool="paged", kind="kv", size=256, page=4, reserved=slots(0, 1, 2, 3)))

    def __call__(self, event: object) -> None:
        event.at = self.at  # type: ignore[attr-defined]
        self.at += 1
        self.tracker.take(event)  # type: ignore[arg-type]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Low limits, so that few cycles reach them all."""
    monkeypatch.setattr(holders, "IDLE_HOLDERS", 1024)
    monkeypatch.setattr(holders, "ENDED_NAMES", 200)
    monkeypatch.setattr(holders, "RESTING_IDS", 200)
    monkeypatch.setattr(batches, "KEPT_BATCHES", 64)
    monkeypatch.setattr(batches, "KEPT_CAPTURES", 200)
    monkeypatch.setattr(clocks, "KEPT_EVENTS", 300)
    monkeypatch.setattr(history, "KEPT_EVENTS", 500)
    monkeypatch.setattr(transfers, "KEPT_LEASES", 50)
    monkeypatch.setattr(Verdicts, "KEPT_FINDINGS", 20)
    monkeypatch.setattr(nodeslots, "NOTED_BEYOND", 256)


def sizes(tracker: Tracker) -> dict[str, int]:
    """How much of everything is kept."""
    state = tracker.state
    rows = [row for table in state.tables.values() for row in table.all()]
    return {
        "holders by name": len(state.holders._by_name),
        "holders by id": len(state.holders._by_number),
        "resting ids": len(state.holders._returned),
        "ended names": len(state.holders._ended),
        "nodes": len(state.nodes._nodes),
        "lockers": len(state.nodes._locked_by),
        "locks": sum(len(node.locks) + len(node.locked_at) for node in state.nodes.all()),
        "batches": len(state.batches._batches),
        "captures": sum(len(batch.captures) for batch in state.batches._batches.values()),
        "launches": sum(len(batch.launches) for batch in state.batches._batches.values()),
        "captures by mapper": sum(map(len, state.batches._by_mapper.values())),
        "loose captures": len(state.batches.loose),
        "recorded events": len(state.clocks._recorded),
        "history": len(state.history._events),
        "rows": len(rows),
        "runs": sum(len(runs) for row in rows for runs in (row.writes, *row.reads.values())),
        "leases": sum(map(len, state.transfers._open.values())),
        "findings": len(state.verdicts.findings),
        "joined": sum(map(len, state.verdicts.joined.values())),
        "findings of owners": len(state.verdicts._owners),
        "findings of nodes": len(state.verdicts._nodes),
        "findings of pages": sum(len(shadow.blamed) + len(shadow.doubled) for shadow in state.by_number),
        "groups": len(state.groups),
    }  # fmt: skip


def grown(feeder: Feeder, cycles: Iterator[None], first: int, more: int) -> dict[str, tuple[int, int]]:
    """What is larger after `more` further cycles than it was after `first`. Ids rest until others need them, and owners
    that never end are trimmed, a thousand at a time."""
    for _ in range(first):
        next(cycles)
    before = sizes(feeder.tracker)
    for _ in range(more):
        next(cycles)
    after = sizes(feeder.tracker)
    slack = {"resting ids": holders.RESTING_IDS + 2100, "holders by name": holders.IDLE_HOLDERS + 1100,
             "holders by id": holders.IDLE_HOLDERS + 1100}  # fmt: skip
    return {name: (before[name], after[name]) for name in after if after[name] > max(before[name], slack.get(name, 0))}


@pytest.mark.usefixtures("small")
def test_requests_without_end() -> None:
    """Fresh names, and everything is given back: what is kept is what the limits say, not what has been."""
    feeder = Feeder()
    for number in range(CYCLES):
        owner = f"r{number}"
        slot = 1 + number % 200
        feeder(Alloc(pool="kv", slots=slots(slot, slot + 1), owner=owner))
        feeder(Free(pool="kv", slots=slots(slot, slot + 1), owner=owner))
        feeder(ReqEnd(owner=owner))
    kept = sizes(feeder.tracker)
    assert {name: count for name, count in kept.items() if count} == {
        "resting ids": holders.RESTING_IDS + 1, "ended names": holders.ENDED_NAMES, "history": history.KEPT_EVENTS,
    }  # fmt: skip
    assert feeder.state.holders._next == holders.RESTING_IDS + 2, "ids are given out again"
    assert feeder.tracker.findings == []
    assert feeder.state.pools["kv"].free == 255


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("ends", [True, False], ids=["ends", "never ends"])
@pytest.mark.parametrize("fresh", [True, False], ids=["fresh names", "one name"])
def test_batches_that_are_never_done(ends: bool, fresh: bool) -> None:
    """Rows, captures, launches and recorded events with names that never come again, or with one name for ever."""
    feeder = Feeder()

    def cycles() -> Iterator[None]:
        number = 0
        while True:
            number += 1
            owner, batch, event = f"r{number}", f"b{number if fresh else 0}", f"e{number}"
            row, slot = 1 + number % 15, 1 + 2 * (number % 100)
            feeder(ReqStart(owner=owner))
            feeder(Alloc(pool="row", slots=slots(row), owner=owner))
            feeder(Alloc(pool="kv", slots=slots(slot, slot + 1), owner=owner))
            feeder(Wait(agent="sched", event=f"e{number - 1}"))
            feeder(
                RowWrite(agent="sched", pool="row", row=row, pos=0, into="kv", slots=slots(slot, slot + 1), owner=owner)
            )
            feeder(Record(agent="sched", event=f"s{number}"))
            feeder(Wait(agent="fwd", event=f"s{number}"))
            feeder(Capture(agent="fwd", batch=batch, pool="row", row=row, upto=2, owner=owner))
            if fresh:  # each launch reads all that was captured in its name
                feeder(Launch(agent="fwd", batch=batch, owner=owner))
            feeder(Write(agent="fwd", pool="kv", slots=slots(slot + 1), owner=owner, batch=batch))
            feeder(Record(agent="fwd", event=event))
            feeder(ReqFinish(owner=owner))
            feeder(Free(pool="kv", slots=slots(slot, slot + 1), owner=owner))
            feeder(Free(pool="row", slots=slots(row), owner=owner))
            if ends:
                feeder(ReqEnd(owner=owner))
            yield

    assert grown(feeder, cycles(), 1600, 1200) == {}
    assert feeder.tracker.findings == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("named", [True, False], ids=["unlock names the owner", "unlock names nobody"])
def test_locks_of_a_shared_prefix(named: bool) -> None:
    """Every request locks the same node and one of its own, and some unlocks say nothing."""
    feeder = Feeder()
    feeder(Alloc(pool="kv", slots=slots(201, 202), owner="r"))
    feeder(CacheInsert(pool="kv", slots=slots(201, 202), owner="r", node="shared"))

    def cycles() -> Iterator[None]:
        number = 0
        while True:
            number += 1
            owner, other = f"r{number}", f"q{number}"
            for who in (owner, other):
                feeder(Lock(node="shared", owner=who))
            feeder(Lock(node=f"n{number}", owner=owner))
            feeder(Attach(pool="kv", slots=slots(201), node="shared", owner=owner))
            feeder(Unlock(node=f"n{number}", owner=owner))
            for who in (owner, other):
                feeder(Unlock(node="shared", owner=who if named else None))
            if not named or number % 2:
                feeder(ReqEnd(owner=other))
            feeder(ReqEnd(owner=owner))
            yield

    assert grown(feeder, cycles(), 1600, 1200) == {}
    assert feeder.tracker.findings == []
    assert not feeder.state.nodes.find("shared").protected  # type: ignore[union-attr]


@pytest.mark.usefixtures("small")
def test_nodes_that_come_and_go() -> None:
    feeder = Feeder()

    def cycles() -> Iterator[None]:
        number = 0
        while True:
            number += 1
            owner, page = f"r{number}", 4 + 4 * (number % 60)
            feeder(Alloc(pool="paged", slots=slots(page, page + 1), owner=owner))
            feeder(
                CacheInsert(
                    pool="paged", slots=slots(page, page + 1), owner=owner, node=f"n{number}", parent=f"p{number}"
                )
            )
            feeder(ReqEnd(owner=owner))
            feeder(Evict(node=f"n{number}"))
            yield

    assert grown(feeder, cycles(), 600, 600) == {}
    assert sizes(feeder.tracker)["nodes"] == 0
    assert feeder.tracker.findings == []


@pytest.mark.usefixtures("small")
def test_one_node_that_holds_the_whole_cache() -> None:
    """Of an engine that hides its nodes: everything goes in by one name, and leaves slot by slot."""
    feeder = Feeder()
    for number in range(3000):
        slot = 1 + number % 250
        feeder(Alloc(pool="kv", slots=slots(slot), owner="r"))
        feeder(CacheInsert(pool="kv", slots=slots(slot), owner="r", node="all"))
        if number >= 200:
            feeder(Evict(pool="kv", slots=slots(1 + (number - 200) % 250)))
    node = feeder.state.nodes.find("all")
    assert node is not None
    assert sum(array.size for array in node.slots[1]) <= nodeslots.NOTED_BEYOND + 2 * 200 + 1
    assert node.holder.held == {1: 200}
    feeder(Evict(node="all"))
    assert feeder.state.pools["kv"].free == 255
    assert feeder.tracker.findings == []


@pytest.mark.usefixtures("small")
def test_a_node_that_allocates_for_itself() -> None:
    """Slots that were handed out to `tree:NODE` and given back by `free`, which names no node."""
    feeder = Feeder()
    for number in range(3000):
        feeder(Alloc(pool="kv", slots=slots(1 + number % 250), owner="tree:own"))
        if number >= 200:
            feeder(Free(pool="kv", slots=slots(1 + (number - 200) % 250), owner="tree:own"))
    node = feeder.state.nodes.find("own")
    assert node is not None
    assert sum(array.size for array in node.slots[1]) <= nodeslots.NOTED_BEYOND + 2 * 200 + 1
    feeder(Evict(node="own"))
    assert feeder.state.pools["kv"].free == 255
    assert feeder.tracker.findings == []


@pytest.mark.usefixtures("small")
def test_findings_without_end() -> None:
    """An engine with a fault in every cycle: double frees, leaks, underflows, transfers that never end."""
    feeder = Feeder()

    def cycles() -> Iterator[None]:
        number = 0
        while True:
            number += 1
            owner, slot = f"r{number}", 1 + number % 200
            feeder(Alloc(pool="kv", slots=slots(slot), owner=owner))
            feeder(XferBegin(agent="nic", xfer=f"x{number}", access="read", pool="kv", slots=slots(slot), owner=owner))
            for _ in range(3):
                feeder(Free(pool="kv", slots=slots(slot), owner=owner))
            feeder(Unlock(node=f"n{number}", owner=owner))
            feeder(Alloc(pool="row", slots=slots(1 + number % 15), owner=owner))
            feeder(ReqEnd(owner=owner))
            yield

    assert grown(feeder, cycles(), 230, 100) == {}
    assert sum(sum(kinds.values()) for kinds in feeder.state.verdicts.counts.values()) > 10 * Verdicts.KEPT_FINDINGS
    assert len(feeder.tracker.findings) == Verdicts.KEPT_FINDINGS
    assert feeder.state.transfers.dropped == 330 - transfers.KEPT_LEASES


@pytest.mark.usefixtures("small")
def test_history_counts_slots_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT_SLOTS", 1000)
    feeder = Feeder()
    for _ in range(50):
        feeder(Alloc(pool="kv", slots=np.arange(1, 201), owner="A"))
        feeder(Free(pool="kv", slots=np.arange(1, 201), owner="A"))
    assert len(feeder.state.history._events) == 5
    assert feeder.state.history._slots == 1000


# -- generations


@pytest.mark.parametrize("page", [1, 4])
def test_generations_wrap_around(page: int) -> None:
    """The last generation, the first, and those after: never negative, and nothing else in the word changes."""
    tracker = feed([pool("kv", "kv", 8 * page, page=page, reserved=range(page))])
    shadow = tracker.state.pools["kv"]
    first = slice(page, 2 * page)
    shadow.tenancy[first] |= GENERATION_MASK - 2 * GENERATION_ONE  # 2**23 - 3
    named = np.arange(page, 2 * page)
    seen = []
    at = 1
    for single in (True, False) * 4:
        some = named[:1] if single else named
        tracker.take(Alloc(pool="kv", slots=some.copy(), owner="A", at=at))
        seen.append({generation(word) for word in shadow.tenancy[first].tolist()})
        assert (shadow.tenancy[first] >= 0).all() and (shadow.tenancy[first] <= WORD_MASK).all()
        assert tracker.state.holders.find("A").held == {0: page}  # type: ignore[union-attr]
        tracker.take(Free(pool="kv", slots=some.copy(), owner="A", at=at + 1))
        assert (shadow.tenancy[first] >= 0).all()
        at += 2
    assert seen == [{2**23 - 2}, {2**23 - 1}, {0}, {1}, {2}, {3}, {4}, {5}]
    assert tracker.findings == []
    assert (shadow.free, tracker.totals()[0].owned) == (7 * page, 0)


def test_a_cell_is_stale_across_the_wrap() -> None:
    tracker = feed([
        pool("row", "row", 4), pool("kv", "kv", 8),
        {"op": "alloc", "pool": "row", "slots": [1], "owner": "A"},
    ])  # fmt: skip
    shadow = tracker.state.pools["kv"]
    shadow.tenancy[1] |= GENERATION_MASK - GENERATION_ONE
    at = 3
    for event in (
        Alloc(pool="kv", slots=slots(1), owner="A"),
        RowWrite(pool="row", row=1, pos=0, into="kv", slots=slots(1), owner="A"),
        Capture(batch="b", pool="row", row=1, upto=1, owner="A"),
        ReqFinish(owner="A"),
        Free(pool="kv", slots=slots(1), owner="A"),
        Alloc(pool="kv", slots=slots(1), owner="B"),
        Capture(batch="c", pool="row", row=1, upto=1, owner="A"),
    ):
        event.at = at
        tracker.take(event)
        at += 1
    assert generation(int(shadow.tenancy[1])) == 0
    assert facts(tracker.findings) == [("use_after_free", 9, "kv:1")]


def test_row_accesses_of_a_long_answer_stay_few() -> None:
    """The overlapped loop: the host learns of a step's end two steps later. The row keeps a few runs all the same."""
    san = Sanitizer(level="slots")
    san.pool("row", kind="row", size=4, reserved=[0])
    san.pool("kv", kind="kv", size=4096, reserved=[0])
    san.alloc("row", 1, owner="r")
    for step in range(500):
        san.alloc("kv", 1 + step, owner="r")
        san.row_write("row", row=1, pos=step, into="kv", slots=1 + step, owner="r", agent="sched")
        san.record(event="written", agent="sched")
        san.wait(event="written", agent="fwd")
        san.capture("row", row=1, upto=step + 1, batch=f"b{step}", owner="r", agent="fwd")
        san.launch(batch=f"b{step}", agent="fwd")
        san.record(event="read", agent="fwd")
        san.wait(event="read", agent="sched")
        if step:
            san.done(batch=f"b{step - 1}")
        row = san.tracker.state.tables["row"].get(1)
        assert len(row.writes) <= 4
        assert all(len(runs) <= 4 for runs in row.reads.values())
    assert san.findings == []
