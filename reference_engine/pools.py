"""The pools that hand out rows, token slots and recurrent states, and the arrays behind them.

The free lists trust their callers, like those of a production engine: what is given back twice is handed out twice.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from .model import DIM, HEAD_DIM, HEADS, LAYERS
from .probe import Probe

ROWS = "req_to_token"
KV = "kv"
STATES = "state"


class RowPool:
    """Rows of `req_to_token`: cell p of a row is the token slot of position p. Row 0 is padding."""

    def __init__(self, rows: int, width: int, probe: Probe) -> None:
        self.table = np.zeros((rows + 1, width), dtype=np.int64)
        self.size = rows
        self._free = deque(range(1, rows + 1))
        self._probe = probe
        probe.pool(ROWS, kind="row", size=rows + 1, page=1, reserved=[0])

    @property
    def available(self) -> int:
        return len(self._free)

    def take(self, owner: str) -> int:
        """The row that has been free longest; the caller has checked that there is one."""
        row = self._free.popleft()
        self._probe.alloc(ROWS, row, owner=owner)
        return row

    def give_back(self, row: int, owner: str) -> None:
        self._free.append(row)
        self._probe.free(ROWS, row, owner=owner)


class StatePool:
    """Recurrent states, shape [layers, dim] each. Slot 0 is padding, and zero: a copy of it clears a state."""

    def __init__(self, states: int, probe: Probe) -> None:
        self.data = np.full((states + 1, LAYERS, DIM), np.nan)
        self.data[0] = 0.0
        self.size = states
        self._free = deque(range(1, states + 1))
        self._probe = probe
        probe.pool(STATES, kind="state", size=states + 1, page=1, reserved=[0], init=True)

    @property
    def available(self) -> int:
        return len(self._free)

    def take(self, count: int, owner: str) -> list[int]:
        """That many states; the caller has checked that there are."""
        slots = [self._free.popleft() for _ in range(count)]
        self._probe.alloc(STATES, slots, owner=owner)
        return slots

    def give_back(self, slots: list[int], owner: str) -> None:
        self.reclaim(slots)
        self._probe.free(STATES, slots, owner=owner)

    def reclaim(self, slots: list[int]) -> None:
        """Puts the slots into the free list."""
        self._free.extend(slots)


class KvPool:
    """Token slots in pages, and the keys and values [layers, slots, heads, dim] behind them. Page 0 is padding."""

    def __init__(self, tokens: int, page_size: int, probe: Probe) -> None:
        slots = tokens + page_size
        self.keys = np.zeros((LAYERS, slots, HEADS, HEAD_DIM))
        self.values = np.zeros((LAYERS, slots, HEADS, HEAD_DIM))
        self.size = tokens
        self.page_size = page_size
        self._free_pages = deque(range(1, slots // page_size))
        self._probe = probe
        probe.pool(KV, kind="kv", size=slots, page=page_size, reserved=list(range(page_size)))

    @property
    def available(self) -> int:
        """Free slots."""
        return len(self._free_pages) * self.page_size

    def demand(self, held: int, more: int) -> int:
        """How many free slots it takes for an owner of `held` slots to get `more`: whole pages."""
        pages = -(-(held + more) // self.page_size) - -(-held // self.page_size)
        return pages * self.page_size

    def extend(self, held: list[int], more: int, owner: str) -> list[int]:
        """`more` new slots behind those held, first from the last page, then from free pages."""
        slots: list[int] = []
        last = held[-1] if held else -1
        for _ in range(more):
            last = last + 1 if (last + 1) % self.page_size else self._free_pages.popleft() * self.page_size
            slots.append(last)
        if slots:
            self._probe.alloc(KV, slots, owner=owner)
        return slots

    def give_back(self, slots: list[int], owner: str) -> None:
        """Gives back the pages of the slots."""
        if slots:
            self.reclaim(slots)
            self._probe.free(KV, slots, owner=owner)

    def reclaim(self, slots: list[int]) -> None:
        """Puts the pages of the slots into the free list."""
        self._free_pages.extend(dict.fromkeys(slot // self.page_size for slot in slots))
