"""The shadow of one pool: packed words for every slot, in NumPy on the host.

A batch of slots is one gather, one comparison and one scatter for each word; contiguous slots take slices. Single
slots go through memoryviews, whose items cost a third of an array's. Work follows the slots touched, never the pool's
size. `np.count_nonzero` and `ufunc.reduce` stand where `.any()` and `.min()` would read better, because they skip a
Python wrapper that costs more than the work on a few hundred slots.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .encoding import AGENT_BITS, AGENT_MASK, HELD, LEASED, NODE, PENDING, RESERVED, SHARED
from .events import Pool, Slots
from .findings import Finding

Mask = npt.NDArray[np.bool_]
Index = Slots | slice

DEDICATED_READERS = 2

_ARANGE = np.arange(4096, dtype=np.int64)


def arange(count: int) -> Slots:
    """0, 1, ..., count-1; a shared array for small counts, not to be written to."""
    return _ARANGE[:count] if count <= 4096 else np.arange(count, dtype=np.int64)


class PoolShadow:
    """Shadow words and totals of one pool.

    `tenancy` and `origin` (the event and stack of the slot's last alloc or free) exist from the start; the words for
    row cells, shares and data accesses only once something needs them.
    """

    def __init__(self, number: int, event: Pool) -> None:
        self.number = number
        self.name = event.pool
        self.kind = event.kind
        self.size = event.size
        self.page = event.page
        self.init = event.init if event.init is not None else event.kind == "state"
        pages = -(-self.size // self.page)
        padded = pages * self.page
        self.tenancy: Slots = np.zeros(padded, np.int64)
        self.tenancy[self.size :] = RESERVED  # what fills the last page up does not exist
        if event.reserved.size:
            self.tenancy[event.reserved] = RESERVED
        self.by_page: Slots = self.tenancy.reshape(pages, self.page)
        self.words = memoryview(self.tenancy)  # type: ignore[arg-type]
        self.origin: Slots = np.zeros(padded, np.int64)
        self.origins = memoryview(self.origin)  # type: ignore[arg-type]
        self.cells: npt.NDArray[np.int32] | None = None  # live row cells that map the slot
        self.mapper: npt.NDArray[np.int32] | None = None  # holder id of the rows that map it
        self.sharers: npt.NDArray[np.int32] | None = None
        self.written_at: Slots | None = None
        self.writers: set[int] = set()
        self.read_at: dict[int, Slots] = {}
        self.read_rarely: dict[int, dict[int, int]] = {}
        self.remapped = 0  # grows when a slot that anybody's rows may map is given back
        self.reserved = int(np.unique(event.reserved).size)
        self.free = self.size - self.reserved
        self.pending = 0
        self.cached = 0
        self.events = 0
        self.blamed: dict[int, Finding] = {}  # page: the finding that a later violation of it joins
        self.adrift: Finding | None = None  # a finding that totals may be off by, until they agree again
        self.doubled: dict[
            int, Finding
        ] = {}  # slots freed twice: the engine's free list has them twice, and hands them so
        self.drift: tuple[int, ...] | None = None  # the last count that was off, by how much
        self._scratch: npt.NDArray[np.int32] | None = None
        self._stamp = 0

    @property
    def held(self) -> int:
        """How many slots somebody holds, the cache among them: neither reserved, nor free, nor pending."""
        return self.size - self.reserved - self.free - self.pending

    # -- naming slots

    def locate(self, slots: Slots) -> tuple[Index, bool]:
        """How to index with these slots (a slice when they are a run), and whether they all exist and are distinct."""
        count = slots.size
        first = int(slots[0])
        if count == 1:
            return slots, 0 <= first < self.size
        last = int(slots[-1])
        if last - first == count - 1 and not np.count_nonzero(slots[1:] - slots[:-1] != 1):
            return slice(first, last + 1), first >= 0 and last < self.size
        if not self.exist(slots):
            return slots, False
        scratch = self.scratch()
        order = arange(count)
        scratch[slots] = order
        return slots, not np.count_nonzero(scratch[slots] != order)

    def exist(self, slots: Slots) -> bool:
        """Do all these slots exist? Negative ids are huge as unsigned ones."""
        return int(np.maximum.reduce(slots.view(np.uint64))) < self.size

    def existing(self, slots: Slots) -> Slots:
        """Those of the slots that the pool has."""
        return slots if slots.size and self.exist(slots) else slots[(slots >= 0) & (slots < self.size)]

    def scratch(self) -> npt.NDArray[np.int32]:
        """Room for one number a slot, with anything in it. Numbers that callers put there are not negative."""
        if self._scratch is None:
            self._scratch = np.zeros(self.tenancy.size, np.int32)
        return self._scratch

    def among(self, slots: Slots, these: Slots) -> Mask:
        """Which of `slots` are in `these`: shape [len(slots)]. Stamps are negative, so that no position looks like
        one."""
        self._stamp = self._stamp - 1 if self._stamp > -(2**31) + 1 else -1
        scratch = self.scratch()
        scratch[these] = self._stamp
        found: Mask = scratch[slots] == self._stamp
        return found

    def pages_of(self, slots: Slots) -> Slots:
        """The pages that the slots stand on, ascending, each once."""
        return np.unique(slots // self.page) if self.page > 1 else np.unique(slots)

    def whole_pages(self, slots: Slots) -> Slots | None:
        """The pages if the slots are exactly those of distinct pages, one page after the other; else None."""
        page = self.page
        if slots.size % page:
            return None
        table = slots.reshape(-1, page)
        heads = table[:, 0]
        if np.count_nonzero(heads % page) or np.count_nonzero(table != heads[:, None] + arange(page)):
            return None
        pages: Slots = heads // page
        if pages.size > 1 and np.minimum.reduce(pages[1:] - pages[:-1]) <= 0 and np.unique(pages).size != pages.size:
            return None
        return pages

    def slots_of(self, pages: Slots) -> Slots:
        """All slots of the pages, shape [len(pages) * page]."""
        if self.page == 1:
            return pages
        slots: Slots = (pages[:, None] * self.page + arange(self.page)).reshape(-1)
        return slots

    def add_cells(self, slots: Slots, change: int) -> None:
        """Row cells that map these slots come (1) or go (-1); a slot may be named more than once."""
        cells, _ = self.cell_words()
        if slots.size and self.locate(slots)[1]:
            cells[slots] += np.int32(change)
        elif slots.size:
            np.add.at(cells, slots, np.int32(change))

    # -- words that exist on demand

    def cell_words(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The cell counts and mappers, made on first use."""
        if self.cells is None or self.mapper is None:
            self.cells = np.zeros(self.tenancy.size, np.int32)
            self.mapper = np.zeros(self.tenancy.size, np.int32)
        return self.cells, self.mapper

    def share_words(self) -> npt.NDArray[np.int32]:
        """The number of sharers of each slot, made on first use."""
        if self.sharers is None:
            self.sharers = np.zeros(self.tenancy.size, np.int32)
        return self.sharers

    def last_writes(self) -> Slots:
        """Epoch words of the last write of each slot, made on first use; 0 is "never written"."""
        if self.written_at is None:
            self.written_at = np.zeros(self.tenancy.size, np.int64)
        return self.written_at

    def last_reads(self, agent: int) -> Slots | None:
        """Indices of the agent's last read of each slot (-1: none); None for a reader past the dedicated ones."""
        reads = self.read_at.get(agent)
        if reads is None and len(self.read_at) < DEDICATED_READERS:
            reads = self.read_at[agent] = np.full(self.tenancy.size, -1, np.int64)
        return reads

    # -- totals

    def states(self, first: int, last: int) -> str:
        """One letter a slot of [first, last), as in SlotMap, without reads and the finding's own slots."""
        letters = []
        for word in self.tenancy[first:last].tolist():
            if word & RESERVED:
                letters.append("#")
            elif word & PENDING:
                letters.append("p")
            elif not word & HELD:
                letters.append(".")
            elif word & LEASED:
                letters.append("x")
            else:
                letters.append("c" if word & NODE else "o")
        return "".join(letters)

    def shared(self, slots: Slots) -> Mask:
        """Which slots have a sharer."""
        found: Mask = (self.tenancy[slots] & SHARED) != 0
        return found


def epoch(agent: int, at: int) -> int:
    """The epoch word of event `at` of the agent."""
    return at << AGENT_BITS | agent


def epoch_parts(word: int) -> tuple[int, int]:
    """Agent and event index of an epoch word."""
    return word & AGENT_MASK, word >> AGENT_BITS
