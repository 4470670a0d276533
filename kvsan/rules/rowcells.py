"""Rows and the batches that read them: row writes, captures, launches, and the end of a batch."""

from __future__ import annotations

import numpy as np

from ..batches import Capture
from ..encoding import CELL_KEY_MASK, GENERATION_MASK, HELD, NODE, RESERVED
from ..encoding import holder as holder_of
from ..errors import EventError
from ..events import Capture as CaptureEvent
from ..events import Done, Launch, RowWrite, Slots
from ..rows import DEAD, MAX_CELL, UNWRITTEN, Row, cell_keys
from ..shadow import PoolShadow
from ..state import State
from ..verdicts import Violation
from . import giveback
from .accesses import row_access, slot_access, uninitialised


def row_write(state: State, event: RowWrite) -> None:
    """`stale_capture`, `alias`, `orphan`, `use_after_free`, `race`; the cells map the slots from here on."""
    table = state.pool(event.pool)
    into = state.pool(event.into)
    table.events += 1
    number, begin = event.row, event.pos
    end = begin + event.slots.size
    if not 0 <= number < table.size:
        state.report(event, [Violation("use_after_free", table, np.array([number], np.int64))])
        return
    if begin == end:
        return
    if begin < 0 or end > MAX_CELL:
        raise EventError(f"cells {begin}..{end - 1} are no cells of a row (0..{MAX_CELL - 1})")
    word = table.words[number]
    violations: list[Violation] = []
    if not word & (HELD | RESERVED):
        violations.append(Violation("use_after_free", table, np.array([number], np.int64)))
    if state.watch_slots and word & HELD and not word & RESERVED:
        row = state.table(table).get(number)
        if event.slots.size > 1 or not append_cell(into, row, begin, int(event.slots[0]), word):
            violations += _map_cells(state, event, table, into, row)
    if event.extra is None or not event.extra.get("same"):
        violations += row_access(state, table, number, begin, end, writes=True)
    if table.init:
        uninitialised(table, np.array([number], np.int64), True)
    if violations:
        state.report(event, violations)


def append_cell(into: PoolShadow, row: Row, position: int, slot: int, word: int) -> bool:
    """The decode step in few steps: one cell more, of a row whose owner is known, with a slot that no row maps yet."""
    mapper = row.mapper
    if row.into is not into or position < row.length or mapper is None or not 0 <= slot < into.size:
        return False
    counts, mappers = into.cells, into.mapper
    key = into.words[slot] & CELL_KEY_MASK
    if mapper.number != holder_of(word) or counts is None or mappers is None or counts[slot] or not key & HELD:
        return False
    row.room(position + 1)
    row.slots[position] = slot
    row.keys[position] = key
    row.length = position + 1
    counts[slot] = 1
    mappers[slot] = mapper.number
    return True


def _map_cells(state: State, event: RowWrite, table: PoolShadow, into: PoolShadow, row: Row) -> list[Violation]:
    """Carries out the write on the cells, and judges what it overwrites and what it maps."""
    holder = state.holders.of(holder_of(table.words[row.number])) or row.mapper or state.owner(event.owner)
    violations: list[Violation] = []
    if row.into is not None and row.into is not into:  # a row maps one pool at a time
        former, gone = row.into, row.slots[row.live(event.pos, event.pos + event.slots.size)]
        giveback.bury_rows(state, table, np.array([row.number], np.int64))
        violations += _orphans(table, former, gone, row, event.pos, event.pos + event.slots.size)
    if row.into is None:
        row.into = into
        row.seen = (into.remapped, holder.remapped if holder is not None else 0)
    if row.mapper is not holder:
        row.mapper = holder
    slots = event.slots
    begin = event.pos
    end = begin + slots.size
    inside = slots if into.exist(slots) else np.where((slots >= 0) & (slots < into.size), slots, 0)
    words = into.tenancy[inside]
    plain = inside is slots and not np.count_nonzero((words & HELD) == 0)  # the common case: all of them are held
    keys = words & CELL_KEY_MASK if plain else cell_keys(words)
    if inside is not slots:
        keys = np.where((slots >= 0) & (slots < into.size), keys, DEAD)
    counts, mappers = into.cell_words()
    me = holder.number if holder is not None else 0
    if me and np.count_nonzero(counts[inside]):
        theirs = mappers[inside]
        foreign = (counts[inside] > 0) & (theirs != me) & (theirs != 0) & ((words & (HELD | NODE)) == HELD)
        if foreign.any():
            other = state.holders.name(int(theirs[foreign][0]))
            detail = {"mapped_by": other or "(unknown)"}
            violations.append(Violation("alias", into, np.unique(slots[foreign]), detail=detail))
    overwritten = row.slots[:0]
    if begin < row.length:
        violations += _stale_cells(state, row, table, slots, begin, end)
        stop = min(end, row.length)
        old_slots, old_keys = row.slots[begin:stop], row.keys[begin:stop]
        alive = (into.tenancy[old_slots] & (GENERATION_MASK | HELD)) == old_keys
        overwritten = old_slots[alive & (old_keys >= 0) & ((old_keys & HELD) != 0)]
        giveback.forget_cells(into, old_slots, old_keys)
        row.own_cells(begin)
        row.sound = min(row.sound, begin)
    row.room(end)
    row.slots[begin:end] = slots
    row.keys[begin:end] = keys
    row.length = max(row.length, end)
    held = slots if plain else inside[((keys & HELD) != 0) & (keys >= 0)]
    into.add_cells(held, 1)
    mappers[held] = me
    return violations + _orphans(table, into, overwritten, row, begin, min(end, row.length))


def _orphans(
    table: PoolShadow, into: PoolShadow, overwritten: Slots, row: Row, begin: int, end: int
) -> list[Violation]:
    """`orphan`: an overwritten cell was all that its slot was held through."""
    if not overwritten.size:
        return []
    counts, _ = into.cell_words()
    lost = overwritten[(counts[overwritten] <= 0) & ((into.tenancy[overwritten] & (HELD | NODE)) == HELD)]
    if not lost.size:
        return []
    also = [(table, np.array([row.number], np.int64))]
    return [Violation("orphan", into, np.unique(lost), cells=(begin, end), also=also, detail={"row": str(row.number)})]


def _stale_cells(state: State, row: Row, table: PoolShadow, slots: Slots, begin: int, end: int) -> list[Violation]:
    """`stale_capture` by cell: a cell that an outstanding batch captured gets another slot."""
    mapper = row.mapper.number if row.mapper is not None else 0
    generation = table.words[row.number] & GENERATION_MASK
    for capture in state.batches.captures(state.clocks, (mapper,)):
        if capture.row is not row or capture.generation != generation or capture.into is None:
            continue
        first, last = max(begin, capture.begin), min(end, capture.begin + capture.slots.size)
        if first >= last:
            continue
        captured = capture.slots[first - capture.begin : last - capture.begin]
        changed = captured != slots[first - begin : last - begin]
        if changed.any():
            positions = np.flatnonzero(changed) + first
            return [
                Violation(
                    "stale_capture", capture.into, np.unique(captured[changed]),
                    owner=capture.owner.name if capture.owner else None,
                    earlier=capture.at, earlier_agent=capture.agent,
                    cells=(int(positions[0]), int(positions[-1]) + 1),
                    also=[(table, np.array([row.number], np.int64))],
                    detail={"batch": capture.batch.name, "row": str(row.number)},
                )
            ]  # fmt: skip
    return []


def capture(state: State, event: CaptureEvent) -> None:
    """`stale_row`, `use_after_free`, `race`; the batch takes the cells, and what they map must stay until it is
    done."""
    table = state.pool(event.pool)
    table.events += 1
    number, begin, end = event.row, event.start, event.upto
    if not 0 <= begin <= end <= MAX_CELL:
        raise EventError(f"{begin}..{end} is no range of cells of a row (0..{MAX_CELL - 1})")
    batch = state.batches.touch(event.batch, state.clocks)
    if not 0 <= number < table.size:
        state.report(event, [Violation("use_after_free", table, np.array([number], np.int64))])
        return
    word = table.words[number]
    row = state.table(table).get(number)
    violations: list[Violation] = []
    if not word & (HELD | RESERVED):
        kind = "stale_row" if begin < end else "use_after_free"  # no cell was written in a tenancy that is not there
        violations.append(Violation(kind, table, np.array([number], np.int64), cells=(begin, end)))
    elif begin < end and state.watch_slots and not word & RESERVED and not row.verify(begin, end):
        violations += _bad_cells(table, row, begin, end)
    if begin < end:
        violations += row_access(state, table, number, begin, end, writes=False)
    if violations:
        state.report(event, violations)
    if row.into is None or not state.watch_slots:
        return
    stop = max(begin, min(end, row.length))
    owner = state.owner(event.owner) or row.mapper
    row.viewed = max(row.viewed, stop)
    state.batches.add(
        Capture(
            batch, event.at, state.clocks.agent, table, row, row.into, word & GENERATION_MASK, begin, end, owner,
            row.slots[begin:stop], row.keys[begin:stop], owner is None or owner.live,
            row.mapper.number if row.mapper is not None else 0,
        )
    )  # fmt: skip


def _bad_cells(table: PoolShadow, row: Row, begin: int, end: int) -> list[Violation]:
    """Cells not written in this tenancy of the row, and cells whose slot has gone to another tenancy or to nobody."""
    stop = max(begin, min(end, row.length))
    slots, keys = row.slots[begin:stop], row.keys[begin:stop]
    unwritten = np.flatnonzero(keys == UNWRITTEN) + begin
    violations: list[Violation] = []
    if unwritten.size or end > stop:
        first = int(unwritten[0]) if unwritten.size else stop
        last = end if end > stop else int(unwritten[-1]) + 1
        violations.append(Violation("stale_row", table, np.array([row.number], np.int64), cells=(first, last)))
    into = row.into
    if into is not None and slots.size:
        inside = (slots >= 0) & (slots < into.size)
        words = into.tenancy[np.where(inside, slots, 0)]
        dead = (keys != UNWRITTEN) & (~inside | ((words & (GENERATION_MASK | HELD)) != keys))
        if dead.any():
            positions = np.flatnonzero(dead) + begin
            cells = (int(positions[0]), int(positions[-1]) + 1)
            violations.append(
                Violation("use_after_free", into, np.unique(slots[dead]), cells=cells, detail={"row": str(row.number)})
            )
    return violations


def launch(state: State, event: Launch) -> None:
    """The batch runs on the event's agent and reads the slots that it captured."""
    batch = state.batches.touch(event.batch, state.clocks)
    agent = state.clocks.agent  # who sees an agent's last launch has seen those before it
    batch.launches = [*(launch for launch in batch.launches if launch[0] != agent), (agent, event.at)]
    if not state.watch_data:
        return
    violations: list[Violation] = []
    for into in {capture.into for capture in batch.captures if capture.into is not None}:
        captures = [c for c in batch.captures if c.into is into]
        slots = np.concatenate([c.slots for c in captures])
        keys = np.concatenate([c.keys for c in captures])
        if np.count_nonzero(keys < 0):
            slots, keys = slots[keys >= 0], keys[keys >= 0]
        if slots.size:
            into.events += 1
            lost = slots[(into.tenancy[slots] & CELL_KEY_MASK) != keys]
            found = [Violation("use_after_free", into, np.unique(lost))] if lost.size else []
            found += slot_access(state, into, slots, writes=False)  # shared ones more than once: to sort costs more
            for violation in found:
                violation.owner = event.owner or _reader(captures, int(violation.slots[0]))
            violations += found
    state.report(event, violations)


def _reader(captures: list[Capture], slot: int) -> str | None:
    """For whom the batch reads the slot."""
    owners = [c.owner.name for c in captures if c.owner is not None and np.count_nonzero(c.slots == slot)]
    return owners[0] if owners else None


def done(state: State, event: Done) -> None:
    """The host has seen the batch finish: all that named it comes before what the host thread does next."""
    batch = state.batches.done(event.batch)
    if batch is not None:
        for past in batch.pasts.values():
            state.clocks.join_host(past)
