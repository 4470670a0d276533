"""Giving slots back: free, the groups that delay it, and frees through secondary maps."""

from __future__ import annotations

import numpy as np

from ..encoding import EVER, FREED, HELD, HOLDER_MASK, LEASED, NODE, PENDING, RESERVED, SHARED
from ..events import Flush, Free, MapClear, MapSet, Slots
from ..shadow import Mask, PoolShadow
from ..state import State
from ..verdicts import Violation
from . import giveback
from .shares import end_shares, shares

PLAIN = HELD | NODE | RESERVED | LEASED | SHARED


def free(state: State, event: Free) -> None:
    """`invalid_free`, `double_free`, `page_double_free`, `free_not_owner`, `free_in_flight`, `stale_capture`."""
    pool = state.pool(event.pool)
    if not state.watched(pool):
        return
    slots = event.slots if event.map is None else _mapped(state, event)
    if slots is None or not slots.size:
        return
    pool.events += 1
    holder = state.owner(event.owner)
    if holder is not None:
        holder.record = None
    if event.group is not None or not (_free_plain if pool.page == 1 else _free_pages)(state, event, pool, slots):
        _judge_free(state, event, pool, slots)
    if event.extra is not None and event.extra.get("spent"):
        _forget_readers(state, pool, slots)


def _forget_readers(state: State, pool: PoolShadow, slots: Slots) -> None:
    """What still reads these rows does so for results that are thrown away: no later write conflicts with it."""
    if pool.kind == "row":
        for number in slots.tolist():
            row = state.table(pool).find(number)
            if row is not None:
                row.reads.clear()


def _mapped(state: State, event: Free) -> Slots:
    entries = state.maps.get(event.map or "", {})
    keys = event.keys.tolist() if event.keys is not None else []
    return np.array([entries[key] for key in keys if key in entries], np.int64)


def _free_plain(state: State, event: Free, pool: PoolShadow, slots: Slots) -> bool:
    """The common case in few steps: distinct single slots that the giver holds and no transfer uses."""
    holder = state.owner(event.owner)
    if holder is None:
        return False
    expected = HELD | holder.bits
    count = slots.size
    if count == 1:
        slot = int(slots[0])
        if not 0 <= slot < pool.size:
            return False
        word = pool.words[slot]
        if word & (PLAIN | HOLDER_MASK) != expected:
            return False
        _unmap(state, event, pool, slots, pool.cells is not None and bool(pool.cells[slot]))
        pool.words[slot] = (word & giveback.KEPT) | EVER | FREED
        pool.origins[slot] = state.origin_word(event)
    else:
        index, fine = pool.locate(slots)
        if not fine:
            return False
        words = pool.tenancy[index]
        if np.count_nonzero((words & (PLAIN | HOLDER_MASK)) != expected):
            return False
        _unmap(state, event, pool, slots, pool.cells is not None and bool(np.count_nonzero(pool.cells[index])))
        pool.tenancy[index] = (words & giveback.KEPT) | (EVER | FREED)
        pool.origin[index] = state.origin_word(event)
    pool.free += count
    holder.count(pool.number, -count)
    if pool.kind == "row":
        giveback.bury_rows(state, pool, slots)
    if holder.ended_at >= 0:
        state.holders.retire(holder)
    return True


def _free_pages(state: State, event: Free, pool: PoolShadow, slots: Slots) -> bool:
    """As `_free_plain`, for distinct whole pages, or one page of which one slot is named."""
    holder = state.owner(event.owner)
    if holder is None or not pool.exist(slots):
        return False
    pages: Slots | None = slots // pool.page if slots.size == 1 else pool.whole_pages(slots)
    if pages is None:
        return False
    block = pool.by_page[pages]
    if np.count_nonzero((block & (PLAIN | HOLDER_MASK)) != (HELD | holder.bits)):
        return False
    leaving = slots if slots.size > 1 else pool.slots_of(pages)
    _unmap(state, event, pool, leaving, pool.cells is not None and bool(np.count_nonzero(pool.cells[leaving])))
    pool.by_page[pages] = (block & giveback.KEPT) | EVER
    pool.tenancy[slots] |= FREED
    pool.origin.reshape(-1, pool.page)[pages] = state.origin_word(event)
    pool.free += leaving.size
    holder.count(pool.number, -leaving.size)
    if holder.ended_at >= 0:
        state.holders.retire(holder)
    return True


def _unmap(state: State, event: Free, pool: PoolShadow, slots: Slots, mapped: bool) -> None:
    if mapped or state.batches.loose:
        state.report(event, giveback.unmapped(state, pool, slots))


def _judge_free(state: State, event: Free, pool: PoolShadow, slots: Slots) -> None:
    """Every rule about a free, by masks over the slots named; then what is held is given back, with its pages."""
    holder = state.owner(event.owner)
    exists = (slots >= 0) & (slots < pool.size)
    usable = np.where(exists, slots, 0)
    words = pool.tenancy[usable]
    first = np.zeros(slots.size, np.bool_)
    first[np.unique(slots, return_index=True)[1]] = True
    valid = exists & ((words & RESERVED) == 0) & ((words & EVER) != 0)
    held = exists & ((words & HELD) != 0)
    forgiven = _forgiven(state, event, pool, usable, valid & ~held)
    violations = []
    if not valid.all():
        violations.append(Violation("invalid_free", pool, slots[~valid]))
    again = valid & ~held & ~forgiven
    twice = valid & ~first & ~again & ~forgiven
    if event.group is not None and event.dedup:
        twice[:] = False
    same = (again & ((words & FREED) != 0)) | twice
    if same.any():
        violations.append(Violation("double_free", pool, np.unique(slots[same])))
    others = again & ~same
    if others.any():
        kind = "page_double_free" if pool.page > 1 else "double_free"
        violations.append(Violation(kind, pool, slots[others]))
    mine = held & valid
    ending = mine & shares(holder, pool, usable) if pool.sharers is not None else np.zeros(slots.size, np.bool_)
    if holder is not None:
        known = (words & HOLDER_MASK) != 0
        wrong = mine & known & ((words & HOLDER_MASK) != holder.bits) & ~ending
        if wrong.any():
            violations.append(Violation("free_not_owner", pool, np.unique(slots[wrong])))
    named = np.unique(slots[held & ~ending])
    leaving = named
    if pool.page > 1 and named.size:
        members = pool.slots_of(pool.pages_of(named))
        leaving = members[(pool.tenancy[members] & HELD) != 0]
    if leaving.size:
        violations += giveback.in_flight(state, pool, leaving)
        violations += giveback.unmapped(state, pool, leaving)
    state.report(event, violations)
    if forgiven.any():
        pool.tenancy[slots[forgiven]] |= FREED
    if holder is not None and ending.any():
        end_shares(holder, pool, np.unique(slots[ending]))
    if leaving.size:
        giveback.release(state, event, pool, leaving, named, pending=event.group is not None)
        if event.group is not None:
            state.groups.setdefault(event.group, []).append((pool, leaving))


def _forgiven(state: State, event: Free, pool: PoolShadow, slots: Slots, gone: Mask) -> Mask:
    """Slots named again in a group that folds duplicates: pending in that very group."""
    result = np.zeros(slots.size, np.bool_)
    if event.dedup and event.group is not None and gone.any():
        for other, members in state.groups.get(event.group, ()):
            if other is pool:
                result |= pool.among(slots, members)
        result &= gone & ((pool.tenancy[slots] & PENDING) != 0)
    return result


def flush(state: State, event: Flush) -> None:
    """Carries out what was freed in the group."""
    for pool, slots in state.groups.pop(event.group, ()):
        waiting = slots[(pool.tenancy[slots] & PENDING) != 0]
        pool.tenancy[waiting] &= ~PENDING
        pool.pending -= int(waiting.size)
        pool.free += int(waiting.size)


def map_set(state: State, event: MapSet) -> None:
    """Entries of a secondary map."""
    state.maps.setdefault(event.map, {}).update(zip(event.key.tolist(), event.val.tolist(), strict=True))


def map_clear(state: State, event: MapClear) -> None:
    """Entries of a secondary map go."""
    entries = state.maps.get(event.map)
    if entries is not None:
        for key in event.key.tolist():
            entries.pop(key, None)
