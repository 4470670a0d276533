"""Everything that the rules look at: clocks, the shadow of each pool, and the ledgers. Few places, all named here."""

from __future__ import annotations

from operator import index

import numpy as np

from .batches import Batches
from .clocks import Clocks
from .encoding import STACK_BITS
from .errors import EventError
from .events import POOL_KINDS, Event, Pool
from .history import History
from .holders import Holder, Holders
from .nodes import Node, Nodes
from .rows import RowTable
from .shadow import PoolShadow
from .transfers import Transfers
from .verdicts import Narrator, Verdicts, Violation

LEVELS = ("rows", "slots", "full")


class State:
    """The shadow of one engine process. `level` says how much is watched: rows, slots or full."""

    def __init__(self, narrator: Narrator, level: str = "full") -> None:
        self.level = level
        self.watch_slots = level != "rows"
        self.watch_data = level == "full"
        self.clocks = Clocks()
        self.history = History()
        self.holders = Holders()
        self.nodes = Nodes()
        self.batches = Batches()
        self.transfers = Transfers()
        self.pools: dict[str, PoolShadow] = {}
        self.by_number: list[PoolShadow] = []
        self.tables: dict[str, RowTable] = {}
        self.maps: dict[str, dict[int, int]] = {}
        self.groups: dict[str, list[tuple[PoolShadow, np.ndarray]]] = {}
        self.verdicts = Verdicts(narrator)
        self.events = 0

    def pool(self, name: str) -> PoolShadow:
        """The pool; raises EventError if no `pool` event declared it."""
        try:
            return self.pools[name]
        except (KeyError, TypeError):
            known = ", ".join(self.pools) or "none"
            raise EventError(f"pool {name!r} was never declared by a 'pool' event (declared: {known})") from None

    def add_pool(self, event: Pool) -> PoolShadow:
        """Declares a pool; raises EventError if it exists."""
        if event.pool in self.pools:
            raise EventError(f"pool {event.pool!r} is declared twice; use 'reset' to empty it")
        try:
            size, page = index(event.size), index(event.page)
        except TypeError:
            raise EventError(f"size {event.size!r} and page {event.page!r} of a pool must be integers") from None
        if event.kind not in POOL_KINDS:
            raise EventError(f"pool kind {event.kind!r} is none of {', '.join(POOL_KINDS)}")
        if not 0 < size < 1 << 31 or not 0 < page <= size:
            raise EventError(f"size {size} and page {page} make no pool")
        if event.reserved.size and not 0 <= int(event.reserved.min()) <= int(event.reserved.max()) < size:
            raise EventError(f"reserved slots must lie in 0..{size - 1}")
        pool = PoolShadow(len(self.by_number), event)
        self.pools[event.pool] = pool
        self.by_number.append(pool)
        if event.kind == "row":
            self.tables[event.pool] = RowTable()
        return pool

    def table(self, pool: PoolShadow) -> RowTable:
        """The rows of a row pool; raises EventError for another kind."""
        try:
            return self.tables[pool.name]
        except KeyError:
            raise EventError(f"pool {pool.name!r} is of kind {pool.kind!r}, not a row pool") from None

    def watched(self, pool: PoolShadow) -> bool:
        """Is the pool watched at this level?"""
        return self.watch_slots or pool.kind == "row"

    def owner(self, name: str | None) -> Holder | None:
        """The holder behind a name; None for "not known"."""
        return self.holders.get(name) if name is not None else None

    def node(self, name: str) -> Node:
        """The node of that name, made if need be."""
        found = self.nodes.find(name)
        return found if found is not None else self.nodes.get(name, self.holders.get(f"tree:{name}"))

    def node_of(self, holder: Holder) -> Node:
        """The node whose slots the holder has (one of those named `tree:NODE`)."""
        return self.node(holder.name.removeprefix("tree:"))

    def origin_word(self, event: Event) -> int:
        """The reference word that slots keep of their last alloc or free."""
        return event.at << STACK_BITS | event.stack

    def report(self, event: Event, violations: list[Violation]) -> None:
        """Hands violations of the event to the verdicts."""
        if violations:
            self.verdicts.report(self, event, violations)
