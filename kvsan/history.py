"""The recent past: a bounded window of events that reports look things up in."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator

from .events import Event
from .several import Several

KEPT_EVENTS = 32_768
KEPT_SLOTS = 4_000_000


def _weight(event: Event) -> tuple[int, int]:
    """How many events this is, and how many slots it names."""
    slots = getattr(event, "slots", None)
    named = len(slots) if slots is not None else 0
    return (len(event) if isinstance(event, Several) else 1), named


class History:
    """The last events by index; old ones go when the events or the slots that they name become too many.

    Events that nothing cites are not kept: what is kept leaves the processor's caches before it is freed, and so costs
    more than it looks.
    """

    def __init__(self) -> None:
        self._events: deque[tuple[Event, int]] = deque()
        self._count = 0
        self._slots = 0
        self.step = 0

    def append(self, event: Event) -> None:
        """Keeps an event, or several."""
        events = self._events
        events.append((event, self.step))
        many, slots = _weight(event)
        self._count += many
        self._slots += slots
        while self._count > KEPT_EVENTS or (self._slots > KEPT_SLOTS and len(events) > 1):
            many, slots = _weight(events.popleft()[0])
            self._count -= many
            self._slots -= slots

    def find(self, at: int) -> tuple[Event, int] | None:
        """Event `at` and the scheduler step it fell in, if it is still kept."""
        position = bisect_right(self._events, at, key=lambda kept: kept[0].at) - 1
        if position < 0:
            return None
        event, step = self._events[position]
        if isinstance(event, Several):
            return (event.one(at - event.at), step) if at - event.at < len(event) else None
        return (event, step) if event.at == at else None

    def backwards(self, operations: Collection[str]) -> Iterator[tuple[Event, int]]:
        """Events of these operations and their steps, latest first."""
        for event, step in reversed(self._events):
            if event.op not in operations:
                continue
            if isinstance(event, Several):
                for number in reversed(range(len(event))):
                    yield event.one(number), step
            else:
                yield event, step
