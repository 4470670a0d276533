"""Who touches what: `race`, `use_after_free` and `uninit_read`, for slots and for row cells.

A read or write of slots checks the last write and, for a write, the last read of every other agent: FastTrack's rule,
over all the slots at once. An access that was found to race is forgotten: the engine holds the two for ordered, and
what follows from that is one fault, not many. Transfers in flight are concurrent with everything; once over, they
count as accesses of the host thread that saw them end.
"""

from __future__ import annotations

import numpy as np

from ..encoding import AGENT_BITS, AGENT_MASK, HELD, LEASED, RESERVED, WRITTEN
from ..events import Read, Slots, Write, XferBegin, XferEnd
from ..intervals import WHOLE, Run, Runs
from ..rows import Row
from ..shadow import PoolShadow, epoch, epoch_parts
from ..state import State
from ..transfers import Lease
from ..verdicts import NO_SLOTS, Violation


def read(state: State, event: Read) -> None:
    """A read of slots, or of whole rows."""
    _access(state, event, writes=False)


def write(state: State, event: Write) -> None:
    """A write of slots, or of whole rows."""
    _access(state, event, writes=True)


def _access(state: State, event: Read | Write, *, writes: bool) -> None:
    pool = state.pool(event.pool)
    if event.batch is not None:
        state.batches.touch(event.batch, state.clocks)
    if not event.slots.size:
        return
    if pool.kind == "row":
        pool.events += 1
        violations = held_by_somebody(pool, event.slots)
        for number in np.unique(pool.existing(event.slots)).tolist():
            violations += row_access(state, pool, number, 0, WHOLE, writes=writes)
        if pool.init:
            violations += uninitialised(pool, pool.existing(event.slots), writes)
        state.report(event, violations)
    elif state.watch_data:
        pool.events += 1
        violations = slot_access(state, pool, event.slots, writes=writes)
        if violations:
            state.report(event, violations)


def held_by_somebody(pool: PoolShadow, slots: Slots) -> list[Violation]:
    """`use_after_free`: what is read or written is held by somebody; reserved slots aside."""
    if pool.exist(slots):
        words = pool.tenancy[slots]
        lost = slots[(words & (HELD | RESERVED)) == 0]
    else:
        words = pool.tenancy[np.where((slots >= 0) & (slots < pool.size), slots, 0)]
        lost = slots[((words & (HELD | RESERVED)) == 0) | (slots < 0) | (slots >= pool.size)]
    return [Violation("use_after_free", pool, np.unique(lost))] if lost.size else []


def uninitialised(pool: PoolShadow, slots: Slots, writes: bool) -> list[Violation]:
    """`uninit_read` in pools that ask for it; a write initialises."""
    words = pool.tenancy[slots]
    if writes:
        pool.tenancy[slots] = words | WRITTEN
        return []
    raw = slots[((words & (WRITTEN | RESERVED)) == 0) & ((words & HELD) != 0)]
    return [Violation("uninit_read", pool, np.unique(raw))] if raw.size else []


def slot_access(
    state: State, pool: PoolShadow, slots: Slots, *, writes: bool, lasting: bool = False
) -> list[Violation]:
    """Judges and notes an access of the present agent to slots, shape [n]; `lasting`: it goes on, and is
    noted when it ends (a transfer)."""
    index, fine = pool.locate(slots)
    violations: list[Violation] = []
    if not fine and not pool.exist(slots):
        violations += held_by_somebody(pool, slots)
        slots = pool.existing(slots)
        if not slots.size:
            return violations
        index = slots
    words = pool.tenancy[index]
    if np.count_nonzero((words & (HELD | RESERVED)) == 0):
        violations += held_by_somebody(pool, slots)
    if np.count_nonzero(words & LEASED):
        violations += _against_leases(state, pool, slots, writes)
    violations += _against_writes(state, pool, slots, pool.last_writes()[index])
    if writes:
        violations += _against_reads(state, pool, slots, index)
    if pool.init:
        violations += uninitialised(pool, slots, writes)
    if not lasting:
        note(pool, index, slots, state.clocks.agent, event_index(state), writes)
    return violations


def event_index(state: State) -> int:
    """The present event's index."""
    return state.clocks.seen(state.clocks.agent)


def note(pool: PoolShadow, index: Slots | slice, slots: Slots, agent: int, at: int, writes: bool) -> None:
    """The access (agent, at) is now the slots' last write, or the agent's last read of them."""
    if writes:
        pool.writers.add(agent)
        pool.last_writes()[index] = epoch(agent, at)
        return
    reads = pool.last_reads(agent)
    if reads is not None:
        reads[index] = at
    else:
        pool.read_rarely.setdefault(agent, {}).update(dict.fromkeys(slots.tolist(), at))


def _against_writes(state: State, pool: PoolShadow, slots: Slots, last: Slots) -> list[Violation]:
    others = pool.writers - {state.clocks.agent}
    if not others:
        return []
    clocks = state.clocks
    latest = int(np.maximum.reduce(last))
    if latest >> AGENT_BITS <= min(clocks.seen(agent) for agent in others):
        return []
    seen = np.array([clocks.seen(agent) for agent in range(len(clocks.names))], np.int64)
    writer = last & AGENT_MASK
    late = (last >> AGENT_BITS > seen[writer]) & (last != 0) & (writer != clocks.agent)
    if not late.any():
        return []
    words = last[late]  # a copy: `last` may be a view of what is forgotten now
    pool.last_writes()[slots[late]] = 0
    return _race(pool, slots[late], words)


def _race(pool: PoolShadow, slots: Slots, words: Slots) -> list[Violation]:
    real = (pool.tenancy[slots] & RESERVED) == 0
    if not real.any():
        return []
    agent, at = epoch_parts(int(words[real].max()))
    return [
        Violation("race", pool, np.unique(slots[real]), earlier=at, earlier_agent=agent, detail={"earlier": "write"})
    ]


def _against_reads(state: State, pool: PoolShadow, slots: Slots, index: Slots | slice) -> list[Violation]:
    clocks = state.clocks
    found: list[Violation] = []
    for agent, reads in pool.read_at.items():
        if agent != clocks.agent:
            last = reads[index]
            seen = clocks.seen(agent)
            latest = int(np.maximum.reduce(last))
            if latest > seen:
                late = slots[last > seen]
                reads[late] = -1
                found += _read_race(pool, late, latest, agent)
    for agent, sparse in pool.read_rarely.items():
        if agent != clocks.agent:
            seen = clocks.seen(agent)
            rare = {slot: sparse[slot] for slot in slots.tolist() if sparse.get(slot, -1) > seen}
            if rare:
                for slot in rare:
                    del sparse[slot]
                found += _read_race(pool, np.array(list(rare), np.int64), max(rare.values()), agent)
    return found


def _read_race(pool: PoolShadow, slots: Slots, at: int, agent: int) -> list[Violation]:
    real = slots[(pool.tenancy[slots] & RESERVED) == 0]
    if not real.size:
        return []
    return [Violation("race", pool, np.unique(real), earlier=at, earlier_agent=agent, detail={"earlier": "read"})]


def _against_leases(state: State, pool: PoolShadow, slots: Slots, writes: bool) -> list[Violation]:
    """Nothing orders an access and a transfer that is still open, if one of them writes."""
    for lease in state.transfers.of(pool):
        if writes or lease.writes:
            hit = slots[pool.among(slots, lease.slots)]
            hit = hit[(pool.tenancy[hit] & RESERVED) == 0]
            if hit.size:
                detail = {"earlier": "write" if lease.writes else "read", "xfer": lease.xfer}
                return [
                    Violation("race", pool, np.unique(hit), earlier=lease.at, earlier_agent=lease.agent, detail=detail)
                ]
    return []


# -- row cells


def row_access(
    state: State, pool: PoolShadow, number: int, begin: int, end: int, *, writes: bool, lasting: bool = False
) -> list[Violation]:
    """Judges and notes an access of the present agent to row[begin:end]; reserved rows are padding and may collide.
    `lasting` as for slots."""
    row = state.table(pool).get(number)
    clocks = state.clocks
    word = pool.words[number]
    collisions = [] if word & RESERVED else _collisions(state, row, begin, end, writes)
    for runs, run, _ in collisions:
        runs.erase(max(begin, run.begin), min(end, run.end))
    if not lasting:
        _note_cells(state, row, begin, end, clocks.agent, event_index(state), writes)
    rows = np.array([number], np.int64)
    late = _against_leases(state, pool, rows, writes) if word & LEASED else []
    if not collisions:
        return late
    _, run, what = max(collisions, key=lambda collision: collision[1].at)
    return [*late, Violation("race", pool, rows, earlier=run.at, earlier_agent=run.agent, detail={"earlier": what})]


def _note_cells(state: State, row: Row, begin: int, end: int, agent: int, at: int, writes: bool) -> None:
    """The access (agent, at) is now the cells' last write, or the agent's last read of them."""
    runs = row.writes if writes else row.reads.setdefault(agent, Runs())
    runs.overlay(begin, end, agent, at, state.clocks.settled)


def _collisions(state: State, row: Row, begin: int, end: int, writes: bool) -> list[tuple[Runs, Run, str]]:
    """The earlier accesses to these cells that are not ordered before the present one."""
    clocks = state.clocks
    readers = row.reads.items() if writes else ()
    candidates = [(row.writes, "write"), *((runs, "read") for agent, runs in readers if agent != clocks.agent)]
    return [
        (runs, run, what)
        for runs, what in candidates
        for run in runs.touching(begin, end)
        if run.agent != clocks.agent and not clocks.sees(run.agent, run.at)
    ]


# -- transfers


def xfer_begin(state: State, event: XferBegin) -> None:
    """The transfer's access begins: it comes after what its agent did, and is concurrent with all else until its
    end."""
    pool = state.pool(event.pool)
    clocks = state.clocks
    writes = event.access == "write"
    if not state.watched(pool):  # it orders all the same
        state.transfers.begin(
            Lease(event.xfer, pool, NO_SLOTS, writes, event.owner, event.at, clocks.agent, clocks.snapshot())
        )
        return
    pool.events += 1
    if pool.kind == "row" or not state.watch_data:
        violations = held_by_somebody(pool, event.slots) if event.slots.size else []
        for number in np.unique(pool.existing(event.slots)).tolist() if pool.kind == "row" else []:
            violations += row_access(state, pool, number, 0, WHOLE, writes=writes, lasting=True)
    else:
        violations = slot_access(state, pool, event.slots, writes=writes, lasting=True) if event.slots.size else []
    state.report(event, violations)
    slots = np.unique(pool.existing(event.slots))
    state.transfers.begin(
        Lease(event.xfer, pool, slots, writes, event.owner, event.at, clocks.agent, clocks.snapshot())
    )


def xfer_end(state: State, event: XferEnd) -> None:
    """What the transfer did comes before what the calling host thread does next."""
    for lease in state.transfers.end(event.xfer):
        state.clocks.join_host(lease.past)
        if lease.pool.kind == "row":
            for number in lease.slots.tolist():
                row = state.table(lease.pool).get(number)
                _note_cells(state, row, 0, WHOLE, state.clocks.host, event.at, lease.writes)
        elif state.watch_data and lease.slots.size:
            note(lease.pool, lease.slots, lease.slots, state.clocks.host, event.at, lease.writes)
