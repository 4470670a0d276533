"""What requests hold: every row, token slot, state, share and lock of a request is taken and given back here.

The record of a request (`record`) says what that is, and nothing else does: whether a row is used again, what is given
back and what kvsan is told is read from it. `release` is the one way in which a request gives back what it holds.
"""

from __future__ import annotations

from . import bugs
from .pools import ROWS, KvPool, RowPool
from .probe import Probe
from .radix_cache import Node, RadixCache
from .record import KvRecord
from .request import Request
from .row_writer import RowWrite, RowWriter
from .sparse import Sparse
from .states import States


class Holdings:
    """Takes and gives back what requests hold. `states` is None for a model without recurrent layers."""

    def __init__(
        self,
        rows: RowPool,
        kv: KvPool,
        cache: RadixCache,
        states: States | None,
        writer: RowWriter,
        probe: Probe,
        bug: str | None = None,
    ) -> None:
        self.rows = rows
        self.kv = kv
        self.cache = cache
        self.states = states
        self.writer = writer
        self.sparse: Sparse | None = None
        """With sparse attention, where rows are registered."""
        self._probe = probe
        self._bug = bug

    def find_prefix(self, request: Request) -> bool:
        """Gives a request without token slots the cached prefix of its tokens, but for the last token, and states where
        the model needs them; False if there are too few states, or buffers for its row."""
        record, owner = request.kv, request.rid
        node = self.cache.root
        if request.rejected is None:
            node = self.cache.match(request.tokens[:-1], owner, request.adapter)
        record.node = node
        record.slots = node.path_slots()
        record.protected = record.allocated
        self._hold_prefix(request)
        has_states = self.states is None or self.states.start(record, node, owner)
        return has_states and (self.sparse is None or self.sparse.has_room)

    def _hold_prefix(self, request: Request) -> None:
        """Locks the prefix that was found, and shares its slots."""
        node = request.kv.node
        assert node is not None
        self.cache.lock(node, request.rid)
        self.cache.attach(node, 0, request.rid)

    def claim_row(self, request: Request) -> bool:
        """Gives the request a row unless its record says that it has one; whether the row is a new one."""
        record = request.kv
        holds_row = record.committed > 0 if self._bug == bugs.REUSE_FROM_LENGTH else not record.released
        if record.released:
            record.committed = record.allocated
        record.released = False
        if holds_row and record.row is not None:
            self._probe.reuse(ROWS, record.row, owner=request.rid)
            return False
        record.row = self.rows.take(request.rid)
        self.register(request)
        return True

    def register(self, request: Request) -> None:
        """The request begins to work with its row."""
        if self.sparse is not None and request.kv.row is not None:
            self.sparse.begin(request.kv.row, request.rid)

    def unregister(self, request: Request) -> None:
        """The request does not work with its row any more."""
        if self.sparse is not None and request.kv.row is not None:
            self.sparse.end(request.kv.row, request.rid)

    def give_row(self, request: Request) -> None:
        """Takes the request's row back, if it has one."""
        record = request.kv
        if not record.released and record.row is not None:
            self.unregister(request)
            self.rows.give_back(record.row, request.rid)
        record.row, record.released = None, True

    def has_room(self, demand: int) -> bool:
        """Whether that many slots are free or can be evicted."""
        return demand <= self.kv.available + self.cache.evictable

    def demand(self, request: Request, upto: int) -> int:
        """How many free slots it takes to give the request slots for the positions below `upto`."""
        held = request.kv.allocated
        return self.kv.demand(held, max(0, upto - held))

    def extend(self, request: Request, upto: int) -> None:
        """Gives the request slots for the positions below `upto`; the caller has checked that there is room."""
        record = request.kv
        self.cache.evict(self.demand(request, upto) - self.kv.available)
        record.slots += self.kv.extend(record.slots, upto - record.allocated, request.rid)
        self.kv.slide(record.slots, record.protected, record.committed, request.rid)

    def publish(self, request: Request, upto: int, batch: str | None = None) -> None:
        """Puts the request's pages below `upto` into the prefix cache, with recurrent layers only those up to the
        latest tracked state, and that state; the request goes on as a sharer. `batch` names the batch whose result
        this is.

        Where the cache has the same tokens already, the request's slots are replaced by the cache's, but not while a
        batch that captured them is outstanding: then the request keeps its duplicates until it ends.
        """
        record, owner, former = request.kv, request.rid, request.kv.node
        upto = self._cacheable(record, upto)
        if upto <= record.protected or former is None:
            return
        begin = record.protected
        node, cached = self._insert(request, upto, replace=True)
        self.cache.lock(node, owner)
        if cached > begin and request.outstanding and not self._remaps_captured():
            record.duplicates += record.slots[begin:cached]
            self.cache.attach(node, cached, owner)
        else:
            self.cache.attach(node, begin, owner)
            self._replace(request, begin, node.path_slots()[begin:cached], batch)
        self.cache.unlock(former, owner)
        record.node, record.protected = node, upto

    def refined(self, request: Request, guess: list[int]) -> None:
        """A block was computed, but is not final: it stays the request's own."""

    def release(self, request: Request, *, cache_upto: int = 0, keep_states: bool = False) -> None:
        """Takes back everything that the record says, but for the states if the request is to start again at once; the
        request's pages below `cache_upto` stay in the prefix cache."""
        record, owner = request.kv, request.rid
        request.epoch += 1
        request.guess, request.refined = None, 0
        if record.node is not None:
            duplicates = set(record.duplicates)
            shared = [slot for slot in record.slots[: record.protected] if slot not in duplicates]
            self.kv.give_back(self._own_after_insert(request, cache_upto), owner)
            self.cache.detach(shared, owner)
            self.cache.unlock(record.node, owner)
        had_row, row = not record.released, record.row
        self.give_row(request)
        if self.states is not None and not keep_states and (had_row or self._bug != bugs.STATE_WITH_ROW):
            self.states.give_back(record, owner)
        request.kv = KvRecord(state=record.state, tracking=record.tracking) if keep_states else KvRecord()
        if self._bug == bugs.REUSE_FROM_LENGTH:
            request.kv.row, request.kv.committed = row, record.committed
        self.tell_record(request)

    def tell_record(self, request: Request) -> None:
        """Tells kvsan what the record says."""
        record = request.kv
        self._probe.kv_record(
            owner=request.rid,
            row=None if record.released else record.row,
            allocated=record.allocated,
            committed=0 if record.released else record.committed,
            protected=record.protected,
        )

    def _own_after_insert(self, request: Request, upto: int) -> list[int]:
        """Gives the cache the pages from `protected` to `upto`; returns the slots that are still the request's own."""
        record = request.kv
        upto = self._cacheable(record, upto)
        if upto <= record.protected:
            return record.own
        _, cached = self._insert(request, upto, replace=False)
        return record.duplicates + record.slots[record.protected : cached] + record.slots[upto:]

    def _cacheable(self, record: KvRecord, upto: int) -> int:
        """How far the request's positions can go into the cache: whole pages; up to a state where there are any."""
        if self.states is not None:
            tracking = self.states.tracked(record, upto)
            upto = tracking.position if tracking is not None else 0
        return upto - upto % self.kv.page_size

    def _insert(self, request: Request, upto: int, *, replace: bool) -> tuple[Node, int]:
        record = request.kv
        node, cached = self.cache.insert(
            request.tokens[:upto],
            record.slots[:upto],
            request.rid,
            request.adapter,
            recover=not (replace and request.outstanding),
        )
        if self.states is not None:
            tracking = self.states.tracked(record, upto)
            assert tracking is not None
            self.states.donate(record, tracking, node, request.rid, replace=replace)
        return node, cached

    def _remaps_captured(self) -> bool:
        if self._bug == bugs.CAPTURE_BEFORE_PUBLICATION:
            return self.states is not None
        return self._bug == bugs.PUBLICATION_REMAPS

    def _replace(self, request: Request, begin: int, slots: list[int], batch: str | None) -> None:
        """Gives the request's own slots from position `begin` on back and puts the cache's in their place."""
        if not slots:
            return
        record = request.kv
        assert record.row is not None
        end = begin + len(slots)
        self.kv.give_back(record.slots[begin:end], request.rid, batch)
        record.slots[begin:end] = slots
        self.writer.write([RowWrite(record.row, begin, slots, request.rid)])
