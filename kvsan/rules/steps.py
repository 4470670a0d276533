"""A decode step in few steps: the rules for several events at once, as far as they are plain.

Each takes the events from number `first` on, as long as nothing about them needs a judgement, and does to the shadow
what the rule for a single event would do. It returns the number of the first event that it leaves alone, which the
single event's rule then takes, whatever is wrong with it. So these know no violation. The clocks stand at event `first`
when a rule begins, and at the last one that it took when it ends.
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
    get, owners, slots, number = state.holders.get, events.owners, events.slots, first
    for number in range(first, len(slots)):
        owner = owners[number]
        if owner is None:
            break
        holder = get(owner)
        if holder.record is not None or holder.ended_at >= 0 or holder.state != "live":
            revive(state, holder)
        if not own_one(pool, slots[number], holder):
            break
        pool.events += 1
    else:
        number = len(slots)
    return _taken(state, events, first, number)


def row_writes(state: State, events: RowWrites, first: int) -> int:
    """Rows that somebody holds get one cell more, which nobody else has touched unordered."""
    table, into = state.pools.get(events.pool), state.pools.get(events.into)
    if table is None or into is None or table.kind != "row" or table.init:
        return first
    get, places, positions, slots = state.table(table).get, events.rows, events.positions, events.slots
    clocks, map_cells = state.clocks, state.watch_slots
    me, horizon, settled = clocks.agent, clocks.horizon(), _remembered(clocks.settled)
    at, number = events.at, first
    for number in range(first, len(places)):
        position = positions[number]
        word = _held(table, places[number])
        if not word or not 0 <= position < MAX_CELL:
            break
        row, end = get(places[number]), position + 1
        if row.writes.end > position and row.writes.unordered(position, end, me, horizon):
            break
        if row.reads and _unordered_reads(row, position, end, me, horizon):
            break
        if map_cells and not append_cell(into, row, position, slots[number], word):
            break
        row.writes.overlay(position, end, me, at + number, settled)
        table.events += 1
    else:
        number = len(places)
    return _taken(state, events, first, number)


def captures(state: State, events: Captures, first: int) -> int:
    """A batch reads rows that somebody holds, and whose cells are what they were when they were written."""
    table = state.pools.get(events.pool)
    if table is None or table.kind != "row":
        return first
    get, places, uptos, owners = state.table(table).get, events.rows, events.uptos, events.owners
    batches, clocks, mapped, holder = state.batches, state.clocks, state.watch_slots, state.holders.get
    batch = batches.touch(events.batch, clocks)
    me, horizon, settled = clocks.agent, clocks.horizon(), _remembered(clocks.settled)
    at, number = events.at, first
    for number in range(first, len(places)):
        end = uptos[number]
        word = _held(table, places[number])
        if not word or not 0 < end <= MAX_CELL:
            break
        row = get(places[number])
        if (mapped and not row.verify(0, end)) or row.writes.unordered(0, end, me, horizon):
            break
        reads = row.reads.get(me)
        if reads is None:
            reads = row.reads[me] = Runs()
        reads.overlay(0, end, me, at + number, settled)
        table.events += 1
        into = row.into
        if into is None or not mapped:
            continue
        name, mapper = owners[number], row.mapper
        owner = holder(name) if name is not None else mapper
        if row.viewed < end:
            row.viewed = end
        batches.add(
            Capture(
                batch, at + number, me, table, row, into, word & GENERATION_MASK, 0, end, owner, row.slots[:end],
                row.keys[:end], owner is None or owner.live, mapper.number if mapper is not None else 0,
            )
        )  # fmt: skip
    else:
        number = len(places)
    _taken(state, events, first, number)
    batches.touch(events.batch, clocks)  # what the batch's end orders includes the last of them
    return number


def _taken(state: State, events: Several, first: int, number: int) -> int:
    """The events from `first` on were taken, up to this one; what is next happens after them."""
    if number - first > 1:
        state.clocks.enter(events.agent, events.via, events.at + number - 1)
    return number


def _unordered_reads(row: Row, begin: int, end: int, me: int, horizon: Horizon) -> bool:
    for agent, runs in row.reads.items():  # a generator in `any` costs more than these
        if agent != me and runs.end > begin and runs.unordered(begin, end, me, horizon):
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
