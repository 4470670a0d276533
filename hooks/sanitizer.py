"""The sanitizer that an engine, an adapter or a test talks to: one method for each operation of a trace."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import EntryPoints, entry_points
from operator import index
from typing import Any

import pluggy

from kvsan.depot import StackDepot
from kvsan.errors import FindingRaised
from kvsan.events import EVENT_CLASSES, NEVER_CITED, Event, Idle, as_slots
from kvsan.findings import Failure, Finding, Frame, Joined, PoolTotals, Report
from kvsan.holdings import Holdings, holdings_of
from kvsan.options import Options
from kvsan.policy import Policy, token_of
from kvsan.ranks import Rank
from kvsan.several import Several
from kvsan.sinks import Collector, Sink
from kvsan.tracker import Tracker

from .late import Backlog, Reading, Work
from .operations import Operations
from .specification import PLUGINS, PROJECT, Specification

_OWN_FOLDERS = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (__file__, as_slots.__code__.co_filename, pluggy.__file__)
)
_ENGINE_FOLDERS = tuple(
    os.path.join(os.path.dirname(folder.rstrip(os.sep)), "reference_engine") + os.sep for folder in _OWN_FOLDERS
) + tuple(os.path.join(folder, "reference_engine") + os.sep for folder in _OWN_FOLDERS)


@cache
def _installed_plugins() -> EntryPoints:
    """Looked up once: `pytest --kvsan` makes a sanitizer for every test."""
    return entry_points(group=PLUGINS)


def is_own(file: str) -> bool:
    """Is this a file of kvsan or pluggy, whose frames never show? The reference engine's are an engine's."""
    return file.startswith(_OWN_FOLDERS) and not file.startswith(_ENGINE_FOLDERS)


class Sanitizer(Operations):
    """Watches one engine process.

    Options are those of `kvsan.options.Options`, by name (`level="full"`, `on_error="raise"`), or a ready `options`.
    Findings go to `sink`; without one they are kept, and `report()` tells them. Thread-safe. Nothing that fails in here
    reaches the engine: it is told once, and ends the rule that failed. With `on_error="raise"` a finding raises
    FindingRaised in the thread that caused it, after the shadow took the event in.
    """

    enabled = True

    def __init__(self, options: Options | None = None, sink: Sink | None = None, **named: Any) -> None:
        if options is None:
            options = Options(**named)
        self.options = options
        self.data = options.level == "full"
        self.depot = StackDepot(options.stack_depth, is_own)
        self.tracker = Tracker(options.level, strict=False, frames=self._frames)
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(Specification)
        self.manager.register(self.tracker, "tracker")
        self._collector = Collector()
        self._sink: Sink = sink if sink is not None else self._collector
        self._policy = Policy(options, self._sink)
        self._lock = threading.RLock()
        self._inside = False  # the thread that holds the lock is handing an event out
        self._deferred: deque[Event] = deque()  # what it is told meanwhile by finalizers, signal handlers and plugins
        self._next = 0
        self._late = Backlog(self._take)
        self.told = 0
        """How often something was told so far, taken or not: whether anything happened since."""
        self._alone: tuple[Callable[[Event], object], ...] = (self.tracker.take,)
        self._calls: dict[str, tuple[Callable[[Event], object], ...]] = {}
        self._with_stack: set[str] = set()
        self._new: list[Finding] = []
        self._later: list[tuple[Finding, Joined]] = []
        self._failed: set[str] = set()
        self._judges_ends = True
        self.last_event_ns = time.monotonic_ns()
        self.rank: Rank | None = None
        """Which of several ranks this process is, if it is one; see `set_rank`."""
        self.tracker.state.verdicts.on_finding = self._new.append
        self.tracker.state.verdicts.on_joined = lambda finding, joined: self._later.append((finding, joined))
        self.tracker.on_failure = self._tell_failure
        self._refresh()
        _living.add(self)

    def add_plugin(self, plugin: object, name: str | None = None) -> None:
        """Registers a detector, recorder or reporter (see `kvsan.hooks.specification`)."""
        self.manager.register(plugin, name)
        self._refresh()

    def load_plugins(self) -> None:
        """Registers what installed packages name in the entry point group `kvsan.plugins`: a module, an object, or a
        class that is called without arguments. One that does not load is told, and left out."""
        for point in _installed_plugins():
            try:
                plugin = point.load()
                self.add_plugin(plugin() if isinstance(plugin, type) else plugin, point.name)
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                self._tell_failure(Failure(f"plugin {point.name} ({point.value})", what, "this plugin is left out"))

    def _refresh(self) -> None:
        """Works out what each event calls. Event hooks give no results, so plain implementations are called directly,
        in pluggy's order; pluggy's own call costs more than all the rest of a small event, and is kept for
        wrappers."""
        for cls in EVENT_CLASSES:
            caller = getattr(self.manager.hook, cls.hook)
            plugins = caller.get_hookimpls()
            if any(each.wrapper or each.hookwrapper or each.argnames != ("event",) for each in plugins):
                self._calls[cls.op] = (partial(_call, caller),)
            else:
                self._calls[cls.op] = tuple(
                    self.tracker.take if each.plugin is self.tracker else each.function for each in reversed(plugins)
                )
        # Only a trace says where events come from that nothing cites.
        self._with_stack = {op for op, calls in self._calls.items() if op not in NEVER_CITED or calls != self._alone}

    def _emit(self, event: Event) -> None:
        """Stamps an event and hands it to the plugins; called by the operation that the engine called."""
        try:
            self.told += 1
            late = self._late.work
            if late is not None:
                event.time_ns, event.stack = late.time_ns, late.stack
            else:
                event.time_ns = self.last_event_ns = time.monotonic_ns()
                if event.op in self._with_stack:
                    event.stack = self.depot.capture(2)
            if self._late.behind:
                self._late.add(event)
                return
        except Exception as error:
            self._tell_failure(Failure(event.op, f"{type(error).__name__}: {error}", "this event was not taken"))
            return
        self._take(event)

    def _take(self, event: Event) -> None:
        """Hands a stamped event out, and tells what it brings to light."""
        try:
            with self._lock:
                if self._inside:
                    self._deferred.append(event)
                    return
                self._inside = True
                try:
                    self._hand_out(event)
                    while self._deferred:
                        self._hand_out(self._deferred.popleft())
                    if not self._new and not self._later:
                        return
                    new, later = list(self._new), list(self._later)
                    self._new.clear()
                    self._later.clear()
                finally:
                    self._inside = False
        except Exception as error:
            self._tell_failure(Failure(event.op, f"{type(error).__name__}: {error}", "this event was not taken"))
            return
        self._tell(new, later)

    def _hand_out(self, event: Event) -> None:
        event.at = self._next
        calls = self._calls[event.op]
        if isinstance(event, Several):
            if calls == self._alone:
                self._next += len(event)
                self._hand_to_tracker(event)
            else:  # other plugins hear of one event at a time
                for number in range(len(event)):
                    self._hand_out(event.one(number))
            return
        self._next += 1
        for call in calls:
            try:
                call(event)
            except Exception as error:
                self._end_plugin(call, event, error)

    def _hand_to_tracker(self, events: Several) -> None:
        try:
            self.tracker.take_several(events)
        except Exception as error:
            self._end_plugin(self.tracker.take, events, error)

    def _end_plugin(self, call: Callable[[Event], object], event: Event, error: Exception) -> None:
        """A plugin that failed hears of no further event; the tracker gives up single rules on its own."""
        where, what = f"{event.op} (event {event.at})", f"{type(error).__name__}: {error}"
        plugin = getattr(call, "__self__", None)
        through_pluggy = plugin is None
        if through_pluggy:
            plugin = self._to_blame(event, error)
        if plugin is self.tracker:
            self._tell_failure(Failure(where, what, "this event was not taken"))
            return
        name = self.manager.get_name(plugin) or type(plugin).__name__
        if self.manager.is_registered(plugin):
            self.manager.unregister(plugin)
        self._refresh()
        self._tell_failure(Failure(where, what, f"the plugin {name} hears of no further event"))
        clocks = self.tracker.state.clocks
        if through_pluggy and clocks.seen(clocks.agent) < event.at:  # the tracker's turn did not come
            self.tracker.take(event)

    def _to_blame(self, event: Event, error: Exception) -> object:
        """The plugin in whose code pluggy's call failed; a wrapper if it was in none's."""
        plugins = getattr(self.manager.hook, type(event).hook).get_hookimpls()
        codes = {getattr(each.function, "__code__", None): each.plugin for each in plugins}
        blamed = next((each.plugin for each in plugins if each.wrapper or each.hookwrapper), None)
        trace = error.__traceback__
        while trace is not None:
            blamed = codes.get(trace.tb_frame.f_code, blamed)
            trace = trace.tb_next
        return blamed

    def _refuse(self, op: str, error: Exception) -> None:
        """An operation whose arguments make no event."""
        cost = "this event was not taken; slots, rows and lengths are host integers, lists or int64 arrays"
        self._tell_failure(Failure(op, f"{type(error).__name__}: {error}", cost))

    def _tell(self, new: list[Finding], later: list[tuple[Finding, Joined]]) -> None:
        raised: FindingRaised | None = None
        for finding in new:
            try:
                self._policy.take(finding)
                self.manager.hook.kvsan_finding(finding=finding)
            except FindingRaised as error:
                raised = raised or error
            except Exception as error:
                self._tell_failure(Failure("report", f"{type(error).__name__}: {error}", "a finding was not told"))
        for finding, joined in later:
            try:
                self._policy.joined(token_of(finding), joined)
            except Exception as error:
                self._tell_failure(Failure("report", f"{type(error).__name__}: {error}", "a violation was not told"))
        if raised is not None and not self._late.hold(raised):
            raise raised

    def _tell_failure(self, failure: Failure) -> None:
        key = f"{failure.where.split(' ')[0]}:{failure.error}"
        if key in self._failed or len(self._failed) >= 64:
            return
        self._failed.add(key)
        failure = Failure(failure.where, failure.error, failure.cost, os.getpid())
        try:
            self._sink.failure(failure)
            self.manager.hook.kvsan_failure(failure=failure)
        except Exception:
            return  # who cannot even hear of a failure cannot be told of the next

    # -- for adapters

    def later(self, do: Callable[..., None], *readings: Reading, failed: Callable[[Exception], None]) -> None:
        """Does `do(*values)` when the readings are there: at a `settle` later on, in the order of the calls. What is
        told from here on waits for it. Its events have the time and the stack of this call.

        If it fails, or too much waits, all that waits is forgotten, and every `failed` of it is called: what it watches
        was not seen whole.
        """
        self.told += 1
        late = self._late.work
        if late is not None:
            work = Work(do, readings, failed, late.time_ns, late.stack)
        else:
            self.last_event_ns = time.monotonic_ns()
            work = Work(do, readings, failed, self.last_event_ns, self.depot.capture(1))
        self._late.add(work)

    def settle(self) -> None:
        """Takes in what waited and is there by now; waits for nothing."""
        self._late.settle()

    def settle_at_end(self, seconds: float = 0.5) -> None:
        """Takes in what is there or comes within so many seconds; at an end nobody is kept waiting any more. A finding
        that is raised is told; nobody is left to raise it to."""
        until = time.monotonic() + seconds
        while True:
            try:
                self.settle()
            except FindingRaised:
                continue
            if not self.waiting or time.monotonic() >= until:
                return
            time.sleep(0.005)

    @property
    def waiting(self) -> int:
        """How many events, and pieces of work that will tell more of them, wait for numbers."""
        return len(self._late)

    def fail(self, failure: Failure) -> None:
        """Tells that something of kvsan failed in this process, once."""
        self._tell_failure(failure)

    def stop_judging_ends(self) -> None:
        """Nobody tells any more what the engine does: what is held in any pool at an end or while all is quiet says
        nothing."""
        self._judges_ends = False

    @property
    def level(self) -> str:
        """What is judged: rows, slots or full."""
        return self.tracker.state.level

    def set_rank(self, *, group: str, number: int) -> None:
        """This process is one of several that must hand out and take back the same slots: rank `number`, from 0 on, of
        `group`, whose name no other engine shares. To be called before the first event: a trace says it in its
        header."""
        try:
            rank = Rank(str(group), index(number))
            if rank.number < 0:
                raise ValueError(f"a rank is a number from 0 on, not {rank.number}")
            if self._next:
                raise ValueError("events have come already, and with the first of them the trace's header")
        except (TypeError, ValueError) as error:
            cost = "the traces of several ranks are not compared"
            self._tell_failure(Failure("set_rank", f"{type(error).__name__}: {error}", cost))
        else:
            self.rank = rank

    def note(self, text: str) -> None:
        """Tells a sentence that a person must read."""
        self._sink.note(text)

    def watch_rows_only(self, why: str) -> None:
        """Lowers the level to `rows`, where slots cannot be followed; before the first pool is declared. `why` is a
        sentence."""
        self._sink.lacks(why)
        with self._lock:
            state = self.tracker.state
            state.level, state.watch_slots, state.watch_data = "rows", False, False
            self.data = False

    def _frames(self, stack: int) -> tuple[Frame, ...]:
        frames = [frame for frame in self.depot.frames(stack) if not is_own(frame.file)]
        while frames and frames[-1].file == threading.__file__:  # how every thread begins
            frames.pop()
        return tuple(frames)

    def site_of(self, stack: int) -> str | None:
        """The innermost engine frame of a stack, in words."""
        for frame in self.depot.frames(stack):
            if not is_own(frame.file):
                return f"{frame.file}:{frame.line} {frame.function}"
        return None

    # -- asking

    @property
    def events(self) -> int:
        """Events taken so far."""
        return self._next

    @property
    def findings(self) -> list[Finding]:
        """Everything found so far, in the order of the events."""
        with self._lock:
            return self.tracker.findings

    def totals(self) -> tuple[PoolTotals, ...]:
        """The totals of every pool now."""
        with self._lock:
            return self.tracker.totals()

    def tell_totals(self) -> None:
        """Hands the totals of every pool to the sink."""
        if (note := self._late.standing()) is not None:
            self._sink.note(note)
        self._sink.totals(self.totals(), self.events)

    def report(self) -> Report:
        """The report of this sanitizer alone; empty of findings if a sink of your own has them."""
        self._collector.totals(self.totals(), self.events)
        return self._collector.report()

    def check_end(self) -> None:
        """Judges what is still held, as `idle` does, if what goes on is still told: for the end of a test."""
        self.settle()
        if self._judges_ends:
            self._emit(Idle())

    def check_memory(self) -> str:
        """The totals line that people know for each pool, then who holds what is not free."""
        from kvsan.memory import describe

        return describe(self.holdings())

    def holdings(self, timeout: float = -1) -> Holdings:
        """Who holds what now. Raises TimeoutError if events are being taken for longer than `timeout` seconds."""
        if not self._lock.acquire(timeout=timeout):
            raise TimeoutError(f"an event has been in the making for {timeout:g} s")
        try:
            return holdings_of(self.tracker)
        finally:
            self._lock.release()

    @property
    def watching(self) -> bool:
        """Is what the engine does still told?"""
        return self._judges_ends


def _call(caller: Callable[..., object], event: Event) -> None:
    """Through pluggy, whose hooks take names."""
    caller(event=event)


_living: weakref.WeakSet[Sanitizer] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a forked child no other thread is left that could give a lock back."""
    for sanitizer in list(_living):
        sanitizer._lock = threading.RLock()
        sanitizer._late = Backlog(sanitizer._take)  # what waits is the parent's, as is its device
        sanitizer._inside = False


os.register_at_fork(after_in_child=_renew_locks)
