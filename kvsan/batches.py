"""Batches in flight: what they captured, when they were launched, and what their end orders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .clocks import Clocks, Horizon
from .events import Slots
from .holders import Holder
from .rows import Row
from .shadow import PoolShadow

KEPT_CAPTURES = 16_384  # captures kept of one batch, for engines that use one name without end
KEPT_BATCHES = 1024  # outstanding batches kept; an engine that never says they are done must not make this grow


@dataclass(slots=True, eq=False)
class Capture:
    """A batch's snapshot of row[begin:end]. `slots` and `keys` are views of the row's cells, shape [end - begin];
    `generation` is the row's, `mapper` the
    holder id of whose row it is."""

    batch: Batch
    at: int
    agent: int
    table: PoolShadow
    row: Row
    into: PoolShadow | None
    generation: int
    begin: int
    end: int
    owner: Holder | None
    slots: Slots
    keys: Slots
    was_live: bool
    mapper: int

    @property
    def protected(self) -> bool:
        """Must what it captured stay? Yes until its request finishes, is aborted or is retracted."""
        return self.was_live and (self.owner is None or self.owner.over_at < self.at)


@dataclass(slots=True, eq=False)
class Batch:
    """One batch: everything that named it orders before what follows its `done`."""

    name: str
    captures: list[Capture] = field(default_factory=list)
    pasts: dict[int, Horizon] = field(default_factory=dict)  # by agent: what its last event for this batch knew
    launches: list[tuple[int, int]] = field(default_factory=list)  # (agent, event index)

    def outstanding(self, clocks: Clocks) -> bool:
        """From its capture until it is done, or the present host thread is ordered after its launch."""
        return not self.launches or not all(clocks.host_sees(agent, at) for agent, at in self.launches)


class Batches:
    """The batches that the host has not seen finish, and their captures by whose rows they are.

    A private slot that is given back can only have been captured through its mapper's rows, so only those captures are
    looked at. Captures of a row that died meanwhile are `loose`: they are looked at always.
    """

    def __init__(self) -> None:
        self._batches: dict[str, Batch] = {}
        self._by_mapper: dict[int, list[Capture]] = {}
        self.loose: list[Capture] = []
        self.dropped = 0

    def __len__(self) -> int:
        """How many batches are in flight."""
        return len(self._batches)

    def find(self, name: str) -> Batch | None:
        """The batch, if it is in flight."""
        return self._batches.get(name)

    def touch(self, name: str, clocks: Clocks) -> Batch:
        """The batch, whose past now includes the present event."""
        batch = self._batches.get(name)
        if batch is None:
            if len(self._batches) >= KEPT_BATCHES:
                self._prune(clocks)
            batch = self._batches[name] = Batch(name)
        batch.pasts[clocks.agent] = clocks.snapshot()
        return batch

    def add(self, capture: Capture) -> None:
        """The capture's batch is outstanding from here on."""
        capture.batch.captures.append(capture)
        if len(capture.batch.captures) > KEPT_CAPTURES:
            self._drop(capture.batch.captures.pop(0))
        self._by_mapper.setdefault(capture.mapper, []).append(capture)

    def done(self, name: str) -> Batch | None:
        """Takes the batch and its captures out."""
        batch = self._batches.pop(name, None)
        if batch is not None:
            for capture in batch.captures:
                self._drop(capture)
        return batch

    def _drop(self, capture: Capture) -> None:
        kept = self._by_mapper.get(capture.mapper)
        if kept is not None and capture in kept:
            kept.remove(capture)
            if not kept:
                del self._by_mapper[capture.mapper]
        elif capture in self.loose:
            self.loose.remove(capture)

    def bury(self, row: Row) -> None:
        """The row's cells died: captures of them that still protect something are loose now."""
        mapper = row.mapper.number if row.mapper is not None else 0
        for capture in [c for c in self._by_mapper.get(mapper, ()) if c.row is row]:
            self._drop(capture)
            if capture.protected:
                self.loose.append(capture)

    def move(self, row: Row, mapper: int) -> None:
        """The row has another mapper now."""
        old = row.mapper.number if row.mapper is not None else 0
        for capture in [c for c in self._by_mapper.get(old, ()) if c.row is row]:
            self._drop(capture)
            capture.mapper = mapper
            self._by_mapper.setdefault(mapper, []).append(capture)

    def captures(self, clocks: Clocks, mappers: Iterable[int] | None) -> list[Capture]:
        """The captures of these mappers' rows (None: of all) and the loose ones whose slots must stay: of outstanding
        batches, of requests that are not over."""
        if not self._by_mapper and not self.loose:
            return []
        chosen = self._by_mapper.keys() if mappers is None else mappers
        found = [c for mapper in chosen for c in self._by_mapper.get(mapper, ())] + self.loose
        return [capture for capture in found if capture.protected and capture.batch.outstanding(clocks)]

    def readers(self, pool: PoolShadow) -> list[Capture]:
        """Every capture in flight that reads rows of the pool or slots of it."""
        return [c for batch in self._batches.values() for c in batch.captures if pool in (c.table, c.into)]

    def forget(self, pool: PoolShadow) -> None:
        """The pool was reset: captures of its rows or slots no longer protect anything."""
        for capture in self.readers(pool):
            self._drop(capture)
            capture.batch.captures.remove(capture)

    def _prune(self, clocks: Clocks) -> None:
        for batch in list(self._batches.values()):
            if batch.launches and not batch.outstanding(clocks):
                self.done(batch.name)
        while len(self._batches) >= KEPT_BATCHES:
            self.done(next(iter(self._batches)))
            self.dropped += 1
