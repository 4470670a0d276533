"""Pools with a historical bug: free lists that hand out what they must not."""

from __future__ import annotations

from . import bugs
from .pools import RowPool, StatePool
from .probe import Probe


class PaddingStateHandedOut(StatePool):
    """State 0, which padding lanes write, is handed out first."""

    def __init__(self, states: int, probe: Probe) -> None:
        super().__init__(states, probe)
        self._free.appendleft(0)


class StaleFreeCursor(RowPool):
    """Of two rows that come back one after the other, the second is put into the free list twice and the first lost."""

    def __init__(self, rows: int, probe: Probe) -> None:
        super().__init__(rows, probe)
        self._cursor_is_stale = False

    def take(self, owner: str) -> int:
        self._cursor_is_stale = False
        return super().take(owner)

    def give_back(self, row: int, owner: str) -> None:
        super().give_back(row, owner)
        if self._cursor_is_stale:
            self._free[-2] = row
        self._cursor_is_stale = True


ROW_POOLS: dict[str, type[RowPool]] = {bugs.ROW_TWICE: StaleFreeCursor}
STATE_POOLS: dict[str, type[StatePool]] = {bugs.PADDING_STATE: PaddingStateHandedOut}
