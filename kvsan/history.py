"""The recent past: a bounded window of events that reports look things up in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from .events import Event

KEPT_EVENTS = 32_768
KEPT_SLOTS = 4_000_000


def named_slots(event: Event) -> int:
    """How many slots the event names."""
    slots = getattr(event, "slots", None)
    return slots.size if slots is not None else 0


class History:
    """The last events by index; old ones go when the events or the slots that they name become too many."""

    def __init__(self) -> None:
        self._events: deque[tuple[Event, int]] = deque()
        self._slots = 0
        self.step = 0

    def append(self, event: Event, slots: int) -> None:
        """Keeps an event that names `slots` slots."""
        events = self._events
        events.append((event, self.step))
        self._slots += slots
        while len(events) > KEPT_EVENTS or (self._slots > KEPT_SLOTS and len(events) > 1):
            self._slots -= named_slots(events.popleft()[0])

    def find(self, at: int) -> tuple[Event, int] | None:
        """Event `at` and the scheduler step it fell in, if it is still kept."""
        if not self._events:
            return None
        position = at - self._events[0][0].at
        if 0 <= position < len(self._events):
            event, step = self._events[position]
            if event.at == at:
                return event, step
        for event, step in reversed(self._events):  # indices of a damaged trace may have holes
            if event.at <= at:
                return (event, step) if event.at == at else None
        return None

    def backwards(self) -> Iterator[tuple[Event, int]]:
        """Events and their steps, latest first."""
        return reversed(self._events)
