"""What the tracker costs, beside the bare NumPy gathers and scatters that it cannot do without.

`python -m kvsan.bench` prints, for each operation, number of slots and layout, in a pool of a million slots:
microseconds an event through the whole way in (facade, stack, hooks, tracker), nanoseconds a slot, the bare NumPy
work (a gather, a comparison and a scatter for each shadow word that the operation needs), and their ratio. Machines
are shared and noisy, so every figure is the quickest of many calls, the two taken in turn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsan.events import Slots

if TYPE_CHECKING:
    from kvsan.hooks.sanitizer import Sanitizer

SIZE = 1 << 20
COUNTS = (1, 256, 4096)
PAGE = 16


Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table: `act` is the event under test, `undo` makes it possible again, `bare` is the NumPy
    work."""

    name: str
    watched: Sanitizer
    act: Step
    undo: Step
    bare: Step


def measure(case: Case, repeats: int) -> tuple[float, float]:
    """Seconds an event and seconds of its bare work: of each the quickest, called in turn, less the timer's own
    time."""
    clock = time.perf_counter
    best = bare = idle = float("inf")
    for _ in range(repeats):
        start = clock()
        idle = min(idle, clock() - start)
        start = clock()
        case.act()
        best = min(best, clock() - start)
        case.undo()
        start = clock()
        case.bare()
        bare = min(bare, clock() - start)
    if case.watched.findings or case.watched.report().failures:
        raise RuntimeError(f"the benchmark's own {case.name} was found at fault: {case.watched.findings[:1]}")
    return best - idle, bare - idle


def spin() -> float:
    """Seconds of an empty loop of a million turns: what this machine is worth today."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(1_000_000):
            pass
        best = min(best, time.perf_counter() - start)
    return best


def layouts(count: int, seed: int) -> dict[str, tuple[int, Slots]]:
    """Page size and slots of each layout: scattered single slots, and whole pages in random order."""
    chance = np.random.default_rng(seed)
    scattered = chance.permutation(SIZE - PAGE)[:count].astype(np.int64) + PAGE
    pages = chance.permutation(SIZE // PAGE - 1)[: -(-count // PAGE)].astype(np.int64) + 1
    paged = (pages[:, None] * PAGE + np.arange(PAGE)).reshape(-1)[:count]
    return {"scattered": (1, scattered), "paged": (PAGE, paged)}


def engine(page: int, slots: Slots, *, held: bool) -> Sanitizer:
    """A sanitizer with a row pool and a pool of a million slots; `held`: request "r" holds the slots, mapped by row
    1."""
    from kvsan.hooks.sanitizer import Sanitizer

    san = Sanitizer(level="full")
    san.pool("row", kind="row", size=64, reserved=[0])
    san.pool("kv", kind="kv", size=SIZE, page=page, reserved=list(range(page)))
    san.alloc("row", 1, owner="r")
    if held:
        san.alloc("kv", slots, owner="r")
        san.row_write("row", row=1, pos=0, into="kv", slots=slots, owner="r", agent="sched")
        san.record(event="e", agent="sched")
        san.wait(event="e", agent="fwd")
    return san


def cases(page: int, slots: Slots) -> list[Case]:
    """The operations on one set of slots, each in an engine of its own."""
    word, second, small = np.zeros(SIZE, np.int64), np.zeros(SIZE, np.int64), np.zeros(SIZE, np.int32)
    cells, one = np.zeros(slots.size, np.int64), int(slots[0])

    def tenancy_and_origin() -> object:
        """Tenancy: gather, compare, scatter; origin: scatter."""
        found = word[slots]
        fine = np.count_nonzero(found & 3)
        word[slots] = found
        second[slots] = 7
        return fine

    def cell_words() -> object:
        """Tenancy, cell count: gathers and comparisons; cells, count, mapper: scatters."""
        found = word[slots]
        fine = np.count_nonzero(found & 3) + np.count_nonzero(small[slots])
        cells[:] = found
        small[slots] += 1
        small[slots] = 1
        return fine

    def tenancy() -> object:
        """Tenancy: gather, compare with the cells."""
        return np.count_nonzero(word[slots] != cells)

    def access_words() -> object:
        """Tenancy: gather, compare; last write: gather, compare, scatter."""
        fine = np.count_nonzero(word[slots] & 3)
        last = second[slots]
        fine += int(np.maximum.reduce(last) > 5)
        second[slots] = 7
        return fine

    def nothing() -> None: ...

    empty = engine(page, slots, held=False)
    freeing = engine(page, slots, held=False)
    freeing.alloc("kv", slots, owner="r")
    mapped, captured, read, written = (engine(page, slots, held=True) for _ in range(4))
    row = captured.tracker.state.tables["row"].get(1)

    def empty_row() -> None:
        mapped.free("row", 1, owner="r")
        mapped.alloc("row", 1, owner="r")

    empty_row()

    def fill() -> None:
        """A prefill: the cells of a new row."""
        mapped.row_write("row", row=1, pos=0, into="kv", slots=slots, owner="r", agent="sched")

    cell = iter(range(1 << 30))

    def append() -> None:
        """A decode step: one cell more."""
        mapped.row_write("row", row=1, pos=next(cell), into="kv", slots=slots, owner="r", agent="sched")

    def renew() -> None:
        mapped.sync(on="sched")
        mapped.free("kv", slots, owner="r")
        mapped.alloc("kv", slots, owner="r")

    def forget() -> None:
        captured.done(batch="b")
        row.sound = 0  # as if these cells were captured for the first time

    named = one if slots.size == 1 else slots
    return [
        Case("alloc", empty, lambda: empty.alloc("kv", named, owner="r"), lambda: empty.free("kv", slots, owner="r"),
             tenancy_and_origin),
        Case("free", freeing, lambda: freeing.free("kv", named, owner="r"),
             lambda: freeing.alloc("kv", slots, owner="r"), tenancy_and_origin),
        Case("row write", mapped, append if slots.size == 1 else fill, renew if slots.size == 1 else empty_row,
             cell_words),
        Case("capture", captured,
             lambda: captured.capture("row", row=1, upto=slots.size, batch="b", owner="r", agent="fwd"), forget,
             tenancy),
        Case("read", read, lambda: read.read("kv", named, owner="r", agent="fwd"), nothing, access_words),
        Case("write", written, lambda: written.write("kv", named, owner="r", agent="fwd"), nothing, access_words),
    ]  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m kvsan.bench", description=__doc__)
    parser.add_argument("--repeats", type=int, default=400, help="calls for each figure, of which the quickest counts")
    args = parser.parse_args(argv)
    print(f"a Python loop of a million turns: {spin() * 1e3:.0f} ms\n")
    print(f"{'operation':<10} {'slots':>6} {'layout':<10} {'us/event':>9} {'ns/slot':>9} {'bare us':>9} {'ratio':>6}")
    for count in COUNTS:
        for layout, (page, slots) in layouts(count, seed=count).items():
            for case in cases(page, slots):
                spent, bare = measure(case, args.repeats if count > 1 else 5 * args.repeats)
                print(
                    f"{case.name:<10} {count:>6} {layout:<10} {spent * 1e6:>9.2f} {spent / count * 1e9:>9.1f} "
                    f"{bare * 1e6:>9.2f} {spent / bare:>6.2f}"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
