"""What requests hold: every row, token slot, state, share and lock of a request is taken and given back here."""

from __future__ import annotations

from .pools import KvPool, RowPool, StatePool
from .radix_cache import RadixCache
from .request import Request
from .row_writer import RowWrite, RowWriter


class Holdings:
    """Takes and gives back what requests hold.

    `states` is None for a model without recurrent layers. With states there is no prefix cache: a cached prefix would
    need the state after its last token.
    """

    def __init__(
        self, rows: RowPool, kv: KvPool, cache: RadixCache, states: StatePool | None, writer: RowWriter
    ) -> None:
        self.rows = rows
        self.kv = kv
        self.cache = cache
        self.states = states
        self.writer = writer

    def find_prefix(self, request: Request) -> None:
        """Gives a request that holds nothing the cached prefix of its tokens, but for the last token."""
        node = self.cache.root
        if self.states is None and request.rejected is None:
            node = self.cache.match(request.tokens[:-1], request.rid, request.adapter)
        request.node = node
        request.slots = [slot for step in node.path() for slot in step.slots]
        request.computed = request.published = len(request.slots)
        self._hold_prefix(request)

    def _hold_prefix(self, request: Request) -> None:
        """Locks the prefix that was found, and shares its slots."""
        assert request.node is not None
        self.cache.lock(request.node, request.rid)
        self.cache.attach(request.node, 0, request.rid)

    def take_row(self, request: Request) -> None:
        """Gives the request a row, and a state where the model needs one."""
        request.row = self.rows.take(request.rid)
        if self.states is not None and request.state is None:
            request.state = self.states.take(request.rid)

    def give_row(self, request: Request) -> None:
        if request.row is not None:
            self.rows.give_back(request.row, request.rid)
            request.row = None

    def has_room(self, demand: int) -> bool:
        """Whether that many slots are free or can be evicted."""
        return demand <= self.kv.available + self.cache.evictable

    def demand(self, request: Request, upto: int) -> int:
        """How many free slots it takes to give the request slots for the positions below `upto`."""
        return self.kv.demand(len(request.slots), max(0, upto - len(request.slots)))

    def extend(self, request: Request, upto: int) -> None:
        """Gives the request slots for the positions below `upto`; the caller has checked that there is room."""
        self.cache.evict(self.demand(request, upto) - self.kv.available)
        request.slots += self.kv.extend(request.slots, upto - len(request.slots), request.rid)
        self.kv.slide(request.slots, request.published, request.computed, request.rid)

    def publish(self, request: Request, upto: int) -> None:
        """Puts the request's pages below `upto` into the prefix cache; the request goes on as a sharer.

        Where the cache has the same tokens already, the request's slots are replaced by the cache's, but not while a
        batch that captured them is outstanding: then the request keeps its duplicates until it ends.
        """
        upto -= upto % self.kv.page_size
        if self.states is not None or upto <= request.published or request.node is None:
            return
        begin, owner = request.published, request.rid
        node, cached = self.cache.insert(
            request.tokens[:upto], request.slots[:upto], owner, request.adapter, recover=not request.outstanding
        )
        self.cache.lock(node, owner)
        if cached > begin and request.outstanding:
            request.duplicates += request.slots[begin:cached]
            self.cache.attach(node, cached, owner)
        else:
            self.cache.attach(node, begin, owner)
            self._replace(request, begin, [slot for step in node.path() for slot in step.slots][begin:cached])
        self.cache.unlock(request.node, owner)
        request.node, request.published = node, upto

    def refined(self, request: Request, guess: list[int]) -> None:
        """A block was computed, but is not final: it stays the request's own."""

    def release(self, request: Request, *, cache_upto: int = 0) -> None:
        """Takes back everything that the request holds; its pages below `cache_upto` stay in the prefix cache."""
        owner, node = request.rid, request.node
        if node is not None:
            duplicates = set(request.duplicates)
            shared = [slot for slot in request.slots[: request.published] if slot not in duplicates]
            self.kv.give_back(self._own_after_insert(request, cache_upto), owner)
            self.cache.detach(shared, owner)
            self.cache.unlock(node, owner)
        self.give_row(request)
        if self.states is not None and request.state is not None:
            self.states.give_back(request.state, owner)
        request.state = request.node = None
        request.slots, request.duplicates = [], []
        request.computed = request.published = 0
        request.guess, request.refined = None, 0
        request.epoch += 1

    def _own_after_insert(self, request: Request, upto: int) -> list[int]:
        """Gives the cache the pages from `published` to `upto`; returns the slots that are still the request's own."""
        upto -= upto % self.kv.page_size
        if self.states is not None or upto <= request.published:
            return request.duplicates + request.slots[request.published :]
        _, cached = self.cache.insert(request.tokens[:upto], request.slots[:upto], request.rid, request.adapter)
        return request.duplicates + request.slots[request.published : cached] + request.slots[upto:]

    def _replace(self, request: Request, begin: int, slots: list[int]) -> None:
        """Gives the request's own slots from position `begin` on back and puts the cache's in their place."""
        if not slots:
            return
        assert request.row is not None
        end = begin + len(slots)
        self.kv.give_back(request.slots[begin:end], request.rid)
        request.slots[begin:end] = slots
        self.writer.write([RowWrite(request.row, begin, slots, request.rid)])
