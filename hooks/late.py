"""Work whose numbers are still on their way: slot ids that a device computes are copied to the host while the engine
goes on, and told when they are there.

What is told meanwhile waits behind it, with the time and the stack of its own call, so that the tracker gets everything
in the order in which it happened. Nothing here waits for a device: `settle` takes in what has arrived, and leaves the
rest for the next time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kvsan.errors import FindingRaised
from kvsan.events import Event, Slots

MOST = 500_000
"""How many events and pieces of work may wait. A scheduler that runs two batches ahead has some hundred; of thousands
of requests that come, end or are taken back at once, each has up to twenty."""


class Reading(Protocol):
    """Numbers that will be there."""

    def ready(self) -> bool:
        """Are they? Does not wait."""

    def value(self) -> Slots:
        """The numbers, int64, shape [n]; only once they are there."""


@dataclass(frozen=True, slots=True)
class Work:
    """What to do with numbers when they are there; `time_ns` and `stack` are those of the call that it is about."""

    do: Callable[..., None]
    readings: tuple[Reading, ...]
    failed: Callable[[Exception], None]
    time_ns: int
    stack: int


class Backlog:
    """What waits, in order. `take` gets the events; those that work tells come between them."""

    def __init__(self, take: Callable[[Event], None]) -> None:
        self._take = take
        self._waiting: deque[Event | Work] = deque()
        self._lock = threading.Lock()
        self._thread = 0
        self._now: Event | Work | None = None
        self._nested: list[Event | Work] = []
        self._full = False
        self._left_out: set[Callable[[Exception], None]] = set()
        """Who told work that was too much."""
        self._held: FindingRaised | None = None
        self._readings = 0
        self._latest_ns = 0

    def __len__(self) -> int:
        return len(self._waiting) + (self._now is not None)

    @property
    def work(self) -> Work | None:
        """The work that this thread is doing, whose time and stack its events have."""
        return self._now if isinstance(self._now, Work) and self._inside else None

    @property
    def behind(self) -> bool:
        """Must what this thread tells now wait?"""
        return bool(self._nested) if self._inside else bool(self._waiting) or self._now is not None

    @property
    def _inside(self) -> bool:
        """Is this what something tells that is being taken in?"""
        return self._now is not None and self._thread == threading.get_ident()

    def add(self, what: Event | Work) -> None:
        """Puts it behind what waits; what is told while something is taken in, right behind that.

        What waits is forgotten if it is more than `MOST`, and that is a failure of its work; at the next `settle`, as
        who tells may be in the middle of a call, whose rest must not be judged either.
        """
        if self._inside:
            self._nested.append(what)
        elif len(self._waiting) < MOST and not self._full:
            self._waiting.append(what)
        else:
            self._full = True
            if isinstance(what, Work):
                self._left_out.add(what.failed)

    def hold(self, raised: FindingRaised) -> bool:
        """Is work being done, half of which must not be left undone for what it brought to light? That is then raised
        once the work is done."""
        if self.work is None:
            return False
        self._held = self._held or raised
        return True

    def standing(self) -> str | None:
        """How much came late, and how late, in a sentence; None if nothing did."""
        if not self._readings and not self:
            return None
        left = f" {len(self):,} events still wait and are not judged." if self else ""
        return (
            f"Slot ids of {self._readings:,} tensors came from the device while the engine went on; what they show was "
            f"told at most {self._latest_ns / 1e6:,.0f} ms after the call that it is about.{left}"
        )

    def settle(self) -> None:
        """Takes in what is there, up to the first that is not; of several threads one, and the others go on."""
        if not self._waiting or not self._lock.acquire(blocking=False):
            return
        try:
            self._thread = threading.get_ident()
            while self._waiting:
                if self._full:
                    self._fail(OverflowError(f"{MOST:,} events wait for numbers that do not come from the device"))
                    return
                first = self._waiting[0]
                if isinstance(first, Work) and not self._ready(first):
                    return
                self._now = first  # before it leaves the others: another thread must not think that nothing waits
                self._waiting.popleft()
                try:
                    if isinstance(first, Work):
                        self._do(first)
                    else:
                        self._take(first)
                finally:
                    self._waiting.extendleft(reversed(self._nested))
                    self._nested.clear()
                    self._now = None
                held, self._held = self._held, None
                if held is not None:
                    raise held
        finally:
            self._lock.release()

    def _ready(self, work: Work) -> bool:
        try:
            return all(each.ready() for each in work.readings)
        except Exception as error:  # the device is lost
            self._fail(error, work)
            return False

    def _do(self, work: Work) -> None:
        if work.readings:
            self._readings += len(work.readings)
            self._latest_ns = max(self._latest_ns, time.monotonic_ns() - work.time_ns)
        try:
            work.do(*[each.value() for each in work.readings])
        except Exception as error:
            self._fail(error, work)

    def _fail(self, error: Exception, *last: Work) -> None:
        """Something was missed: what follows would be judged by a shadow that is wrong."""
        failed = self._left_out | {each.failed for each in (*self._waiting, *last) if isinstance(each, Work)}
        self._waiting.clear()
        self._nested.clear()
        self._left_out, self._full = set(), False
        for tell in failed:
            tell(error)
