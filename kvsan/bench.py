"""What the tracker costs, beside the bare NumPy gathers and scatters that it cannot do without.

`python -m kvsan.bench` prints, for each operation, number of slots and layout, in a pool of a million slots: microseconds
an event through the whole way in (facade, stack, hooks, tracker), nanoseconds a slot, the bare NumPy work (a gather, a
comparison and a scatter for each shadow word that the operation needs), and their ratio. Every figure is the best of several
interleaved rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvsan.events import Slots

SIZE = 1 << 20
COUNTS = (1, 256, 4096)
PAGE = 16
ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table: `act` is the event under test, `undo` what makes it possible again, `bare` the NumPy work."""

    name: str
    act: Callable[[int], None]
    undo: Callable[[int], None]
    bare: Callable[[], object]


def measure(case: Case, rounds: int, repeats: int) -> tuple[float, float]:
    """Seconds an event and seconds of the bare work: the best round of each."""
    best, bare = float("inf"), float("inf")
    turn = 0
    for _ in range(rounds):
        spent = 0.0
        for _ in range(repeats):
            start = time.perf_counter()
            case.act(turn)
            spent += time.perf_counter() - start
            case.undo(turn)
            turn += 1
        best = min(best, spent / repeats)
        start = time.perf_counter()
        for _ in range(repeats):
            case.bare()
        bare = min(bare, (time.perf_counter() - start) / repeats)
    return best, bare


def layouts(count: int, seed: int) -> dict[str, tuple[int, Slots]]:
    """Page size and slots of each layout: scattered single slots, and whole pages in random order."""
    chance = np.random.default_rng(seed)
    scattered = chance.permutation(SIZE - PAGE)[:count].astype(np.int64) + PAGE
    pages = chance.permutation(SIZE // PAGE - 1)[: max(1, count // PAGE)].astype(np.int64) + 1
    paged = (pages[:, None] * PAGE + np.arange(PAGE)).reshape(-1)[:count]
    return {"scattered": (1, scattered), "paged": (PAGE, paged)}


def cases(page: int, slots: Slots) -> list[Case]:
    """The operations on one set of slots."""
    from kvsan.hooks.sanitizer import Sanitizer

    san = Sanitizer(level="full")
    san.pool("row", kind="row", size=64, reserved=[0])
    san.pool("kv", kind="kv", size=SIZE, page=page, reserved=list(range(page)))
    san.alloc("row", 1, owner="r")
    word = np.zeros(SIZE, np.int64)
    second = np.zeros(SIZE, np.int64)
    small = np.zeros(SIZE, np.int32)
    cells = np.zeros(slots.size, np.int64)
    count = slots.size

    def nothing(turn: int) -> None: ...

    def alloc(turn: int) -> None:
        san.alloc("kv", slots, owner="r")

    def free(turn: int) -> None:
        san.free("kv", slots, owner="r")

    def hold(turn: int) -> None:
        if turn == 0:
            san.alloc("kv", slots, owner="r")
            san.row_write("row", row=1, pos=0, into="kv", slots=slots, owner="r", agent="sched")
            san.record(event="e", agent="sched")
            san.wait(event="e", agent="fwd")

    def row_write(turn: int) -> None:
        san.row_write("row", row=1, pos=0, into="kv", slots=slots, owner="r", agent="sched")

    def capture(turn: int) -> None:
        san.capture("row", row=1, upto=count, batch="b", owner="r", agent="fwd")

    def forget(turn: int) -> None:
        san.done(batch="b")
        row = san.tracker.state.tables["row"].get(1)
        row.sound = 0  # as if the row were captured for the first time

    def read(turn: int) -> None:
        san.read("kv", slots, owner="r", agent="fwd")

    def write(turn: int) -> None:
        san.write("kv", slots, owner="r", agent="fwd")

    def two_words() -> object:
        """Tenancy: gather, compare, scatter; origin: scatter."""
        found = word[slots]
        fine = np.count_nonzero(found & 3)
        word[slots] = found
        second[slots] = 7
        return fine

    def cell_words() -> object:
        """Tenancy, cell count, mapper: gathers, a comparison; cells, count, mapper: scatters."""
        found = word[slots]
        fine = np.count_nonzero(found & 3)
        counts = small[slots]
        cells[:] = found
        small[slots] = counts
        small[slots] = 1
        return fine

    def one_gather() -> object:
        """Tenancy: gather, compare with the cells."""
        return np.count_nonzero(word[slots] != cells)

    def access_words() -> object:
        """Tenancy: gather, compare; last write: gather, compare, scatter."""
        fine = np.count_nonzero(word[slots] & 3)
        last = second[slots]
        fine += int(np.maximum.reduce(last) > 5)
        second[slots] = 7
        return fine

    result = [Case("alloc", alloc, free, two_words)]
    alloc(0)
    result.append(Case("free", free, alloc, two_words))
    free(0)
    hold(0)
    result.append(Case("row write", row_write, nothing, cell_words))
    result.append(Case("capture", capture, forget, one_gather))
    result.append(Case("read", read, nothing, access_words))
    result.append(Case("write", write, nothing, access_words))
    return result


def run(rounds: int, counts: tuple[int, ...]) -> list[tuple[str, int, str, float, float]]:
    """Operation, slots, layout, seconds an event, seconds of the bare work."""
    table = []
    for count in counts:
        for layout, (page, slots) in layouts(count, seed=count).items():
            # `free` starts from held slots, so each case gets a pool of its own state in order.
            for position, case in enumerate(cases(page, slots)):
                if case.name == "free":
                    fresh = cases(page, slots)
                    fresh[0].act(0) if False else None
                    case = fresh[position]
                repeats = max(20, min(2000, 200_000 // count))
                spent, bare = measure(case, rounds, repeats)
                table.append((case.name, count, layout, spent, bare))
    return table


def main(argv: list[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m kvsan.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds for each figure (default: {ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a look")
    args = parser.parse_args(argv)
    rounds = 2 if args.quick else args.rounds
    print(f"{'operation':<10} {'slots':>6} {'layout':<10} {'us/event':>9} {'ns/slot':>9} {'bare us':>9} {'ratio':>6}")
    for name, count, layout, spent, bare in run(rounds, COUNTS):
        print(
            f"{name:<10} {count:>6} {layout:<10} {spent * 1e6:>9.2f} {spent / count * 1e9:>9.1f} "
            f"{bare * 1e6:>9.2f} {spent / bare:>6.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
