"""Sorted runs of cells with the epoch that last touched them: the access shadow of one row.

Rows are read and written as intervals, and a batch reads the cells before the one that is being written, so a few
runs say it all. Runs next to each other merge only once they are *settled* (ordered before everything that can still
come): then no later comparison can tell their epochs apart. Only a host thread that appears afterwards could, and for
it the earlier epoch stands: it may miss a race, and is never told of one that is none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from .clocks import Horizon

Settled = Callable[[int], int]
"""The index up to which an agent's events are settled."""

WHOLE = 1 << 62
"""The end of an access to a whole row."""


@dataclass(slots=True)
class Run:
    """Cells [begin, end), last touched by the agent at event `at`."""

    begin: int
    end: int
    agent: int
    at: int


class Runs:
    """Runs sorted by `begin`, never overlapping."""

    __slots__ = ("_merged", "_runs", "end")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._merged = 0  # the runs before this one were tried for merging
        self.end = 0
        """One past the last cell that was touched."""

    def __len__(self) -> int:
        return len(self._runs)

    def _first(self, begin: int) -> int:
        """The position of the first run that ends after `begin`."""
        position = bisect_right(self._runs, begin, key=lambda run: run.begin)
        if position and self._runs[position - 1].end > begin:
            position -= 1
        return position

    def touching(self, begin: int, end: int) -> list[Run]:
        """The runs that share a cell with [begin, end)."""
        runs = self._runs
        if self.end <= begin:  # a decode step writes behind all that was touched
            return []
        found = []
        for run in runs[self._first(begin) :]:
            if run.begin >= end:
                break
            found.append(run)
        return found

    def unordered(self, begin: int, end: int, agent: int, horizon: Horizon) -> bool:
        """Did another agent than this one, whose horizon it is, touch a cell of [begin, end) in an event that is not
        ordered before what this one does now?"""
        if self.end <= begin:
            return False
        runs = self._runs
        for run in runs if len(runs) < 8 else self.touching(begin, end):  # a few are looked through faster
            other = run.agent
            if other == agent or run.begin >= end or run.end <= begin:
                continue
            if other >= len(horizon) or run.at > horizon[other]:
                return True
        return False

    def overlay(self, begin: int, end: int, agent: int, at: int, settled: Settled) -> None:
        """The access (agent, at) is now the last one to [begin, end)."""
        runs = self._runs
        if self.end <= begin:
            self.end = end
            runs.append(Run(begin, end, agent, at))
            if len(runs) > 1:
                self._merge(self._merged, settled)
            return
        if len(runs) == 1 and begin <= runs[0].begin and end >= runs[0].end:  # a batch reads all of a row again
            run = runs[0]
            run.begin, run.agent, run.at = begin, agent, at
            run.end = self.end = end
            return
        if self.end < end:
            self.end = end
        first = self._first(begin)
        last = first
        fresh = [Run(begin, end, agent, at)]
        while last < len(runs) and runs[last].begin < end:
            old = runs[last]
            if old.begin < begin:
                fresh.insert(0, Run(old.begin, begin, old.agent, old.at))
            if old.end > end:
                fresh.append(Run(end, old.end, old.agent, old.at))
            last += 1
        runs[first:last] = fresh
        if len(runs) > 1:
            self._merge(min(self._merged, max(first - 1, 0)), settled)

    def _merge(self, position: int, settled: Settled) -> None:
        """Merges settled neighbours from the position on, up to the first run that is not settled: there the next
        access goes on. A decode step behind two others in flight so costs no run for each token."""
        runs = self._runs
        while position + 1 < len(runs):
            left, right = runs[position], runs[position + 1]
            if right.at > settled(right.agent):
                break
            if left.end == right.begin and left.agent == right.agent and left.at <= settled(left.agent):
                left.end, left.at = right.end, min(left.at, right.at)
                del runs[position + 1]
            else:
                position += 1
        self._merged = position

    def erase(self, begin: int, end: int) -> None:
        """Forgets the accesses to [begin, end)."""
        kept = []
        for run in self._runs:
            if run.begin < begin:
                kept.append(Run(run.begin, min(run.end, begin), run.agent, run.at))
            if run.end > end:
                kept.append(Run(max(run.begin, end), run.end, run.agent, run.at))
        self._runs = kept
        self._merged = 0
        self.end = kept[-1].end if kept else 0
