"""Row tables: what each row's cells map, and who last touched which cells.

Cells belong to a tenancy of their row and die with it; accesses outlive it, because a free orders nothing. The cell
arrays are append-mostly: captures keep views of them, and overwriting a cell that a capture may look at copies the
arrays first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .encoding import CELL_KEY_MASK, HELD, RESERVED
from .events import Slots
from .holders import Holder
from .intervals import Runs
from .shadow import PoolShadow

MAX_CELL = 1 << 26
"""Longer than any context; a row takes memory up to its last cell."""

UNWRITTEN = -1
DEAD = -2
"""The key of a cell whose slot was not held when it was written; no word's key equals it."""


@dataclass(slots=True, eq=False)
class Row:
    """One row. `slots[p]` is the slot in cell p and `keys[p]` that slot's key then (UNWRITTEN: not in this tenancy);
    `mapper` is whose row it is, `length` one past the last cell written, `sound` how far cells were found alive when
    the pool and the mapper had lost mapped slots `seen` times."""

    number: int
    into: PoolShadow | None = None
    mapper: Holder | None = None
    slots: Slots = field(default_factory=lambda: np.empty(0, np.int64))
    keys: Slots = field(default_factory=lambda: np.empty(0, np.int64))
    length: int = 0
    sound: int = 0
    seen: tuple[int, int] = (0, 0)
    viewed: int = 0  # captures have views of cells [0, viewed)
    writes: Runs = field(default_factory=Runs)
    reads: dict[int, Runs] = field(default_factory=dict)

    def bury(self) -> None:
        """The row's tenancy ended, and its cells with it; views of them stay as they are."""
        self.slots = self.keys = np.empty(0, np.int64)
        self.length = self.sound = self.viewed = 0
        self.into = self.mapper = None

    def room(self, length: int) -> None:
        """Makes room for cells [0, length)."""
        size = self.slots.size
        if size < length:
            grown = max(length, 2 * size, 16)
            slots = np.zeros(grown, np.int64)
            keys = np.full(grown, UNWRITTEN, np.int64)
            slots[:size] = self.slots
            keys[:size] = self.keys
            self.slots, self.keys = slots, keys
            self.viewed = 0

    def own_cells(self, begin: int) -> None:
        """Copies the arrays if a capture has a view of cells from `begin` on."""
        if begin < self.viewed:
            self.slots = self.slots.copy()
            self.keys = self.keys.copy()
            self.viewed = 0

    def live(self, begin: int, end: int) -> Slots:
        """Positions of the cells in [begin, end) that were written in this tenancy and whose slots still live in
        theirs."""
        end = min(end, self.length)
        if self.into is None or begin >= end:
            return np.empty(0, np.int64)
        keys = self.keys[begin:end]
        words = self.into.tenancy[np.where(keys >= 0, self.slots[begin:end], 0)]
        alive = ((words & CELL_KEY_MASK) == keys) & ((words & HELD) != 0)
        positions: Slots = np.flatnonzero(alive) + begin
        return positions

    def verify(self, begin: int, end: int) -> bool:
        """Are cells [begin, end) all written in this tenancy, with slots that live in the tenancy they had then?"""
        if end > self.length or self.into is None:
            return begin >= end
        losses = (self.into.remapped, self.mapper.remapped if self.mapper is not None else 0)
        if self.seen != losses:
            self.sound, self.seen = 0, losses
        start = max(begin, self.sound)
        if end - start == 1:  # a decode step's one new cell, without an array
            if self.into.words[self.slots.item(start)] & CELL_KEY_MASK != self.keys.item(start):
                return False
        elif start < end:
            keys = self.keys[start:end]
            words = self.into.tenancy[self.slots[start:end]]
            if np.count_nonzero((words & CELL_KEY_MASK) != keys):
                return False
        if begin <= self.sound < end:
            self.sound = end
        return True


def cell_keys(words: Slots) -> Slots:
    """The keys that cells remember of their slots' words: int64, same shape; dead where the slot is not held."""
    keys: Slots = words & CELL_KEY_MASK
    return np.where((words & (HELD | RESERVED)) != 0, keys, DEAD)


class RowTable:
    """The rows of one row pool that were ever touched."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}

    def get(self, number: int) -> Row:
        """The row, made on first use."""
        row = self._rows.get(number)
        if row is None:
            row = self._rows[number] = Row(number)
        return row

    def find(self, number: int) -> Row | None:
        """The row, if it was touched."""
        return self._rows.get(number)

    def all(self) -> list[Row]:
        """Every row touched so far."""
        return list(self._rows.values())
