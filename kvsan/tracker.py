"""The tracker: takes events one by one, advances the clocks, and lets the rule for each event judge and carry it out.

Replaying a trace, driving the tracker from a test and running inside a server all end here. It is a plugin of the
hooks' manager like any other: it has one hook implementation for each event class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pluggy

from . import narrate
from .errors import EventError
from .events import EVENT_CLASSES, NEVER_CITED, Event
from .findings import Failure, Finding, PoolTotals
from .rules import accesses, allocs, cache, frees, order, ownership, requests, rowcells, steps
from .rules.nodeslots import held_by
from .several import Captures, Owns, RowWrites, Several
from .state import State

hookimpl = pluggy.HookimplMarker("kvsan")

Rule = Callable[[State, Any], None]

RULES: dict[str, Rule] = {
    "pool": ownership.declare,
    "reset": ownership.reset,
    "alloc": allocs.alloc,
    "own": ownership.own,
    "give": ownership.give,
    "reuse": ownership.reuse,
    "free": frees.free,
    "flush": frees.flush,
    "map_set": frees.map_set,
    "map_clear": frees.map_clear,
    "insert": cache.insert,
    "attach": cache.attach,
    "evict": cache.evict,
    "split": cache.split,
    "match": cache.match,
    "lock": cache.lock,
    "unlock": cache.unlock,
    "row_write": rowcells.row_write,
    "capture": rowcells.capture,
    "launch": rowcells.launch,
    "done": rowcells.done,
    "read": accesses.read,
    "write": accesses.write,
    "xfer_begin": accesses.xfer_begin,
    "xfer_end": accesses.xfer_end,
    "record": order.record,
    "wait": order.wait,
    "query": order.query,
    "sync": order.sync,
    "req_start": requests.req_start,
    "req_finish": requests.req_finish,
    "req_abort": requests.req_abort,
    "req_retract": requests.req_retract,
    "req_end": requests.req_end,
    "kv_record": requests.kv_record,
    "count": requests.count,
    "step": requests.step,
    "idle": requests.idle,
}

PLAIN: dict[type[Several], Callable[[State, Any, int], int]] = {
    Owns: steps.owns,
    RowWrites: steps.row_writes,
    Captures: steps.captures,
}
"""For several events at once: the rules that take those of them that are plain."""

CONCERNS: dict[str, frozenset[str]] = {
    "row cells and batches": frozenset({"row_write", "capture", "launch", "done"}),
    "data accesses": frozenset({"read", "write"}),
    "transfers": frozenset({"xfer_begin", "xfer_end"}),
    "records and totals": frozenset({"kv_record", "count"}),
    "key domains": frozenset({"match"}),
}
"""What can fail alone: these rules end together, and the others go on. A failure anywhere else leaves the shadow
unsound, and ends everything."""


class Tracker:
    """Judges the events of one engine process.

    `level` is rows, slots or full; `strict` lets errors out (traces, tests) instead of giving up the rule that failed
    (servers). `frames` renders a stack id. `on_failure` hears of kvsan's own failures.
    """

    def __init__(
        self,
        level: str = "full",
        *,
        strict: bool = True,
        frames: narrate.Frames = narrate.no_frames,
    ) -> None:
        self.state = State(narrate.Narrator(frames, brief=not strict), level)
        self.strict = strict
        self.on_failure: Callable[[Failure], None] = lambda failure: None
        self.failures: list[Failure] = []
        self._rules = dict(RULES)

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, in the order of the events; joined violations are filled in."""
        joined = self.state.verdicts.joined
        return [narrate.with_joined(f, joined.get(f"{f.at}:{f.token}", ())) for f in self.state.verdicts.findings]

    def take(self, event: Event) -> None:
        """Takes one event, whose index `at` must be larger than those before it."""
        rule = self._rules.get(event.op)
        if rule is None:
            return
        state = self.state
        state.clocks.enter(event.agent, event.via, event.at)
        if event.op not in NEVER_CITED:
            state.history.append(event)
        state.events += 1
        self._judge(rule, event)

    def take_several(self, events: Several) -> None:
        """Takes several events, just as if `take` had taken them one by one."""
        if events.op not in self._rules:
            return
        state, count = self.state, len(events)
        plain = PLAIN[type(events)]
        state.history.append(events)
        state.events += count
        number = 0
        while number < count and (rule := self._rules.get(events.op)) is not None:
            state.clocks.enter(events.agent, events.via, events.at + number)
            try:
                stop = plain(state, events, number)
            except Exception as error:
                if self.strict:
                    raise
                self._give_up(events, error)
                return
            if stop < count:
                if stop > number:
                    state.clocks.enter(events.agent, events.via, events.at + stop)
                self._judge(rule, events.one(stop))
            number = stop + 1

    def _judge(self, rule: Rule, event: Event) -> None:
        state = self.state
        if self.strict:
            rule(state, event)
            return
        try:
            rule(state, event)
        except EventError as error:
            self._fail(event, error, "this event was not taken")
        except Exception as error:
            self._give_up(event, error)

    def _give_up(self, event: Event, error: Exception) -> None:
        for concern, operations in CONCERNS.items():
            if event.op in operations:
                for op in operations:
                    self._rules.pop(op, None)
                self._fail(event, error, f"{concern}: no longer watched in this process")
                return
        self._rules.clear()
        self._fail(event, error, "nothing is watched any more in this process")

    def _fail(self, event: Event, error: Exception, cost: str) -> None:
        failure = Failure(f"{event.op} (event {event.at})", f"{type(error).__name__}: {error}", cost)
        if any(known.error == failure.error for known in self.failures) or len(self.failures) >= 64:
            return
        self.failures.append(failure)
        self.on_failure(failure)

    def totals(self) -> tuple[PoolTotals, ...]:
        """The totals of every pool now: scans the pools, so not for scheduler threads."""
        state = self.state
        result = []
        protected = [node for node in state.nodes.all() if node.slots and node.protected]
        over = [holder for holder in state.holders.all() if holder.state == "ended" and holder.held]
        for pool in state.by_number:
            leaked = sum(holder.held.get(pool.number, 0) for holder in over)
            result.append(
                PoolTotals(
                    pool=pool.name, kind=pool.kind, size=pool.size, page=pool.page, reserved=pool.reserved,
                    free=pool.free, pending=pool.pending, owned=pool.held - pool.cached - leaked, cached=pool.cached,
                    locked=sum(int(held_by(pool, node).size) for node in protected),
                    leaked=leaked, events=pool.events, findings=dict(state.verdicts.counts.get(pool.name, {})),
                )
            )  # fmt: skip
        return tuple(result)


def _add_hooks() -> None:
    """One hook implementation a class of events, each handing its event to `take`."""
    for cls in EVENT_CLASSES:

        def implementation(self: Tracker, event: Event) -> None:
            self.take(event)

        implementation.__name__ = cls.hook
        implementation.__qualname__ = f"Tracker.{cls.hook}"  # pluggy takes `self` away where this says it is a method
        setattr(Tracker, cls.hook, hookimpl(implementation))


_add_hooks()
