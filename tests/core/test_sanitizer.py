"""The sanitizer that engines call: what its operations emit, what fails and costs what, threads, forks, plugins."""

from __future__ import annotations

import gc
import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvsan.hooks.null import NULL
from kvsan.hooks.operations import Operations
from kvsan.hooks.sanitizer import Sanitizer
from kvsan.hooks.specification import hookimpl

from kvsan import hooks
from kvsan.commands.check import check_file
from kvsan.errors import FindingRaised
from kvsan.events import EVENT_CLASSES, Event
from kvsan.findings import Failure, Finding
from kvsan.options import Options
from kvsan.sinks import Collector
from kvsan.traces import event_to_dict, read_trace
from kvsan.traces.recorder import Recorder

from .feeding import facts

HERE = os.path.basename(__file__)


class Listener:
    """A plugin that keeps every event, finding and failure."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.findings: list[Finding] = []
        self.failures: list[Failure] = []

    @hookimpl
    def kvsan_finding(self, finding: Finding) -> None:
        self.findings.append(finding)

    @hookimpl
    def kvsan_failure(self, failure: Failure) -> None:
        self.failures.append(failure)


def _listen() -> None:
    for cls in EVENT_CLASSES:

        def implementation(self: Listener, event: Event) -> None:
            self.events.append(event)

        implementation.__name__ = cls.hook
        implementation.__qualname__ = f"Listener.{cls.hook}"
        setattr(Listener, cls.hook, hookimpl(implementation))


_listen()


def listening(**options: Any) -> tuple[Sanitizer, Listener]:
    sanitizer, listener = Sanitizer(**options), Listener()
    sanitizer.add_plugin(listener, "listener")
    return sanitizer, listener


def engine(**options: Any) -> tuple[Sanitizer, Listener]:
    """With a row pool and a token pool."""
    sanitizer, listener = listening(**options)
    sanitizer.pool("row", kind="row", size=4, reserved=[0])
    sanitizer.pool("kv", kind="kv", size=16, reserved=[0])
    return sanitizer, listener


# -- operations


WHO = {"agent": "fwd", "via": "host:x"}
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], dict[str, Any]]] = [
    ("pool", ("kv",), {"kind": "kv", "size": 8, "page": 2, "reserved": [0, 1], "init": True},
     {"pool": "kv", "kind": "kv", "size": 8, "page": 2, "reserved": [0, 1], "init": True}),
    ("reset", ("kv",), {}, {"pool": "kv"}),
    ("alloc", ("kv", [2, 3]), {"owner": "A"}, {"pool": "kv", "slots": [2, 3], "owner": "A"}),
    ("own", ("kv", 2), {"owner": "A"}, {"pool": "kv", "slots": [2], "owner": "A"}),
    ("give", ("kv", (2, 3)), {"to": "B", "owner": "A"}, {"pool": "kv", "slots": [2, 3], "to": "B", "owner": "A"}),
    ("reuse", ("kv", np.int64(2)), {"owner": "A"}, {"pool": "kv", "slots": [2], "owner": "A"}),
    ("free", ("kv", np.array([2, 3], np.int32)), {"group": "g", "dedup": True, "owner": "A"},
     {"pool": "kv", "slots": [2, 3], "group": "g", "dedup": True, "owner": "A"}),
    ("free", ("kv",), {"map": "m", "keys": [1, 2]}, {"pool": "kv", "map": "m", "keys": [1, 2]}),
    ("flush", (), {"group": "g"}, {"group": "g"}),
    ("insert", ("kv", range(2, 4)), {"node": "n", "parent": "p", "key": "k", "ns": "x", "owner": "A"},
     {"pool": "kv", "slots": [2, 3], "node": "n", "parent": "p", "key": "k", "ns": "x", "owner": "A"}),
    ("attach", ("kv", [2]), {"node": "n", "owner": "A"}, {"pool": "kv", "slots": [2], "node": "n", "owner": "A"}),
    ("evict", (), {"node": "n"}, {"node": "n"}),
    ("evict", ("kv", [2]), {}, {"pool": "kv", "slots": [2]}),
    ("split", (), {"node": "n", "child": "c", "slots": [2], "pool": "kv"},
     {"node": "n", "child": "c", "slots": [2], "pool": "kv"}),
    ("match", (), {"node": "n", "ns": "x", "owner": "A"}, {"node": "n", "ns": "x", "owner": "A"}),
    ("lock", (), {"node": "n", "owner": "A"}, {"node": "n", "owner": "A"}),
    ("unlock", (), {"node": "n", "owner": "A"}, {"node": "n", "owner": "A"}),
    ("row_write", ("row",), {"row": 1, "pos": 2, "into": "kv", "slots": [2], "batch": "b", "owner": "A"},
     {"pool": "row", "row": 1, "pos": 2, "into": "kv", "slots": [2], "batch": "b", "owner": "A"}),
    ("capture", ("row",), {"row": 1, "upto": 3, "batch": "b", "start": 1, "owner": "A"},
     {"pool": "row", "row": 1, "upto": 3, "batch": "b", "from": 1, "owner": "A"}),
    ("launch", (), {"batch": "b", "owner": "A"}, {"batch": "b", "owner": "A"}),
    ("done", (), {"batch": "b"}, {"batch": "b"}),
    ("read", ("kv", [2]), {"batch": "b", "owner": "A"}, {"pool": "kv", "slots": [2], "batch": "b", "owner": "A"}),
    ("write", ("kv", [2]), {"batch": "b", "owner": "A"}, {"pool": "kv", "slots": [2], "batch": "b", "owner": "A"}),
    ("xfer_begin", ("kv", [2]), {"xfer": "x", "access": "read", "owner": "A"},
     {"pool": "kv", "slots": [2], "xfer": "x", "access": "read", "owner": "A"}),
    ("xfer_end", (), {"xfer": "x"}, {"xfer": "x"}),
    ("record", (), {"event": "e"}, {"event": "e"}),
    ("wait", (), {"event": "e"}, {"event": "e"}),
    ("query", (), {"event": "e", "ready": True}, {"event": "e", "ready": True}),
    ("sync", (), {"on": "event:e"}, {"on": "event:e"}),
    ("map_set", (), {"map": "m", "key": [1, 2], "val": [3, 4]}, {"map": "m", "key": [1, 2], "val": [3, 4]}),
    ("map_clear", (), {"map": "m", "key": 1}, {"map": "m", "key": [1]}),
    ("req_start", (), {"owner": "A"}, {"owner": "A"}),
    ("req_finish", (), {"owner": "A"}, {"owner": "A"}),
    ("req_abort", (), {"owner": "A"}, {"owner": "A"}),
    ("req_retract", (), {"owner": "A"}, {"owner": "A"}),
    ("req_end", (), {"owner": "A"}, {"owner": "A"}),
    ("kv_record", (),
     {"row": 1, "allocated": 4, "committed": 3, "protected": 2, "owner": "A", "evicted": 1, "pool": "row"},
     {"row": 1, "allocated": 4, "committed": 3, "protected": 2, "owner": "A", "evicted": 1, "pool": "row"}),
    ("count", ("kv",), {"available": 1, "evictable": 2, "protected": 3, "total": 4, "session": 5},
     {"pool": "kv", "available": 1, "evictable": 2, "protected": 3, "total": 4, "session": 5}),
    ("step", (), {}, {}),
    ("idle", (), {}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "args", "named", "want"), CALLS, ids=[f"{n}-{call[0]}" for n, call in enumerate(CALLS)])
def test_an_operation_emits_its_event(
    op: str, args: tuple[Any, ...], named: dict[str, Any], want: dict[str, Any]
) -> None:
    sanitizer, listener = listening()
    getattr(sanitizer, op)(*args, **named, **WHO)
    (event,) = listener.events
    told = event_to_dict(event)
    assert isinstance(told.pop("t"), int)
    assert told == {"i": 0, "op": op, **WHO, **want}
    assert sanitizer._frames(event.stack)[0].function == "test_an_operation_emits_its_event"


def test_every_operation_is_a_method_with_the_fields_of_its_event() -> None:
    methods = {name for name, _ in inspect.getmembers(Operations, inspect.isfunction) if not name.startswith("_")}
    several = {"own_each", "row_write_each", "capture_each"}  # tested in test_several.py
    assert methods - several == {cls.op for cls in EVENT_CLASSES} == {call[0] for call in CALLS}
    assert several < methods
    for op in methods:
        assert getattr(NULL, op)("anything", at="all") is None


def test_the_event_keeps_its_own_copy_of_the_slots() -> None:
    sanitizer, listener = engine()
    slots = np.array([1, 2])
    sanitizer.alloc("kv", slots, owner="A")
    slots[:] = 9
    sanitizer.free("kv", [1, 2], owner="A")
    assert listener.events[2].slots.tolist() == [1, 2]  # type: ignore[attr-defined]
    assert sanitizer.findings == []


# -- what fails


BAD: list[tuple[str, Callable[[Sanitizer], None]]] = [
    ("alloc", lambda s: s.alloc("kv", None, owner="A")),  # type: ignore[arg-type]
    ("alloc", lambda s: s.alloc("kv", "many", owner="A")),  # type: ignore[arg-type]
    ("alloc", lambda s: s.alloc("kv", [[1], [2, 3]], owner="A")),  # type: ignore[list-item]
    ("alloc", lambda s: s.alloc("kv", [2**70], owner="A")),
    ("alloc", lambda s: s.alloc("kv", [object()], owner="A")),  # type: ignore[list-item]
    ("alloc", lambda s: s.alloc("none", [1], owner="A")),
    ("alloc", lambda s: s.alloc(["kv"], [1], owner="A")),  # type: ignore[arg-type]
    ("alloc", lambda s: s.alloc("kv", [1], owner=7)),  # type: ignore[arg-type]
    ("alloc", lambda s: s.alloc("kv", [1], agent=7)),  # type: ignore[arg-type]
    ("free", lambda s: s.free("kv", "x")),  # type: ignore[arg-type]
    ("free", lambda s: s.free("kv", map="m", keys={1: 2})),  # type: ignore[arg-type]
    ("lock", lambda s: s.lock(node=3)),  # type: ignore[arg-type]
    ("insert", lambda s: s.insert("kv", [1], node=b"n")),  # type: ignore[arg-type]
    ("row_write", lambda s: s.row_write("row", row=1, pos=0, into="kv", slots="x")),  # type: ignore[arg-type]
    ("row_write", lambda s: s.row_write("kv", row=1, pos=0, into="kv", slots=[1])),
    ("capture", lambda s: s.capture("kv", row=1, upto=1, batch="b")),
    ("xfer_begin", lambda s: s.xfer_begin("none", [1], xfer="x", access="read")),
    ("pool", lambda s: s.pool("kv", kind="kv", size=8)),
    ("pool", lambda s: s.pool("x", kind="gpu", size=8)),
    ("pool", lambda s: s.pool("x", kind="kv", size=0)),
    ("pool", lambda s: s.pool("x", kind="kv", size="8")),  # type: ignore[arg-type]
    ("pool", lambda s: s.pool("x", kind="kv", size=8, page=0)),
    ("pool", lambda s: s.pool("x", kind="kv", size=8, page=9)),
    ("pool", lambda s: s.pool("x", kind="kv", size=8, reserved=[8])),
    ("pool", lambda s: s.pool("x", kind="kv", size=8, reserved=[-1])),
    ("map_set", lambda s: s.map_set(map="m", key=None, val=[1])),  # type: ignore[arg-type]
    ("map_set", lambda s: s.map_set(map="m", key=[1, 2], val=[1])),
    ("alloc", lambda s: s.alloc("kv", [1.5], owner="A")),  # type: ignore[list-item]
    ("alloc", lambda s: s.alloc("kv", np.array([True]), owner="A")),
    ("alloc", lambda s: s.alloc("kv", [1], owner=["A"])),  # type: ignore[arg-type]
    ("row_write", lambda s: s.row_write("row", row=1.0, pos=0, into="kv", slots=[1])),  # type: ignore[arg-type]
    ("row_write", lambda s: s.row_write("row", row=1, pos="0", into="kv", slots=[1])),  # type: ignore[arg-type]
    ("row_write", lambda s: s.row_write("row", row=1, pos=-1, into="kv", slots=[1])),
    ("row_write", lambda s: s.row_write("row", row=1, pos=10**12, into="kv", slots=[1])),
    ("capture", lambda s: s.capture("row", row=None, upto=1, batch="b")),  # type: ignore[arg-type]
    ("capture", lambda s: s.capture("row", row=1, upto="1", batch="b")),  # type: ignore[arg-type]
    ("capture", lambda s: s.capture("row", row=1, upto=10**12, batch="b")),
    ("capture", lambda s: s.capture("row", row=1, start=2, upto=1, batch="b")),
    ("xfer_begin", lambda s: s.xfer_begin("kv", [1], xfer="x", access="copy")),
    ("free", lambda s: s.free("kv", owner="A")),
    ("evict", lambda s: s.evict("kv")),
    ("sync", lambda s: s.sync(on=None)),  # type: ignore[arg-type]
    ("count", lambda s: s.count("kv", available="3")),  # type: ignore[arg-type]
    (
        "kv_record",
        lambda s: s.kv_record(row=1, allocated=None, committed=0, protected=0, owner="A"),  # type: ignore[arg-type]
    ),
]


@pytest.mark.parametrize(("op", "call"), BAD, ids=[f"{n}-{op}" for n, (op, _) in enumerate(BAD)])
def test_bad_arguments_are_one_failure_and_cost_this_event_only(op: str, call: Callable[[Sanitizer], None]) -> None:
    sanitizer, listener = engine()
    call(sanitizer)
    call(sanitizer)
    (failure,) = listener.failures
    assert failure.where.split(" ")[0] == op
    assert "this event was not taken" in failure.cost and failure.pid == os.getpid()
    assert sanitizer.report().failures == (failure,)
    sanitizer.alloc("row", [1], owner="A")
    sanitizer.alloc("kv", [1], owner="A")
    sanitizer.row_write("row", row=1, pos=0, into="kv", slots=[1], owner="A")
    sanitizer.free("kv", [1], owner="A")
    sanitizer.free("kv", [1], owner="A")
    assert facts(sanitizer.findings)[-1][::2] == ("double_free", "kv:1")
    assert len(listener.failures) == 1


def test_a_rule_that_fails_costs_its_concern_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sanitizer, listener = engine(level="full")

    def broken(state: object, event: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setitem(sanitizer.tracker._rules, "capture", broken)
    sanitizer.alloc("row", [1], owner="A")
    for _ in range(3):
        sanitizer.capture("row", row=1, upto=1, batch="b", owner="A")
    sanitizer.row_write("row", row=3, pos=0, into="kv", slots=[1], owner="A")  # would be a use_after_free
    sanitizer.free("row", [2], owner="A")
    assert [(f.where, f.error, f.cost) for f in listener.failures] == [
        ("capture (event 3)", "ZeroDivisionError: oh", "row cells and batches: no longer watched in this process")
    ]
    assert facts(sanitizer.findings) == [("invalid_free", 7, "row:2")]


def test_a_rule_about_ownership_that_fails_ends_everything_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sanitizer, listener = engine()

    def broken(state: object, event: object) -> None:
        raise RuntimeError("oh")

    monkeypatch.setitem(sanitizer.tracker._rules, "free", broken)
    sanitizer.alloc("kv", [1], owner="A")
    sanitizer.free("kv", [1], owner="A")
    sanitizer.alloc("kv", [1], owner="A")
    sanitizer.req_end(owner="A")
    assert [(f.where, f.cost) for f in listener.failures] == [
        ("free (event 3)", "nothing is watched any more in this process")
    ]
    assert sanitizer.findings == []
    assert sanitizer.events == 6


def test_too_many_agents_cost_their_events_only() -> None:
    sanitizer, listener = engine()
    for number in range(4200):
        sanitizer.record(event="e", agent=f"stream{number}")
    assert len(listener.failures) == 64, "bounded"
    assert "more than 4096 agents" in listener.failures[0].error
    sanitizer.free("kv", [1], owner="A")
    assert facts(sanitizer.findings) == [("invalid_free", 4202, "kv:1")]


class Angry:
    """A plugin that fails at its second alloc."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    @hookimpl
    def kvsan_alloc(self, event: Event) -> None:
        self.heard.append(event.at)
        if len(self.heard) == 2:
            raise ValueError("cannot go on")

    @hookimpl
    def kvsan_free(self, event: Event) -> None:
        self.heard.append(event.at)


class AngryWrapper:
    """A wrapper that fails before it lets the event through."""

    @hookimpl(wrapper=True)
    def kvsan_alloc(self, event: Event) -> Generator[None, Any, Any]:
        if event.at >= 3:
            raise ValueError("cannot go on")
        return (yield)


@pytest.mark.parametrize("plugin", [Angry, AngryWrapper])
def test_a_plugin_that_fails_ends_and_costs_nothing_else(plugin: type[Any]) -> None:
    sanitizer, listener = engine()
    angry = plugin()
    sanitizer.add_plugin(angry, "angry")
    sanitizer.alloc("kv", [1], owner="A")
    sanitizer.alloc("kv", [2], owner="A")
    sanitizer.alloc("kv", [3], owner="A")
    sanitizer.free("kv", [1, 2, 3], owner="A")
    sanitizer.req_end(owner="A")
    assert sanitizer.findings == [], "the tracker missed an event"
    assert [(f.where, f.error, f.cost) for f in listener.failures] == [
        ("alloc (event 3)", "ValueError: cannot go on", "the plugin angry hears of no further event")
    ]
    assert [event.op for event in listener.events] == [
        "pool",
        "pool",
        "alloc",
        "alloc",
        "alloc",
        "free",
        "req_end",
    ] or (plugin is AngryWrapper)
    assert getattr(angry, "heard", [2, 3]) == [2, 3]


def test_a_plugin_that_fails_beside_a_wrapper_ends_alone() -> None:
    class Wrapper:
        heard: list[int] = []  # noqa: RUF012

        @hookimpl(wrapper=True)
        def kvsan_alloc(self, event: Event) -> Generator[None, Any, Any]:
            self.heard.append(event.at)
            return (yield)

    sanitizer, listener = engine()
    sanitizer.add_plugin(Angry(), "angry")
    sanitizer.add_plugin(Wrapper(), "wrapper")
    for slot in (1, 2, 3):
        sanitizer.alloc("kv", [slot], owner="A")
    assert [failure.cost for failure in listener.failures] == ["the plugin angry hears of no further event"]
    assert Wrapper.heard == [2, 3, 4]
    assert sanitizer.totals()[1].free == 12


def test_who_fails_at_hearing_of_findings_and_failures_does_not_reach_the_engine() -> None:
    class Deaf:
        @hookimpl
        def kvsan_finding(self, finding: Finding) -> None:
            raise RuntimeError("finding")

        @hookimpl
        def kvsan_failure(self, failure: Failure) -> None:
            raise RuntimeError("failure")

    sanitizer, _ = engine()
    sanitizer.add_plugin(Deaf())
    sanitizer.free("kv", [1], owner="A")
    sanitizer.alloc("none", [1])
    assert facts(sanitizer.findings) == [("invalid_free", 2, "kv:1")]
    assert [failure.cost for failure in sanitizer.report().failures] == [
        "a finding was not told",
        "this event was not taken",
    ]


def test_a_sink_that_fails_does_not_reach_the_engine() -> None:
    class Broken(Collector):
        def finding(self, finding: Finding) -> None:
            raise OSError("disk")

        def joined(self, token: str, joined: object) -> None:
            raise OSError("disk")

        def failure(self, failure: Failure) -> None:
            raise OSError("disk")

    sanitizer = Sanitizer(sink=Broken())
    sanitizer.pool("kv", kind="kv", size=4)
    for _ in range(3):
        sanitizer.free("kv", [1], owner="A")
    assert facts(sanitizer.findings) == [("invalid_free", 1, "kv:1")]


# -- on_error=raise


def test_raise_comes_after_the_shadow_took_the_event_in() -> None:
    sanitizer, listener = engine(on_error="raise")
    sanitizer.alloc("kv", [1], owner="A")
    with pytest.raises(FindingRaised, match='kvsan: DOUBLE ALLOC on kv:1 by "B"') as caught:
        sanitizer.alloc("kv", [1, 2], owner="B")
    assert caught.value.exit_status == 88
    assert facts([caught.value.finding]) == [("double_alloc", 3, "kv:1")]
    held = {holder.name: holder.held for holder in sanitizer.tracker.state.holders.all()}
    assert held == {"A": {}, "B": {1: 2}}
    sanitizer.free("kv", [1, 2], owner="B")
    sanitizer.req_end(owner="B")
    assert len(sanitizer.findings) == 1
    assert [finding.at for finding in listener.findings] == [], "raised before it was told to plugins"


def test_what_joins_does_not_raise() -> None:
    sanitizer, _ = engine(on_error="raise")
    sanitizer.alloc("kv", [1], owner="A")
    sanitizer.free("kv", [1], owner="A")
    with pytest.raises(FindingRaised):
        sanitizer.free("kv", [1], owner="A")
    sanitizer.free("kv", [1], owner="A")
    (finding,) = sanitizer.findings
    assert [(joined.kind, joined.at, joined.slots) for joined in finding.joined] == [("double_free", 5, (1,))]


def test_raise_comes_in_the_thread_that_caused_it() -> None:
    sanitizer, _ = engine(on_error="raise")
    raised: dict[str, str] = {}

    def free(slot: int) -> None:
        try:
            sanitizer.free("kv", [slot], owner="A")
        except FindingRaised as error:
            raised[threading.current_thread().name] = error.finding.object

    threads = [threading.Thread(target=free, args=(slot,), name=f"t{slot}") for slot in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == {f"t{slot}": f"kv:{slot}" for slot in (1, 2, 3)}


# -- stacks


def engine_allocates(sanitizer: Sanitizer) -> None:
    sanitizer.alloc("kv", [3], owner="A")


def engine_frees(sanitizer: Sanitizer) -> None:
    sanitizer.free("kv", [3], owner="A")


@pytest.mark.parametrize("wrapped", [False, True])
def test_frames_of_the_engine_come_first_and_those_of_kvsan_and_pluggy_never_show(wrapped: bool) -> None:
    sanitizer, _ = engine()
    if wrapped:

        class Wrapper:
            @hookimpl(wrapper=True)
            def kvsan_free(self, event: Event) -> Generator[None, Any, Any]:
                return (yield)

        sanitizer.add_plugin(Wrapper())
    engine_allocates(sanitizer)
    engine_frees(sanitizer)
    engine_frees(sanitizer)
    (finding,) = sanitizer.findings
    assert finding.present is not None and finding.earlier is not None
    line = engine_frees.__code__.co_firstlineno + 1
    for access in (finding.present, finding.earlier):
        assert [(os.path.basename(f.file), f.line, f.function) for f in access.stack[:1]] == [
            (HERE, line, "engine_frees")
        ]
    allocated = finding.provenance[0].stack
    assert [frame.function for frame in allocated[:2]] == [
        "engine_allocates", "test_frames_of_the_engine_come_first_and_those_of_kvsan_and_pluggy_never_show",
    ]  # fmt: skip
    for frame in (*finding.present.stack, *allocated):
        assert f"{os.sep}pluggy{os.sep}_" not in frame.file or "site-packages" in frame.file
        assert "hooks" + os.sep not in frame.file and frame.function not in ("capture", "_emit", "alloc", "free")
    assert finding.token == "double_free:test_sanitizer.engine_frees:test_sanitizer.engine_frees"


def test_the_stack_is_as_deep_as_told() -> None:
    sanitizer, listener = engine(stack_depth=2)
    engine_frees(sanitizer)
    assert len(sanitizer._frames(listener.events[-1].stack)) == 2
    assert sanitizer.site_of(listener.events[-1].stack) == (
        f"{__file__}:{engine_frees.__code__.co_firstlineno + 1} engine_frees"
    )


def test_frames_of_kvsan_do_not_count() -> None:
    """An adapter's readers stand between the engine and what they tell."""
    own: dict[str, Any] = {}
    exec(compile("def read(do, *arguments): do(*arguments)", hooks.__file__, "exec"), own)
    sanitizer, listener = engine(stack_depth=2)
    for _ in range(2):
        own["read"](own["read"], own["read"], sanitizer.free, "kv", [1])
    names = [[frame.function for frame in sanitizer.depot.frames(event.stack)] for event in listener.events[-2:]]
    assert [each[0] for each in names] == ["test_frames_of_kvsan_do_not_count"] * 2
    assert len(names[0]) == 2
    assert listener.events[-1].stack == listener.events[-2].stack


def test_stacks_are_kept_once() -> None:
    sanitizer, listener = engine()
    for _ in range(50):
        engine_allocates(sanitizer)
        engine_frees(sanitizer)
    assert len({event.stack for event in listener.events[2:]}) == 2


# -- threads, finalizers, signals, forks


def test_four_threads_at_once() -> None:
    sanitizer, listener = listening(level="full")
    sanitizer.pool("kv", kind="kv", size=400, reserved=[0])
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        mine = list(range(number * 100 + 1, number * 100 + 90))
        for round_ in range(150):
            name, some = f"t{number}.{round_}", mine[round_ % 60 : round_ % 60 + 20]
            agent = "host" if number == 0 else f"host:{number}"
            sanitizer.alloc("kv", some, owner=name, agent=agent)
            sanitizer.write("kv", some, owner=name, agent=agent)
            if round_ % 50 != 49:
                sanitizer.free("kv", some, owner=name, agent=agent)
                sanitizer.req_end(owner=name, agent=agent)
            else:
                mine = mine[:-1]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.at for event in listener.events] == list(range(sanitizer.events))
    assert listener.failures == []
    (kv,) = sanitizer.totals()
    held = sum(holder.held[0] for holder in sanitizer.tracker.state.holders.all() if holder.held)
    assert (kv.free, kv.owned, kv.pending, kv.cached) == (399 - held, held, 0, 0)
    words = sanitizer.tracker.state.pools["kv"].tenancy
    assert int(np.count_nonzero(words & 1)) == held
    assert {finding.kind for finding in sanitizer.findings} <= {"double_alloc", "race"}, (
        "only the slots kept by a round"
    )


def test_an_engine_that_frees_in_a_finalizer_while_an_event_is_handed_out() -> None:
    sanitizer, listener = engine()

    class Lease:
        def __init__(self, slot: int) -> None:
            self.me = self  # only the collector can end it
            self.slot = slot
            sanitizer.alloc("kv", [slot], owner="A")

        def __del__(self) -> None:
            sanitizer.free("kv", [self.slot], owner="A")
            sanitizer.check_memory()

    class Collects:
        @hookimpl
        def kvsan_step(self, event: Event) -> None:
            gc.collect()

    sanitizer.add_plugin(Collects())
    Lease(1)
    Lease(2)
    sanitizer.step()
    sanitizer.req_end(owner="A")
    assert [event.op for event in listener.events[2:]] == ["alloc", "alloc", "step", "free", "free", "req_end"]
    assert [event.at for event in listener.events] == list(range(8))
    assert (sanitizer.findings, listener.failures) == ([], [])


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_a_signal_handler_may_ask_and_tell_at_any_time() -> None:
    sanitizer, listener = engine()
    asked: list[str] = []

    def handler(number: int, frame: object) -> None:
        asked.append(sanitizer.check_memory())
        sanitizer.step()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for _ in range(4000):
            sanitizer.alloc("kv", [1, 2, 3], owner="A")
            sanitizer.free("kv", [1, 2, 3], owner="A")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    sanitizer.step()
    assert asked and all(text.startswith("row: available_size=3") for text in asked)
    assert [event.at for event in listener.events] == list(range(sanitizer.events))
    assert sum(event.op == "step" for event in listener.events) == len(asked) + 1
    assert (sanitizer.findings, listener.failures) == ([], [])


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("KVSAN")} | environment
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
    )


def test_a_fork_while_another_thread_is_at_it() -> None:
    done = run("""
        import os, sys, threading
        from kvsan.hooks.sanitizer import Sanitizer
        s = Sanitizer(); s.pool("kv", kind="kv", size=64)
        stop = threading.Event()
        def work():
            while not stop.is_set():
                s.alloc("kv", [1, 2], owner="A"); s.free("kv", [1, 2], owner="A")
        thread = threading.Thread(target=work); thread.start()
        children = []
        for _ in range(20):
            child = os.fork()
            if not child:
                s.alloc("kv", [10], owner="child"); s.free("kv", [10], owner="child"); s.free("kv", [10], owner="child")
                found = [f for f in s.findings if f.object == "kv:10"]
                os._exit(0 if [f.kind for f in found] == ["double_free"] else 1)
            children.append(child)
        stop.set(); thread.join()
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], len(s.findings))
    """)
    assert done.stdout == f"[{', '.join(['0'] * 20)}] 0\n"
    assert {line.partition(" at ")[0] for line in done.stderr.split("\n") if line} == {
        'kvsan: DOUBLE FREE on kv:10 by "child"'
    }


def test_a_fork_does_not_write_the_trace_twice(tmp_path: Path) -> None:
    for name in ("t.jsonl", "t.kvt"):
        done = run(
            """
            import os, sys
            from kvsan.hooks.sanitizer import Sanitizer
            from kvsan.traces.recorder import Recorder
            s = Sanitizer(); recorder = Recorder(sys.argv[1], s); s.add_plugin(recorder, "recorder")
            s.pool("kv", kind="kv", size=64)
            for slot in range(1, 40): s.alloc("kv", [slot], owner="A")
            import time; time.sleep(0.1)
            child = os.fork()
            if not child:
                s.free("kv", [1], owner="A")
                sys.exit(0)
            os.waitpid(child, 0)
            s.req_end(owner="A")
            print(recorder.close())
            """,
            str(tmp_path / name),
        )
        assert done.stdout == "[]\n"
        assert done.stderr.startswith('kvsan: LEAK on kv:1 by "A" at ') and done.stderr.count("\n") == 1
        checked = check_file(str(tmp_path / name))
        assert (checked.error, checked.events) == (None, 41)
        assert facts(checked.findings) == [("leak", 40, "kv:1")]


# -- on and off


def test_off_costs_no_import_and_no_work() -> None:
    done = run("""
        import sys
        from kvsan.hooks import current
        s = current()
        assert s is current()
        s.pool("kv", kind="kv", size=64); s.alloc("kv", object(), owner=3); s.anything_at_all(1, x=2)
        loaded = {name.partition(".")[0] for name in sys.modules}
        print(s.enabled, s.data, sorted(loaded & {"numpy", "pluggy", "rich", "torch"}))
        try: s._private
        except AttributeError: print("private names are none of its operations")
        import kvsan
        print(kvsan.check_memory())
    """)
    assert done.stdout.splitlines() == [
        "False False []",
        "private names are none of its operations",
        "kvsan is off in this process: start it with `kvsan run -- COMMAND`",
    ]
    assert done.stderr == ""


def test_scopes_nest() -> None:
    off = hooks.current()
    with hooks.scope(level="full") as outer:
        assert hooks.current() is outer and outer.enabled and outer.data
        outer.pool("kv", kind="kv", size=4)
        with hooks.scope(level="rows") as inner:
            assert hooks.current() is inner and not inner.data
            assert inner.totals() == ()
            with pytest.raises(KeyError), hooks.scope():
                raise KeyError
            assert hooks.current() is inner
        assert hooks.current() is outer
        assert [pool.pool for pool in outer.totals()] == ["kv"]
    assert hooks.current() is off


# -- plugins


def test_plugins_hear_everything_in_order_and_findings_afterwards() -> None:
    sanitizer, listener = engine()
    sanitizer.alloc("kv", [1, 2], owner="A")
    sanitizer.req_end(owner="A")
    sanitizer.free("kv", [9], owner="A")
    assert [(event.at, event.op) for event in listener.events] == [
        (0, "pool"), (1, "pool"), (2, "alloc"), (3, "req_end"), (4, "free"),
    ]  # fmt: skip
    assert [event.time_ns for event in listener.events] == sorted(event.time_ns or 0 for event in listener.events)
    assert facts(listener.findings) == [("leak", 3, "kv:1"), ("invalid_free", 4, "kv:9")] == facts(sanitizer.findings)


def test_wrappers_surround_the_tracker() -> None:
    seen: list[tuple[str, int]] = []

    class Wrapper:
        @hookimpl(wrapper=True)
        def kvsan_alloc(self, event: Event) -> Generator[None, Any, Any]:
            seen.append(("before", sanitizer.tracker.state.pools["kv"].free))
            result = yield
            seen.append(("after", sanitizer.tracker.state.pools["kv"].free))
            return result

    sanitizer, listener = engine()
    sanitizer.add_plugin(Wrapper(), "wrapper")
    sanitizer.alloc("kv", [1, 2], owner="A")
    sanitizer.free("kv", [1, 2], owner="A")
    assert seen == [("before", 15), ("after", 13)]
    assert [event.op for event in listener.events] == ["pool", "pool", "alloc", "free"]
    assert sanitizer.findings == []


def test_a_plugin_with_a_hook_that_is_none_is_refused() -> None:
    class Misspelt:
        @hookimpl
        def kvsan_aloc(self, event: Event) -> None: ...

    sanitizer, _ = engine()
    sanitizer.add_plugin(Misspelt(), "misspelt")
    with pytest.raises(Exception, match="unknown hook 'kvsan_aloc'"):
        sanitizer.manager.check_pending()


@pytest.mark.parametrize("name", ["t.jsonl", "t.kvt"])
def test_a_recording_gives_the_findings_of_the_process(name: str, tmp_path: Path) -> None:
    sanitizer, _ = listening(level="full")
    recorder = Recorder(str(tmp_path / name), sanitizer)
    sanitizer.add_plugin(recorder, "recorder")
    sanitizer.pool("state", kind="state", size=4)
    sanitizer.alloc("state", [1, 2, 3], owner="A")
    sanitizer.read("state", [1], owner="A", agent="fwd")
    sanitizer.write("state", [2], owner="A", agent="fwd")
    sanitizer.write("state", [2], owner="A", agent="copy")
    sanitizer.free("state", [3], owner="B")
    sanitizer.free("state", [0], owner="B")
    assert recorder.close() == []
    sanitizer.req_end(owner="A")
    checked = check_file(str(tmp_path / name))
    assert (checked.error, checked.events) == (None, 7)
    found = [
        ("uninit_read", 2, "state:1"), ("race", 4, "state:2"), ("free_not_owner", 5, "state:3"),
        ("invalid_free", 6, "state:0"),
    ]  # fmt: skip
    assert facts(checked.findings) == facts(sanitizer.findings)[:4] == found


def test_an_event_that_the_process_could_not_take_ends_the_judgement_of_its_recording(tmp_path: Path) -> None:
    sanitizer, _ = listening()
    recorder = Recorder(str(tmp_path / "t.kvt"), sanitizer)
    sanitizer.add_plugin(recorder, "recorder")
    sanitizer.pool("kv", kind="kv", size=4)
    sanitizer.free("kv", [1])
    sanitizer.alloc("none", [1])
    assert recorder.close() == []
    checked = check_file(str(tmp_path / "t.kvt"))
    assert str(checked.error).endswith(
        "event 2 (alloc): pool 'none' was never declared by a 'pool' event (declared: kv); 2 events up to 2 were read"
    )
    assert facts(checked.findings) == [("invalid_free", 1, "kv:1")]


def test_a_recording_says_what_is_whole_and_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def header(name: str, prepare: Callable[[Sanitizer], None]) -> tuple[str | None, str | None, int | None]:
        sanitizer, _ = listening(level="slots")
        recorder = Recorder(str(tmp_path / name), sanitizer)
        sanitizer.add_plugin(recorder, "recorder")
        prepare(sanitizer)  # as an adapter does, when the engine is ready: the recorder is there long before
        sanitizer.step()
        assert recorder.close() == []
        read = read_trace(tmp_path / name).header
        return read.level, read.group, read.rank

    assert header("alone.kvt", lambda sanitizer: None) == ("slots", None, None)
    assert header("rows.kvt", lambda sanitizer: sanitizer.watch_rows_only("slots are out of sight.")) == (
        "rows",
        None,
        None,
    )
    third = np.int64(3)
    assert header("placed.jsonl", lambda sanitizer: sanitizer.set_rank(group="g", number=third)) == ("slots", "g", 3)
    monkeypatch.setenv("KVSAN_GROUP", "told")
    assert header("half.kvt", lambda sanitizer: None) == ("slots", None, None)
    monkeypatch.setenv("KVSAN_RANK", "1")
    assert header("told.kvt", lambda sanitizer: None) == ("slots", "told", 1)
    monkeypatch.setenv("KVSAN_RANK", "\u00b2")
    assert header("odd.kvt", lambda sanitizer: None) == ("slots", None, None)
    assert header("both.kvt", lambda sanitizer: sanitizer.set_rank(group="g", number=0)) == ("slots", "g", 0)


def test_a_rank_that_cannot_be_one(tmp_path: Path) -> None:
    sanitizer, listener = listening()
    sanitizer.set_rank(group="g", number=-1)
    sanitizer.set_rank(group="g", number="first")  # type: ignore[arg-type]
    sanitizer.step()
    sanitizer.set_rank(group="g", number=1)  # too late
    assert sanitizer.rank is None
    assert [failure.where for failure in listener.failures] == ["set_rank"] * 3
    assert [failure.cost for failure in listener.failures] == ["the traces of several ranks are not compared"] * 3


def test_an_engine_that_takes_long_to_begin(tmp_path: Path) -> None:
    """Nothing is judged before the first event, so that what is known only then still gets into the trace's header."""
    sanitizer = hooks.start(Options(record=str(tmp_path / "t.kvt"), idle_seconds=0.05), Collector())
    try:
        time.sleep(0.3)
        sanitizer.watch_rows_only("slots are out of sight.")
        sanitizer.set_rank(group="g", number=1)
        sanitizer.step()
    finally:
        hooks.stop()
    (file,) = tmp_path.glob("*.kvt")
    header = read_trace(file).header
    assert (header.level, header.group, header.rank) == ("rows", "g", 1)


def test_sites_of_a_recording(tmp_path: Path) -> None:
    sanitizer, _ = listening()
    recorder = Recorder(str(tmp_path / "t.jsonl"), sanitizer)
    sanitizer.add_plugin(recorder, "recorder")
    sanitizer.pool("kv", kind="kv", size=8)
    engine_frees(sanitizer)
    assert recorder.close() == []
    last = json.loads((tmp_path / "t.jsonl").read_text().splitlines()[-1])
    assert last["site"] == f"{__file__}:{engine_frees.__code__.co_firstlineno + 1} engine_frees"
    (finding,) = check_file(str(tmp_path / "t.jsonl")).findings
    assert finding.present is not None and finding.present.site == last["site"]


def test_a_recording_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    sanitizer, listener = listening()
    recorder = Recorder(str(tmp_path / "t.jsonl"), sanitizer)
    sanitizer.add_plugin(recorder, "recorder")
    sanitizer.done(batch=object())  # type: ignore[arg-type]
    for _ in range(50):
        sanitizer.step()
    (note,) = recorder.close()
    assert note.startswith(f"{tmp_path / 't.jsonl'}: recording ended: ")
    assert listener.failures == []


# -- asking


def test_check_memory() -> None:
    sanitizer, _ = engine()
    sanitizer.alloc("kv", [1, 2, 3], owner="A")
    sanitizer.alloc("kv", [4], owner="evil\x1b[31m")
    sanitizer.alloc("kv", [5, 6])
    sanitizer.alloc("kv", [7, 8, 9], owner="C")
    sanitizer.insert("kv", [7, 8, 9], owner="C", node="n")
    sanitizer.free("kv", [3], owner="A", group="g")
    sanitizer.alloc("row", [1], owner="A")
    sanitizer.req_abort(owner="A")
    assert sanitizer.check_memory().splitlines() == [
        "row: available_size=2, cached=0, owned=1, pending=0, total_size=3",
        "           1  A (aborted)",
        "kv: available_size=6, cached=3, owned=5, pending=1, total_size=15",
        "           2  A (aborted)",
        "           1  evil\\x1b[31m",
        "           2  nobody known",
    ]
    assert Sanitizer().check_memory() == "no pool was declared in this process"
    with hooks.scope() as scoped:
        scoped.pool("kv", kind="kv", size=2)
        import kvsan

        assert kvsan.check_memory() == "kv: available_size=2, cached=0, owned=0, pending=0, total_size=2"


def test_holdings_count_locks_that_nobody_has_given_back() -> None:
    def locked(*unlocks: str | None) -> dict[str, int]:
        sanitizer, _ = engine()
        for owner in ("r1", "r2"):
            sanitizer.lock(node="n", owner=owner)
        sanitizer.lock(node="m", owner="r1")
        for owner in unlocks:
            sanitizer.unlock(node="n", owner=owner)
        return {owner.name: owner.locked for owner in sanitizer.holdings().owners}

    assert locked() == {"r1": 2, "r2": 1}
    assert locked("r1") == {"r1": 1, "r2": 1}
    assert locked("r1", None) == {"r1": 1}, "the only one left is r2's"
    assert locked(None, None) == {"r1": 1}
    assert locked("r2", "r1") == {"r1": 1}


def test_holdings_within_a_time() -> None:
    sanitizer, _ = engine()
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with sanitizer._lock:
            held.set()
            go.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(20)
    with pytest.raises(TimeoutError, match=r"in the making for 0\.01 s"):
        sanitizer.holdings(0.01)
    go.set()
    thread.join()
    assert sanitizer.holdings(0.01).batches == 0


def test_check_memory_of_many_owners() -> None:
    sanitizer, _ = listening()
    sanitizer.pool("kv", kind="kv", size=100)
    for number in range(25):
        sanitizer.alloc("kv", [number], owner=f"r{number:02}")
    lines = sanitizer.check_memory().splitlines()
    assert len(lines) == 22
    assert lines[-1] == "           5  5 more owners"


def test_the_report_of_a_sanitizer() -> None:
    sanitizer, _ = engine()
    sanitizer.alloc("kv", [1], owner="A")
    sanitizer.check_end()
    report = sanitizer.report()
    assert facts(report.findings) == [("leak", 3, "kv:1")]
    assert (report.events, [pool.pool for pool in report.totals]) == (4, ["row", "kv"])
    assert report.findings[0].present is not None
    assert report.findings[0].present.stack[0].function == "test_the_report_of_a_sanitizer"


def test_findings_of_one_site_are_told_in_full_a_few_times_only() -> None:
    """The search for a slot's past goes through everything kept: a server with one fault a step must not pay it each
    time."""
    sanitizer, listener = engine()
    for slot in range(1, 8):
        sanitizer.alloc("kv", [slot], owner="A")
        sanitizer.free("kv", [slot], owner="A")
        sanitizer.free("kv", [slot], owner="A")
    assert [finding.kind for finding in listener.findings] == ["double_free"] * 7
    assert [len(finding.provenance) > 0 for finding in listener.findings] == [True] * 4 + [False] * 3
    assert {finding.token for finding in listener.findings} == {listener.findings[0].token}
    assert sanitizer.report().findings[0].count == 7
