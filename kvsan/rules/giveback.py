"""How slots leave their holder: the judgements that a free and an evict share, and carrying them out."""

from __future__ import annotations

import numpy as np

from ..encoding import (
    EVER,
    FREED,
    GENERATION_MASK,
    HELD,
    HOLDER_MASK,
    HOLDER_SHIFT,
    LEASED,
    NODE,
    PENDING,
    RESERVED,
    SHARED,
)
from ..events import Event, Slots
from ..shadow import PoolShadow
from ..state import State
from ..verdicts import Violation

KEPT = GENERATION_MASK | EVER | RESERVED | LEASED
"""What of a slot's word outlives its tenancy."""


def in_flight(state: State, pool: PoolShadow, slots: Slots) -> list[Violation]:
    """`free_in_flight`: nothing is given back while a transfer uses it."""
    if not np.count_nonzero(pool.tenancy[slots] & LEASED):
        return []
    used = state.transfers.using(pool, slots)
    if used is None:
        return []
    lease, hit = used
    state.transfers.drop(pool, slots)
    detail = {"xfer": lease.xfer, "access": "write" if lease.writes else "read"}
    return [Violation("free_in_flight", pool, hit, earlier=lease.at, earlier_agent=lease.agent, detail=detail)]


def unmapped(state: State, pool: PoolShadow, slots: Slots) -> list[Violation]:
    """The slots are about to be given back: `stale_capture` if an outstanding batch captured one of them. Marks the
    rows that map them, so that their cells are looked at again, and forgets their cells."""
    mappers: set[int] | None = set()
    if pool.cells is not None and pool.mapper is not None:
        mapped = slots[pool.cells[slots] > 0]
        if mapped.size:
            mappers = set(pool.mapper[mapped].tolist())
            if 0 in mappers or np.count_nonzero(pool.tenancy[mapped] & NODE):
                pool.remapped += 1
                mappers = None
            else:
                for number in mappers:
                    holder = state.holders.of(number)
                    if holder is not None:
                        holder.remapped += 1
            pool.cells[mapped] = 0
    return stale_captures(state, pool, slots, mappers)


def stale_captures(state: State, pool: PoolShadow, slots: Slots, mappers: set[int] | None) -> list[Violation]:
    """`stale_capture` by slot: some of these were captured, through these mappers' rows (None: anybody's), by an
    outstanding batch of a request that is not over."""
    for capture in state.batches.captures(state.clocks, mappers):
        if capture.into is pool:
            hit = pool.among(slots, capture.slots)
            if np.count_nonzero(hit):
                detail = {"batch": capture.batch.name, "row": str(capture.row.number)}
                cells = (capture.begin, capture.end)
                return [
                    Violation(
                        "stale_capture", pool, slots[hit], owner=capture.owner.name if capture.owner else None,
                        earlier=capture.at, earlier_agent=capture.agent, cells=cells, detail=detail,
                        also=[(capture.table, np.array([capture.row.number], np.int64))],
                    )
                ]  # fmt: skip
    return []


def count_out(state: State, pool: PoolShadow, words: Slots) -> None:
    """Takes held slots off their holders' counts and the pool's totals, given their words, shape [n]."""
    number = pool.number
    holders = (words & HOLDER_MASK) >> HOLDER_SHIFT
    first = int(holders[0])
    if not np.count_nonzero(holders != first):
        pairs = [(first, int(words.size))]
    else:
        unique, counts = np.unique(holders, return_counts=True)
        pairs = list(zip(unique.tolist(), counts.tolist(), strict=True))
    for holder_number, count in pairs:
        holder = state.holders.of(holder_number)
        if holder is not None:
            holder.count(number, -count)
            if holder.ended_at >= 0 and not holder.held:
                state.holders.retire(holder)
    pool.cached -= int(np.count_nonzero(words & NODE))


def release(state: State, event: Event, pool: PoolShadow, slots: Slots, named: Slots, *, pending: bool = False) -> None:
    """Gives `slots` (all held; with their pages) back; `named` are those that the event names."""
    words = pool.tenancy[slots]
    count_out(state, pool, words)
    if pool.sharers is not None and np.count_nonzero(words & SHARED):
        pool.sharers[slots] = 0
    new = (words & KEPT) | EVER
    if pending:
        new |= PENDING
        pool.pending += int(slots.size)
    else:
        pool.free += int(np.count_nonzero((words & RESERVED) == 0))
    pool.tenancy[slots] = new
    pool.tenancy[named] |= FREED
    pool.origin[slots] = state.origin_word(event)
    if pool.kind == "row":
        bury_rows(state, pool, slots)


def bury_rows(state: State, pool: PoolShadow, rows: Slots) -> None:
    """The rows' tenancies end: their cells die, and slots are mapped by that many cells less."""
    table = state.table(pool)
    for number in rows.tolist():
        row = table.find(number)
        if row is None or row.into is None:
            continue
        state.batches.bury(row)
        forget_cells(row.into, row.slots[: row.length], row.keys[: row.length])
        row.bury()


def forget_cells(into: PoolShadow, slots: Slots, keys: Slots) -> None:
    """Cells with these slots and keys are gone: their slots, where still in that tenancy, lose one mapping each."""
    if into.cells is None or not slots.size:
        return
    alive = (into.tenancy[slots] & (GENERATION_MASK | HELD)) == keys
    into.add_cells(slots[alive & ((keys & HELD) != 0) & (keys >= 0)], -1)
