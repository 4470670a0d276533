"""Pools and who holds their slots: own, give, reuse, reset."""

from __future__ import annotations

import numpy as np

from ..encoding import (
    HELD,
    HOLDER_MASK,
    NAMED,
    NODE,
    PENDING,
    RESERVED,
)
from ..events import Give, Own, Pool, Reset, Reuse, Slots
from ..holders import Holder
from ..shadow import PoolShadow
from ..state import State
from ..verdicts import Violation
from . import giveback
from .nodeslots import note
from .shares import add_shares, end_shares, shares


def declare(state: State, event: Pool) -> None:
    """A pool begins."""
    state.add_pool(event)


def revive(state: State, holder: Holder) -> None:
    """An alloc or own makes the holder live (again); its record no longer says what it holds."""
    holder.record = None
    holder.ended_at = -1
    if holder.state in ("ended", "retracted"):
        holder.state = "live"


def name_slots(pool: PoolShadow, slots: Slots, holder: Holder) -> None:
    """Gives an owner to held slots without one."""
    if slots.size:
        pool.tenancy[slots] |= holder.bits
        holder.count(pool.number, int(slots.size))


def with_rest(pool: PoolShadow, slots: Slots) -> Slots:
    """The slots and the unnamed rest of their pages, which goes along with them (held ones only); each once."""
    if pool.page == 1:
        return slots
    members = pool.slots_of(pool.pages_of(slots))
    rest = members[(pool.tenancy[members] & (HELD | NAMED)) == HELD]
    return np.union1d(slots, rest)


def own(state: State, event: Own) -> None:
    """Names the owner of slots allocated without one."""
    pool = state.pool(event.pool)
    if not state.watched(pool) or event.owner is None:
        return
    pool.events += 1
    holder = state.holders.get(event.owner)
    revive(state, holder)
    if event.slots.size == 1 and pool.kind != "row" and own_one(pool, int(event.slots[0]), holder):
        return
    if pool.page == 1 and pool.kind != "row" and event.slots.size:
        index, fine = pool.locate(event.slots)
        if fine and not np.count_nonzero((pool.tenancy[index] & (HELD | HOLDER_MASK)) != HELD):
            pool.tenancy[index] |= holder.bits
            holder.count(pool.number, event.slots.size)
            return
    slots = with_rest(pool, pool.existing(event.slots))
    words = pool.tenancy[slots]
    nobodys = np.unique(slots[((words & HELD) != 0) & ((words & HOLDER_MASK) == 0)])
    name_slots(pool, nobodys, holder)
    if pool.kind == "row":
        _move_mappings(state, pool, nobodys, holder)


def own_one(pool: PoolShadow, slot: int, holder: Holder) -> bool:
    """The decode step in few steps: one slot that nobody has, or one more of a page that is the holder's already."""
    if not 0 <= slot < pool.size:
        return False
    word = pool.words[slot]
    if pool.page > 1:
        block = pool.by_page[slot // pool.page]
        return word & HOLDER_MASK == holder.bits and not np.count_nonzero((block & (HELD | HOLDER_MASK)) == HELD)
    if word & HELD and not word & HOLDER_MASK:
        pool.words[slot] = word | holder.bits
        holder.count(pool.number, 1)
    return True


def give(state: State, event: Give) -> None:
    """`free_not_owner`; the slots pass to another owner, tenancy and history stay."""
    pool = state.pool(event.pool)
    if not state.watched(pool):
        return
    pool.events += 1
    giver = state.owner(event.owner)
    taker = state.holders.get(event.to)
    slots = np.unique(pool.existing(event.slots))
    words = pool.tenancy[slots]
    held = (words & HELD) != 0
    shared = shares(giver, pool, slots)
    violations = []
    if giver is not None:
        known = ~held | ((words & HOLDER_MASK) != 0)
        wrong = known & (~held | ((words & HOLDER_MASK) != giver.bits)) & ~shared
        missing = event.slots[(event.slots < 0) | (event.slots >= pool.size)]
        bad = np.concatenate([slots[wrong], missing])
        if bad.size:
            violations.append(Violation("free_not_owner", pool, bad))
    state.report(event, violations)
    if giver is not None and shared.any():
        end_shares(giver, pool, slots[shared])
        add_shares(pool, taker, slots[shared])
    moving = with_rest(pool, slots[held & ~shared])
    move(state, pool, moving, taker)


def move(state: State, pool: PoolShadow, slots: Slots, taker: Holder) -> None:
    """Held slots change their holder; the tenancy goes on."""
    if not slots.size:
        return
    words = pool.tenancy[slots]
    giveback.count_out(state, pool, words)
    new = (words & ~(HOLDER_MASK | NODE)) | taker.bits
    if taker.is_node:
        new |= NODE
        pool.cached += int(slots.size)
        note(pool, state.node_of(taker), slots)
    pool.tenancy[slots] = new
    taker.count(pool.number, int(slots.size))
    if pool.kind == "row":
        _move_mappings(state, pool, slots, taker)


def _move_mappings(state: State, pool: PoolShadow, rows: Slots, taker: Holder) -> None:
    table = state.table(pool)
    for number in rows.tolist():
        row = table.find(number)
        if row is not None and row.into is not None and row.into.mapper is not None:
            row.into.mapper[row.slots[row.live(0, row.length)]] = taker.number
            state.batches.move(row, taker.number)
            row.mapper, row.sound = taker, 0


def reuse(state: State, event: Reuse) -> None:
    """`stale_row`: who continues on slots still holds them, and its record, where one was seen, has KV allocated."""
    pool = state.pool(event.pool)
    if not state.watched(pool) or not event.slots.size:
        return
    pool.events += 1
    holder = state.owner(event.owner)
    slots = pool.existing(event.slots)
    words = pool.tenancy[slots]
    stale = (words & HELD) == 0
    if holder is not None:
        stale |= ((words & HOLDER_MASK) != holder.bits) & ((words & HOLDER_MASK) != 0) & ~shares(holder, pool, slots)
        if holder.record is not None and holder.record.allocated == 0:
            stale[:] = True
    stale &= (words & RESERVED) == 0
    missing = event.slots[(event.slots < 0) | (event.slots >= pool.size)]
    bad = np.concatenate([slots[stale], missing])
    if bad.size:
        detail = {}
        if holder is not None and holder.record is not None and holder.record.allocated == 0:
            detail["record"] = "allocated 0"
        state.report(event, [Violation("stale_row", pool, bad, detail=detail)])


def reset(state: State, event: Reset) -> None:
    """Everything in the pool is free again."""
    pool = state.pool(event.pool)
    if not state.watched(pool):
        return
    pool.events += 1
    held = np.flatnonzero((pool.tenancy & HELD) != 0)
    state.batches.forget(pool)
    if held.size:
        giveback.unmapped(state, pool, held)
        giveback.release(state, event, pool, held, held)
    pending = np.flatnonzero((pool.tenancy & PENDING) != 0)
    pool.tenancy[pending] &= ~PENDING
    pool.free += int(pending.size)
    pool.pending = 0
    pool.blamed.clear()
    pool.doubled.clear()
    pool.drift = None
    for node in state.nodes.all():
        if node.slots.pop(pool.number, None) is not None and not node.slots:
            node.locks.clear()
            node.spare = 0
            state.nodes.drop(node)
            state.holders.retire(node.holder)
    for holder in state.holders.all():
        holder.shares.pop(pool.number, None)
