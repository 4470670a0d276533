"""The recent past: a bounded window of events that reports look things up in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from .events import Event

KEPT_EVENTS = 32_768
KEPT_SLOTS = 4_000_000


class History:
    """The last events by index; old ones go when the events or the slots that they name become too many."""

    def __init__(self) -> None:
        self._events: deque[tuple[Event, int, int]] = deque()  # event, scheduler step, slots it names
        self._slots = 0
        self.step = 0

    def append(self, event: Event, slots: int) -> None:
        """Keeps an event that names `slots` slots."""
        self._events.append((event, self.step, slots))
        self._slots += slots
        while len(self._events) > KEPT_EVENTS or (self._slots > KEPT_SLOTS and len(self._events) > 1):
            self._slots -= self._events.popleft()[2]

    def find(self, at: int) -> tuple[Event, int] | None:
        """Event `at` and the scheduler step it fell in, if it is still kept."""
        if not self._events:
            return None
        position = at - self._events[0][0].at
        if 0 <= position < len(self._events):
            event, step, _ = self._events[position]
            if event.at == at:
                return event, step
        for event, step, _ in reversed(self._events):  # indices of a damaged trace may have holes
            if event.at <= at:
                return (event, step) if event.at == at else None
        return None

    def backwards(self) -> Iterator[tuple[Event, int]]:
        """Events and their steps, latest first."""
        for event, step, _ in reversed(self._events):
            yield event, step
