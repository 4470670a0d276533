"""A decode step in few steps: the rules for several events at once, as far as they are plain.

Each takes the events from number `first` on, as long as nothing about them needs a judgement, and does to the shadow what
the rule for a single event would do. It returns the number of the first event that it leaves alone, which the single
event's rule then takes, whatever is wrong with it. So these know no violation. The clocks stand at event `first` when a
rule begins, and at the last one that it took when it ends.
"""

from __future__ import annotations

from ..batches import Capture
from ..clocks import Horizon
from ..encoding import GENERATION_MASK, HELD, LEASED, RESERVED
from ..intervals import Runs, Settled
from ..rows import MAX_CELL, Row
from ..several import Captures, Owns, RowWrites, Several
from ..shadow import PoolShadow
from ..state import State
from .ownership import own_one, revive
from .rowcells import append_cell


def owns(state: State, events: Owns, first: int) -> int:
    """Slots get their owners."""
    pool = state.pools.get(events.pool)
    if pool is None or pool.kind == "row" or not state.watch_slots:
        return first
    get, number = state.holders.get, first
    for number in range(first, len(events)):
        owner = events.owners[number]
        if owner is None:
            break
        holder = get(owner)
        if holder.record is not None or holder.ended_at >= 0 or holder.state != "live":
            revive(state, holder)
        if not own_one(pool, events.slots[number], holder):
            break
        pool.events += 1
    else:
        number = len(events)
    return _taken(state, events, first, number)


def row_writes(state: State, events: RowWrites, first: int) -> int:
    """Rows that somebody holds get one cell more, which nobody else has touched unordered."""
    table, into = state.pools.get(events.pool), state.pools.get(events.into)
    if table is None or into is None or table.kind != "row" or table.init:
        return first
    rows, positions, slots = state.table(table), events.positions, events.slots
    clocks = state.clocks
    me, horizon, settled = clocks.agent, clocks.horizon(), _remembered(clocks.settled)
    for number in range(first, len(events)):
        place, position = events.rows[number], positions[number]
        word = _held(table, place)
        if not word or not 0 <= position < MAX_CELL:
            break
        row, end = rows.get(place), position + 1
        if row.writes.unordered(position, end, me, horizon):
            break
        if _unordered_reads(row, position, end, me, horizon):
            break
        if state.watch_slots and not append_cell(into, row, position, slots[number], word):
            break
        row.writes.overlay(position, end, me, events.at + number, settled)
        table.events += 1
    else:
        number = len(events)
    return _taken(state, events, first, number)


def captures(state: State, events: Captures, first: int) -> int:
    """A batch reads rows that somebody holds, and whose cells are what they were when they were written."""
    table = state.pools.get(events.pool)
    if table is None or table.kind != "row":
        return first
    rows, batches, clocks = state.table(table), state.batches, state.clocks
    batch = batches.touch(events.batch, clocks)
    me, horizon, settled = clocks.agent, clocks.horizon(), _remembered(clocks.settled)
    for number in range(first, len(events)):
        place, end = events.rows[number], events.uptos[number]
        word = _held(table, place)
        if not word or not 0 < end <= MAX_CELL:
            break
        row = rows.get(place)
        if state.watch_slots and not row.verify(0, end):
            break
        if row.writes.unordered(0, end, me, horizon):
            break
        reads = row.reads.get(me)
        if reads is None:
            reads = row.reads[me] = Runs()
        reads.overlay(0, end, me, events.at + number, settled)
        table.events += 1
        if row.into is None or not state.watch_slots:
            continue
        owner, mapper = state.owner(events.owners[number]) or row.mapper, row.mapper
        if row.viewed < end:
            row.viewed = end
        batches.add(
            Capture(
                batch, events.at + number, me, table, row, row.into, word & GENERATION_MASK, 0, end, owner,
                row.slots[:end], row.keys[:end], owner is None or owner.live, mapper.number if mapper is not None else 0,
            )
        )  # fmt: skip
    else:
        number = len(events)
    _taken(state, events, first, number)
    batches.touch(events.batch, clocks)  # what the batch's end orders includes the last of them
    return number


def _taken(state: State, events: Several, first: int, number: int) -> int:
    """The events from `first` on were taken, up to this one; what is next happens after them."""
    if number - first > 1:
        state.clocks.enter(events.agent, events.via, events.at + number - 1)
    return number


def _unordered_reads(row: Row, begin: int, end: int, me: int, horizon: Horizon) -> bool:
    for agent, runs in row.reads.items():
        if agent != me and runs.unordered(begin, end, me, horizon):
            return True
    return False


def _held(table: PoolShadow, row: int) -> int:
    """The row's word if somebody holds it, and no transfer uses it; else 0. Reserved rows are padding."""
    if not 0 <= row < table.size:
        return 0
    word = table.words[row]
    return word if word & (HELD | RESERVED | LEASED) == HELD else 0


def _remembered(settled: Settled) -> Settled:
    """The same for the duration of one call: nothing is settled meanwhile, and to ask once an agent is enough."""
    known: dict[int, int] = {}

    def remembered(agent: int) -> int:
        at = known.get(agent)
        if at is None:
            at = known[agent] = settled(agent)
        return at

    return remembered
