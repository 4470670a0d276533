"""Runs against a dictionary of cells: what `touching` tells, also after runs merged, is what the cells would tell."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from kvsan.intervals import WHOLE, Run, Runs

from .feeding import seeds

CELLS = 24


def nothing(agent: int) -> int:
    return -1


def runs_of(runs: Runs) -> list[tuple[int, int, int, int]]:
    return [(run.begin, run.end, run.agent, run.at) for run in runs.touching(0, WHOLE)]


def cells_of(runs: Runs) -> dict[int, tuple[int, int]]:
    return {cell: (run.agent, run.at) for run in runs.touching(0, CELLS) for cell in range(run.begin, run.end)}


def check_shape(runs: Runs) -> None:
    listed = runs_of(runs)
    assert all(begin < end for begin, end, _, _ in listed)
    assert all(left[1] <= right[0] for left, right in pairwise(listed))
    assert len(runs) == len(listed)


@pytest.mark.parametrize("part", range(4))
def test_as_a_dictionary_of_cells(part: int) -> None:
    """Nothing is settled: epochs are exact."""
    for seed in seeds(100, first=part * 1000):
        rng = Random(seed)
        runs, cells = Runs(), dict[int, tuple[int, int]]()
        for at in range(40):
            begin = rng.randrange(CELLS)
            end = rng.randrange(begin + 1, CELLS + 1)
            if rng.random() < 0.2:
                runs.erase(begin, end)
                for cell in range(begin, end):
                    cells.pop(cell, None)
            else:
                agent = rng.randrange(3)
                runs.overlay(begin, end, agent, at, settled=nothing)
                cells.update({cell: (agent, at) for cell in range(begin, end)})
            check_shape(runs)
            assert cells_of(runs) == cells, seed
            first = rng.randrange(CELLS)
            last = rng.randrange(first + 1, CELLS + 1)
            touched = {cell: (run.agent, run.at) for run in runs.touching(first, last)
                       for cell in range(max(first, run.begin), min(last, run.end))}  # fmt: skip
            assert touched == {cell: epoch for cell, epoch in cells.items() if first <= cell < last}


@pytest.mark.parametrize("part", range(4))
def test_merging_hides_no_epoch_that_is_not_settled(part: int) -> None:
    """With a settled index that grows: a cell's agent is exact; its epoch is, or stands for a later settled one."""
    for seed in seeds(100, first=part * 1000):
        rng = Random(seed)
        runs, cells = Runs(), dict[int, tuple[int, int]]()
        settled = [-1, -1]
        for at in range(60):
            begin = rng.randrange(CELLS)
            end = min(CELLS, begin + rng.randrange(1, 6))
            agent = rng.randrange(2)
            if rng.random() < 0.3:
                settled[agent] = rng.randrange(settled[agent], at) if at > settled[agent] + 1 else settled[agent]
            runs.overlay(begin, end, agent, at, settled.__getitem__)
            cells.update({cell: (agent, at) for cell in range(begin, end)})
            check_shape(runs)
            told = cells_of(runs)
            assert told.keys() == cells.keys()
            for cell, (who, when) in cells.items():
                assert told[cell][0] == who
                if told[cell][1] != when:
                    assert told[cell][1] < when <= settled[who], (seed, at, cell)


@pytest.mark.parametrize("lag", [0, 1, 2, 7])
def test_decoding_one_token_a_step_keeps_few_runs(lag: int) -> None:
    """Each step writes one cell, and the host has seen what was written `lag` steps before it."""
    runs = Runs()
    for at in range(3000):
        runs.overlay(at, at + 1, agent=1, at=at, settled=lambda agent, now=at: now - lag)  # type: ignore[misc]
        assert len(runs) <= lag + 1
    assert [(run.begin, run.end) for run in runs.touching(0, 1)] == [(0, 3000 - lag)]


def test_what_settles_late_merges_all_the_same() -> None:
    runs = Runs()
    for at in range(100):
        runs.overlay(at, at + 1, agent=1, at=at, settled=nothing)
    runs.overlay(100, 101, agent=1, at=100, settled=lambda agent: 99)
    assert runs_of(runs) == [(0, 100, 1, 0), (100, 101, 1, 100)]


def test_runs_of_different_agents_stay_apart() -> None:
    runs = Runs()
    runs.overlay(0, 4, agent=1, at=0, settled=lambda agent: 9)
    runs.overlay(4, 8, agent=2, at=1, settled=lambda agent: 9)
    runs.overlay(8, 12, agent=2, at=2, settled=lambda agent: 9)
    runs.overlay(12, 13, agent=2, at=3, settled=lambda agent: 9)
    assert runs_of(runs) == [(0, 4, 1, 0), (4, 13, 2, 1)]


def test_an_overlay_in_the_middle_splits_a_run() -> None:
    runs = Runs()
    runs.overlay(0, 10, agent=1, at=0, settled=nothing)
    runs.overlay(4, 6, agent=2, at=1, settled=nothing)
    assert runs.touching(0, 10) == [Run(0, 4, 1, 0), Run(4, 6, 2, 1), Run(6, 10, 1, 0)]
    assert runs.touching(6, 7) == [Run(6, 10, 1, 0)]
    runs.erase(5, 8)
    assert runs.touching(0, 10) == [Run(0, 4, 1, 0), Run(4, 5, 2, 1), Run(8, 10, 1, 0)]


def test_a_whole_row_covers_all() -> None:
    runs = Runs()
    runs.overlay(3, 9, agent=1, at=0, settled=nothing)
    runs.overlay(0, WHOLE, agent=1, at=1, settled=nothing)
    assert runs_of(runs) == [(0, WHOLE, 1, 1)]
