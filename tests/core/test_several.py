"""Several events at once are just what they are one by one: the same findings, word for word, and the same totals, on
twins, on generated traces of an engine without mistakes, on mutations of those, and on noise; and the same events for
whoever listens.

KVSAN_SEEDS=10 runs ten times the seeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from kvsan.hooks.sanitizer import Sanitizer
from kvsan.hooks.specification import hookimpl
from oracle.generate import mutate, random_soup, random_trace

from kvsan import history
from kvsan.errors import FindingRaised
from kvsan.events import Capture, Event, Own, RowWrite
from kvsan.several import Captures, Owns, RowWrites, Several
from kvsan.traces import event_from_dict, event_to_dict, read_trace
from kvsan.tracker import PLAIN, Tracker

from .feeding import facts, seeds
from .test_agreement import TWINS
from .test_sanitizer import listening

LEVELS = ("rows", "slots", "full")


def apart(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events, with an own or a row write of many slots as many of one each."""
    for event in ({name: value for name, value in event.items() if name != "i"} for event in events):
        slots = event.get("slots")
        if event["op"] not in ("own", "row_write") or not isinstance(slots, list) or len(slots) < 2:
            yield event
            continue
        for number, slot in enumerate(slots):
            yield {**event, "slots": [slot], **({"pos": event["pos"] + number} if "pos" in event else {})}


def kind(event: Event) -> tuple[object, ...]:
    """Events next to each other that are alike in this may come at once; what may not is alike to nothing."""
    common = (event.op, event.agent, event.via)
    if event.extra is None and event.site is None:
        if isinstance(event, Own) and event.slots.size == 1:
            return (*common, event.pool)
        if isinstance(event, RowWrite) and event.slots.size == 1:
            return (*common, event.pool, event.into)
        if isinstance(event, Capture) and event.start == 0:
            return (*common, event.pool, event.batch)
    return (event.at,)


def together(alike: list[Any]) -> Event:
    """These events at once."""
    first = alike[0]
    who: dict[str, Any] = {
        "agent": first.agent, "via": first.via, "at": first.at, "owners": [event.owner for event in alike],
    }  # fmt: skip
    if isinstance(first, Own):
        return Owns(pool=first.pool, slots=[int(event.slots[0]) for event in alike], **who)
    if isinstance(first, RowWrite):
        return RowWrites(
            pool=first.pool, into=first.into, rows=[event.row for event in alike],
            positions=[event.pos for event in alike], slots=[int(event.slots[0]) for event in alike], **who,
        )  # fmt: skip
    return Captures(
        pool=first.pool, batch=first.batch, rows=[event.row for event in alike],
        uptos=[event.upto for event in alike], **who,
    )  # fmt: skip


def agree(events: Iterable[dict[str, Any]], level: str) -> int:
    """Asserts that a tracker says the same either way; how many events came together with others."""
    single, grouped = Tracker(level), Tracker(level)
    taken = [event_from_dict(event, index) for index, event in enumerate(apart(events))]
    for event in taken:
        event.site = None
        single.take(event)
    grouped_ones = 0
    for key, group in groupby(taken, kind):
        alike = list(group)
        if len(key) == 1:
            grouped.take(alike[0])
        else:
            several = together(alike)
            assert isinstance(several, Several)
            assert [event_to_dict(several.one(k)) for k in range(len(alike))] == [event_to_dict(e) for e in alike]
            grouped.take_several(several)
            grouped_ones += len(alike) - 1
    assert grouped.findings == single.findings
    assert grouped.totals() == single.totals()
    assert grouped.state.clocks._horizons == single.state.clocks._horizons
    return grouped_ones


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("path", TWINS, ids=lambda path: path.name.removesuffix(".jsonl"))
def test_twin(path: Path, level: str) -> None:
    agree([event_to_dict(event) for event in read_trace(path).events], level)


TRACES: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "correct": lambda seed: random_trace(seed, 300),
    "mutated": lambda seed: mutate(random_trace(seed, 120), seed),
    "noise": lambda seed: random_soup(seed, 80),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("which", TRACES)
def test_generated(which: str, level: str) -> None:
    grouped = sum(agree(TRACES[which](seed), level) for seed in seeds(100))
    assert grouped > 100, "the traces have few events that come at once"


# -- the way in


def step(sanitizer: Sanitizer) -> None:
    """Two requests with a row each take a slot, write it and are captured; B writes A's slot."""
    sanitizer.pool("row", kind="row", size=4, reserved=[0])
    sanitizer.pool("kv", kind="kv", size=16, reserved=[0])
    sanitizer.alloc("row", 1, owner="A")
    sanitizer.alloc("row", 2, owner="B")
    sanitizer.alloc("kv", [4, 5])
    sanitizer.own_each("kv", [4, 5], owners=["A", "B"])
    sanitizer.row_write_each("row", rows=[1, 2], positions=[0, 0], into="kv", slots=[4, 4], owners=["A", "B"])
    sanitizer.capture_each("row", rows=[1, 2, 3], uptos=[1, 1, 1], batch="b", owners=["A", "B", None], agent="fwd")


HEARD = ["pool", "pool", "alloc", "alloc", "alloc", "own", "own", "row_write", "row_write", *["capture"] * 3]
FOUND = [("alias", 8, "kv:4"), ("stale_row", 11, "row:3")]


def test_who_listens_hears_of_one_at_a_time() -> None:
    sanitizer, listener = listening(level="slots")
    step(sanitizer)
    assert [event.op for event in listener.events] == HEARD
    assert [event.at for event in listener.events] == list(range(len(HEARD)))
    assert [event.owner for event in listener.events[5:]] == ["A", "B", "A", "B", "A", "B", None]
    assert [event.agent for event in listener.events[9:]] == ["fwd"] * 3
    assert {sanitizer._frames(event.stack)[0].function for event in listener.events} == {"step"}
    assert facts(sanitizer.findings) == FOUND


def test_without_a_listener_findings_cite_the_same() -> None:
    alone, (heard, _) = Sanitizer(level="slots"), listening(level="slots")
    for sanitizer in (alone, heard):
        step(sanitizer)
    assert facts(alone.findings) == FOUND
    assert alone.events == heard.events == len(HEARD)
    alias = alone.findings[0]
    assert alias.present is not None
    assert (alias.present.owner, alias.present.slots, alias.present.cells) == ("B", (2,), (0, 1))
    assert alias.present.stack[0].function == "step"
    assert [(past.at, past.what, past.owner) for past in alias.provenance] == [
        (4, "allocated", None),
        (5, "named", "A"),
    ]
    for mine, theirs in zip(alone.findings, heard.findings, strict=True):
        assert mine.provenance == tuple(_at(theirs.provenance, mine.provenance))
        assert (mine.why, mine.extra, mine.token) == (theirs.why, theirs.extra, theirs.token)


def _at(those: Iterable[Any], these: Iterable[Any]) -> Iterator[Any]:
    """Accesses of one run with the times of another."""
    for that, this in zip(those, these, strict=True):
        yield dataclasses.replace(that, time_ns=this.time_ns)


def test_raise_raises_after_all_of_them_were_taken() -> None:
    sanitizer = Sanitizer(level="slots", on_error="raise")
    with pytest.raises(FindingRaised):
        step(sanitizer)
    assert sanitizer.events == 9
    assert facts(sanitizer.findings) == FOUND[:1]


BAD: list[tuple[str, Callable[[Sanitizer], None]]] = [
    ("own", lambda s: s.own_each("kv", [4], owners=["A", "B"])),
    ("own", lambda s: s.own_each("kv", ["4"], owners=["A"])),  # type: ignore[list-item]
    ("own", lambda s: s.own_each("kv", [4], owners=[7])),  # type: ignore[list-item]
    ("own", lambda s: s.own_each("none", [4, 5], owners=["A", "B"])),
    ("row_write", lambda s: s.row_write_each("row", rows=[1], positions=[], into="kv", slots=[4], owners=["A"])),
    ("row_write", lambda s: s.row_write_each("row", rows=[1], positions=[0], into="none", slots=[4], owners=["A"])),
    ("row_write", lambda s: s.row_write_each("kv", rows=[1], positions=[0], into="kv", slots=[4], owners=["A"])),
    ("row_write", lambda s: s.row_write_each("row", rows=[1], positions=[-1], into="kv", slots=[4], owners=["A"])),
    ("row_write", lambda s: s.row_write_each("row", rows=[1], positions=[1.0], into="kv", slots=[4],
                                             owners=["A"])),  # type: ignore[list-item]
    ("capture", lambda s: s.capture_each("kv", rows=[1], uptos=[1], batch="b", owners=["A"])),
    ("capture", lambda s: s.capture_each("row", rows=[1], uptos=[1 << 40], batch="b", owners=["A"])),
]  # fmt: skip


@pytest.mark.parametrize(("op", "call"), BAD, ids=[f"{n}-{op}" for n, (op, _) in enumerate(BAD)])
@pytest.mark.parametrize("listened", [False, True])
def test_bad_arguments_are_one_failure_and_cost_these_events_only(
    op: str, call: Callable[[Sanitizer], None], listened: bool
) -> None:
    sanitizer = listening(level="slots")[0] if listened else Sanitizer(level="slots")
    sanitizer.pool("row", kind="row", size=4, reserved=[0])
    sanitizer.pool("kv", kind="kv", size=16, reserved=[0])
    sanitizer.alloc("row", 1, owner="A")
    call(sanitizer)
    call(sanitizer)
    (failure,) = sanitizer.report().failures
    assert failure.where.split(" ")[0] == op
    assert "this event was not taken" in failure.cost
    sanitizer.free("kv", [1], owner="A")
    assert [(found.kind, found.object) for found in sanitizer.findings] == [("invalid_free", "kv:1")]


def test_nothing_is_no_event() -> None:
    sanitizer = Sanitizer()
    sanitizer.own_each("none", [], owners=[])
    sanitizer.row_write_each("none", rows=[], positions=[], into="none", slots=[], owners=[])
    sanitizer.capture_each("none", rows=[], uptos=[], batch="b", owners=[])
    assert sanitizer.events == 0
    assert sanitizer.report().failures == ()


def test_a_rule_that_fails_costs_its_concern_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sanitizer = Sanitizer(level="slots")

    def broken(state: object, events: object, first: int) -> int:
        raise ZeroDivisionError("oh")

    monkeypatch.setitem(PLAIN, Captures, broken)
    step(sanitizer)
    assert [(f.where, f.error, f.cost) for f in sanitizer.report().failures] == [
        ("capture (event 9)", "ZeroDivisionError: oh", "row cells and batches: no longer watched in this process")
    ]
    assert facts(sanitizer.findings) == FOUND[:1]


class Answering:
    """A plugin that has a step of its own to tell while it hears of one."""

    def __init__(self, sanitizer: Sanitizer) -> None:
        self.sanitizer = sanitizer
        self.heard: list[tuple[str, int]] = []

    @hookimpl
    def kvsan_own(self, event: Event) -> None:
        self.heard.append((event.op, event.at))
        if len(self.heard) == 1:
            self.sanitizer.own_each("kv", [4, 5], owners=["A", "B"])


def test_what_is_told_meanwhile_comes_afterwards() -> None:
    sanitizer = Sanitizer(level="slots")
    plugin = Answering(sanitizer)
    sanitizer.add_plugin(plugin)
    step(sanitizer)
    assert plugin.heard == [("own", 5), ("own", 6), ("own", 7), ("own", 8)]
    assert [(found.kind, found.object) for found in sanitizer.findings] == [("alias", "kv:4"), ("stale_row", "row:3")]


def test_a_bounded_past_keeps_the_last_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT_EVENTS", 10)
    past = history.History()
    for number in range(6):
        past.append(Owns(pool="kv", slots=(1, 2, 3), owners=("A", "B", "C"), at=3 * number))
    assert [past.find(at) is not None for at in (8, 9, 17, 18)] == [False, True, True, False]
    found = past.find(10)
    assert found is not None
    assert (found[0].at, found[0].owner) == (10, "B")
    assert [event.at for event, _ in past.backwards({"own"})] == [17, 16, 15, 14, 13, 12, 11, 10, 9]
    assert list(past.backwards({"free"})) == []
