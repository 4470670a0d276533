"""Numbers that come later than the call that they are about: order, time, stack, failures, bounds."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvsan.hooks import late, lifetime
from kvsan.hooks.sanitizer import Sanitizer
from kvsan.hooks.specification import hookimpl

from kvsan import hooks
from kvsan.errors import FindingRaised
from kvsan.events import Event
from kvsan.options import Options


class Numbers:
    """A reading that arrives when the test says so."""

    def __init__(self, *numbers: int) -> None:
        self.there = False
        self._numbers = np.array(numbers, np.int64)

    def ready(self) -> bool:
        return self.there

    def value(self) -> Any:
        assert self.there
        return self._numbers


class Heard:
    """A plugin that notes what the tracker is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    @hookimpl
    def kvsan_alloc(self, event: Event) -> None:
        self.events.append(event)

    @hookimpl
    def kvsan_free(self, event: Event) -> None:
        self.events.append(event)

    @hookimpl
    def kvsan_own(self, event: Event) -> None:
        self.events.append(event)

    @property
    def said(self) -> list[str]:
        return [f"{event.op} {event.owner} {getattr(event, 'slots', None)}" for event in self.events]


@pytest.fixture
def san() -> Sanitizer:
    """A sanitizer with a pool of eight slots."""
    san = Sanitizer()
    san.pool("kv", kind="kv", size=8)
    return san


@pytest.fixture
def heard(san: Sanitizer) -> Heard:
    """What the tracker was told."""
    heard = Heard()
    san.add_plugin(heard)
    return heard


def never(error: Exception) -> None:
    raise AssertionError(f"failed: {error}")


def test_what_is_told_meanwhile_waits_its_turn(san: Sanitizer, heard: Heard) -> None:
    first, second = Numbers(1, 2), Numbers(3)
    san.later(partial(san.alloc, "kv", owner="a"), first, failed=never)
    san.free("kv", [1, 2], owner="a")
    san.later(partial(san.alloc, "kv", owner="b"), second, failed=never)
    san.own("kv", [3], owner="b")
    second.there = True
    san.settle()
    assert heard.said == []
    assert san.waiting == 4
    first.there = True
    san.settle()
    assert heard.said == ["alloc a [1 2]", "free a [1 2]", "alloc b [3]", "own b [3]"]
    assert (san.waiting, san.findings) == (0, [])
    assert [event.at for event in heard.events] == [1, 2, 3, 4]


def test_nothing_waits_where_nothing_is_late(san: Sanitizer, heard: Heard) -> None:
    san.alloc("kv", [1], owner="a")
    assert heard.said == ["alloc a [1]"]


def test_events_have_the_time_and_the_stack_of_the_call_that_they_are_about(san: Sanitizer) -> None:
    def alloc_twice() -> None:
        for _ in range(2):
            numbers = Numbers(1)
            numbers.there = True
            san.later(partial(san.alloc, "kv", owner="a"), numbers, failed=never)

    before = time.monotonic_ns()
    alloc_twice()
    after = time.monotonic_ns()
    time.sleep(0.01)
    san.settle()
    (finding,) = san.findings
    assert finding.kind == "double_alloc"
    assert finding.present is not None
    assert before <= finding.present.time_ns <= after
    assert [frame.function.rsplit(".", 1)[-1] for frame in finding.present.stack][:2] == [
        "alloc_twice",
        "test_events_have_the_time_and_the_stack_of_the_call_that_they_are_about",
    ]


def test_work_that_needs_more_numbers_goes_on_before_what_follows(san: Sanitizer, heard: Heard) -> None:
    first, more = Numbers(1), Numbers(2)

    def one_and_then_another(slots: Any) -> None:
        san.alloc("kv", slots, owner="a")
        san.later(partial(san.alloc, "kv", owner="b"), more, failed=never)
        san.own("kv", [2], owner="b")

    san.later(one_and_then_another, first, failed=never)
    san.free("kv", [1, 2], owner="b")
    first.there = True
    san.settle()
    assert heard.said == ["alloc a [1]"]
    more.there = True
    san.settle()
    assert heard.said == ["alloc a [1]", "alloc b [2]", "own b [2]", "free b [1 2]"]


def test_work_that_fails_is_told_and_what_follows_is_forgotten(san: Sanitizer, heard: Heard) -> None:
    failures: list[Exception] = []

    def fail(slots: Any) -> None:
        raise LookupError("no such node")

    numbers = Numbers(1)
    san.later(fail, numbers, failed=failures.append)
    san.alloc("kv", [2], owner="a")
    numbers.there = True
    san.settle()
    assert [str(error) for error in failures] == ["no such node"]
    assert (heard.said, san.waiting) == ([], 0)
    san.alloc("kv", [3], owner="b")
    assert heard.said == ["alloc b [3]"]


def test_numbers_that_will_never_come_are_a_failure(san: Sanitizer, heard: Heard) -> None:
    class Lost(Numbers):
        def ready(self) -> bool:
            raise RuntimeError("the device is lost")

    failures: list[Exception] = []
    san.later(partial(san.alloc, "kv"), Lost(), failed=failures.append)
    san.own("kv", [1], owner="a")
    san.settle()
    assert [str(error) for error in failures] == ["the device is lost"]
    assert (heard.said, san.waiting) == ([], 0)


def test_a_finding_is_raised_where_it_comes_to_light_and_the_rest_is_not_lost(heard: Heard) -> None:
    san = Sanitizer(on_error="raise")
    san.pool("kv", kind="kv", size=8)
    san.add_plugin(heard)
    heard.events.clear()
    numbers = Numbers(5)
    numbers.there = True
    san.later(partial(san.free, "kv", owner="a"), numbers, failed=never)
    san.alloc("kv", [1], owner="a")
    with pytest.raises(FindingRaised):
        san.settle()
    san.settle()
    assert heard.said == ["free a [5]", "alloc a [1]"]


def test_work_that_brings_a_finding_to_light_is_done_to_its_end(heard: Heard) -> None:
    """Else what it has not told would be missed by what follows."""
    san = Sanitizer(on_error="raise")
    san.pool("kv", kind="kv", size=8)
    san.add_plugin(heard)
    numbers = Numbers(5)
    numbers.there = True

    def work(slots: Any) -> None:
        san.free("kv", slots, owner="a")
        san.alloc("kv", slots, owner="b")

    san.later(work, numbers, failed=never)
    with pytest.raises(FindingRaised):
        san.settle()
    san.settle()
    assert heard.said == ["free a [5]", "alloc b [5]"]


def test_a_call_that_is_half_told_when_too_much_waits_accuses_nobody(
    san: Sanitizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader goes on after one of the things that it tells was too much."""
    san.alloc("kv", [1], owner="a")
    monkeypatch.setattr(late, "MOST", 1)
    failures: list[Exception] = []
    san.later(partial(san.alloc, "kv"), Numbers(2), failed=failures.append)
    san.free("kv", [1], owner="a")
    san.req_end(owner="a")
    san.settle()
    assert len(failures) == 1
    assert san.findings == []


@pytest.mark.parametrize("event", [False, True])
def test_what_waits_is_bounded(san: Sanitizer, heard: Heard, event: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "MOST", 3)
    failures: list[Exception] = []
    san.later(partial(san.alloc, "kv"), Numbers(1), failed=failures.append)
    san.own("kv", [1], owner="a")
    san.own("kv", [1], owner="a")
    assert failures == []
    if event:
        san.own("kv", [1], owner="a")
    else:
        san.later(partial(san.alloc, "kv"), Numbers(2), failed=failures.append)
    assert san.waiting == 3
    san.settle()
    assert {str(error) for error in failures} == {"3 events wait for numbers that do not come from the device"}
    assert (san.waiting, heard.said) == (0, [])


def test_what_a_plugin_tells_of_an_event_that_waited_comes_right_after_it(san: Sanitizer, heard: Heard) -> None:
    class Follower:
        @hookimpl
        def kvsan_own(self, event: Event) -> None:
            if event.owner == "a":
                san.own("kv", [2], owner="follower of a")

    san.alloc("kv", [2], owner=None)
    numbers = Numbers(1)
    san.later(partial(san.alloc, "kv"), numbers, failed=never)
    san.own("kv", [1], owner="a")
    san.free("kv", [1], owner="a")
    san.add_plugin(Follower())
    numbers.there = True
    san.settle()
    assert heard.said[1:] == ["alloc None [1]", "own a [1]", "own follower of a [2]", "free a [1]"]


def take_slowly(san: Sanitizer) -> tuple[threading.Event, threading.Event]:
    """Work that is there, and stays in the middle from the first event until the second."""
    inside, leave = threading.Event(), threading.Event()

    def slow(slots: Any) -> None:
        inside.set()
        assert leave.wait(5)
        san.alloc("kv", slots, owner="a")

    numbers = Numbers(1)
    numbers.there = True
    san.later(slow, numbers, failed=never)
    return inside, leave


def test_what_another_thread_tells_does_not_overtake_the_last_that_waited(san: Sanitizer, heard: Heard) -> None:
    """Nor is quiet judged while that is being taken in."""
    inside, leave = take_slowly(san)
    thread = threading.Thread(target=san.settle)
    thread.start()
    assert inside.wait(5)
    waiting = san.waiting
    san.free("kv", [1], owner="a")
    leave.set()
    thread.join(5)
    san.settle()
    assert heard.said == ["alloc a [1]", "free a [1]"]
    assert waiting == 1


def test_one_thread_takes_it_in_and_another_goes_on(san: Sanitizer, heard: Heard) -> None:
    inside, leave = take_slowly(san)
    san.free("kv", [1], owner="a")
    thread = threading.Thread(target=san.settle)
    thread.start()
    assert inside.wait(5)
    san.settle()
    assert heard.said == []
    leave.set()
    thread.join(5)
    assert heard.said == ["alloc a [1]", "free a [1]"]


def test_the_end_takes_in_what_is_there_and_says_what_is_not(tmp_path: Path) -> None:
    from kvsan.sinks import Collector

    collector = Collector()
    san = hooks.start(Options(record=str(tmp_path / "%p.jsonl")), collector)
    try:
        san.pool("kv", kind="kv", size=8)
        there, missing = Numbers(1), Numbers(2)
        there.there = True
        san.later(partial(san.alloc, "kv", owner="a"), there, failed=never)
        san.later(partial(san.alloc, "kv", owner="a"), missing, failed=never)
        san.free("kv", [2], owner="a")
    finally:
        hooks.stop()
    (note,) = collector.report().notes
    assert note.startswith("Slot ids of 1 tensors came from the device while the engine went on")
    assert note.endswith("2 events still wait and are not judged.")
    (total,) = collector.report().totals
    assert total.free == 7
    trace = (tmp_path / f"{os.getpid()}.jsonl").read_text(encoding="utf-8")
    assert '"slots":[1]' in trace.replace(" ", "")


def test_the_end_takes_in_all_that_is_there_though_findings_are_raised() -> None:
    from kvsan.sinks import Collector

    san = hooks.start(Options(on_error="raise"), Collector())
    try:
        san.pool("kv", kind="kv", size=8)
        for slot in (1, 2):
            there = Numbers(slot)
            there.there = True
            san.later(partial(san.free, "kv", owner=f"owner {slot}"), there, failed=never)
    finally:
        hooks.stop()
    assert san.waiting == 0
    assert [finding.slots for finding in san.findings] == [(1,), (2,)]


def test_the_end_waits_a_moment_for_what_is_on_its_way() -> None:
    from kvsan.sinks import Collector

    san = hooks.start(Options(), Collector())
    try:
        san.pool("kv", kind="kv", size=8)
        soon = Numbers(1)
        san.later(partial(san.free, "kv", owner="a"), soon, failed=never)
        threading.Timer(0.05, partial(setattr, soon, "there", True)).start()
    finally:
        hooks.stop()
    assert [finding.slots for finding in san.findings] == [(1,)]


def test_quiet_is_not_judged_while_something_waits(san: Sanitizer) -> None:
    """Else what is on its way to be given back would be a leak."""
    san.alloc("kv", [1], owner="a")
    numbers = Numbers(1)
    san.later(partial(san.free, "kv", owner="a"), numbers, failed=never)
    san.req_end(owner="a")
    ended = threading.Event()
    thread = threading.Thread(target=lifetime._watch, args=(san, 0.02, ended))
    thread.start()
    time.sleep(0.1)
    assert san.findings == []
    numbers.there = True
    san.settle()
    time.sleep(0.1)
    ended.set()
    thread.join(5)
    assert san.findings == []


def test_quiet_is_not_judged_once_the_engine_is_not_watched_any_more(san: Sanitizer) -> None:
    """What was given back since then was not seen."""
    san.alloc("kv", [1], owner="a")
    san.stop_judging_ends()
    san.check_end()
    assert san.findings == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_leaves_what_waits_to_its_parent(san: Sanitizer) -> None:
    san.later(partial(san.alloc, "kv"), Numbers(1), failed=never)
    child = os.fork()
    if not child:
        os._exit(0 if san.waiting == 0 else 1)
    _, status = os.waitpid(child, 0)
    assert (os.waitstatus_to_exitcode(status), san.waiting) == (0, 1)
