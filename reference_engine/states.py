"""Recurrent states: what requests and the cache hold of them, and which the next batch clears, copies and tracks.

The running state of a request moves on with every token, so the cache cannot have it. At boundaries the forward copies
it to one of two tracking buffers of the request, by turns: while the scheduler still waits for the batch that filled
one, the next batch may fill the other. The cache is given such a buffer, and the request a fresh one in its place.
"""

from __future__ import annotations

from . import bugs
from .batch import StateUse
from .pools import StatePool
from .radix_cache import Node, RadixCache
from .record import KvRecord, Tracking

PER_REQUEST = 3
"""State slots of one request: the running state and two tracking buffers."""


class States:
    """Takes and gives back states. `interval` is the distance of the positions that are tracked, in tokens."""

    def __init__(self, pool: StatePool, cache: RadixCache, interval: int, bug: str | None) -> None:
        self.pool = pool
        self._cache = cache
        self._interval = interval
        self._bug = bug

    def start(self, record: KvRecord, node: Node, owner: str) -> bool:
        """Gives a record states, to begin after the node's prefix; False if there are too few.

        Nothing is copied or cleared here: the next batch does that on its own stream (`KvRecord.source`).
        """
        if record.state is None:
            if not self._has_room(PER_REQUEST):
                return False
            record.state, *tracking = self.pool.take(PER_REQUEST, owner)
            record.tracking = [Tracking(slot) for slot in tracking]
        record.source = node.state or 0
        if self._bug == bugs.STATE_NOT_CLEARED and not record.source:
            record.source = None
        return True

    def use(self, record: KvRecord, start: int, upto: int) -> StateUse:
        """What the batch that computes the positions [start, upto) does with the record's states."""
        assert record.state is not None
        source, record.source = record.source, None
        boundary = upto - upto % self._interval
        if boundary <= start:
            return StateUse(record.state, source)
        buffer = min(record.tracking, key=lambda tracking: tracking.position)
        buffer.position = boundary
        return StateUse(record.state, source, buffer.slot, boundary)

    def tracked(self, record: KvRecord, upto: int) -> Tracking | None:
        """The buffer with the latest state up to that position."""
        filled = [tracking for tracking in record.tracking if 0 < tracking.position <= upto]
        return max(filled, key=lambda tracking: tracking.position, default=None)

    def donate(self, record: KvRecord, tracking: Tracking, node: Node, owner: str, *, replace: bool) -> None:
        """Gives a tracked state to the node that has none; `replace`: the record gets a fresh slot instead."""
        if node.state is not None or (replace and not self._has_room(1)):
            return
        self._cache.add_state(node, tracking.slot, owner)
        tracking.position = 0
        if not replace:
            record.tracking.remove(tracking)
        elif self._bug != bugs.DONATED_NOT_REPLACED:
            [tracking.slot] = self.pool.take(1, owner)

    def give_back(self, record: KvRecord, owner: str) -> None:
        """Takes the record's states back."""
        if record.state is not None:
            self.pool.give_back([record.state, *(tracking.slot for tracking in record.tracking)], owner)
        record.state = record.source = None
        record.tracking = []

    def _has_room(self, count: int) -> bool:
        self._cache.evict_states(count - self.pool.available)
        return self.pool.available >= count
