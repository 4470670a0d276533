"""Slots handed out: a new tenancy of single slots, or of pages of several slots."""

from __future__ import annotations

import numpy as np

from ..encoding import (
    EVER,
    GENERATION_MASK,
    GENERATION_ONE,
    HELD,
    HOLDER_MASK,
    LEASED,
    NAMED,
    NODE,
    PENDING,
    RESERVED,
    WORD_MASK,
)
from ..events import Alloc, Event, Slots
from ..holders import Holder
from ..shadow import PoolShadow
from ..state import State
from ..verdicts import Violation
from . import giveback
from .nodeslots import note
from .ownership import name_slots, revive

BUSY = HELD | PENDING | RESERVED
FEW = 16
ACROSS = GENERATION_MASK | LEASED | RESERVED
"""What of a free slot's word goes on in its next tenancy."""


def alloc(state: State, event: Alloc) -> None:
    """`reserved_slot`, `double_alloc`; a new tenancy of what was free."""
    pool = state.pool(event.pool)
    if not state.watched(pool) or not event.slots.size:
        return
    pool.events += 1
    holder = state.owner(event.owner)
    flags = HELD | EVER | NAMED
    if holder is not None:
        if holder.record is not None or holder.state != "live":
            revive(state, holder)
        flags |= holder.bits
        if holder.is_node:
            flags |= NODE
            note(pool, state.node_of(holder), event.slots)
    if pool.page > 1:
        _alloc_pages(state, event, pool, holder, flags)
        return
    slots = event.slots
    if slots.size <= FEW:
        if _alloc_few(state, event, pool, slots.tolist(), flags):
            _count_in(pool, holder, slots.size)
            return
    else:
        index, fine = pool.locate(slots)
        if fine:
            words = pool.tenancy[index]
            if not np.count_nonzero(words & BUSY):
                pool.tenancy[index] = _next_tenancy(words, flags)
                pool.origin[index] = state.origin_word(event)
                _count_in(pool, holder, slots.size)
                if pool.blamed:
                    state.verdicts.new_tenancy(pool, slots)
                return
    _judge_alloc(state, event, pool, holder, flags)


def _alloc_few(state: State, event: Alloc, pool: PoolShadow, slots: list[int], flags: int) -> bool:
    """Begins a tenancy of each slot, if all of them are free and no two are one. A few are done faster one by one than
    in arrays."""
    words = pool.words
    for slot in slots:
        if not 0 <= slot < pool.size or words[slot] & BUSY:
            return False
    if len(slots) > 1 and len(set(slots)) < len(slots):
        return False
    origins, origin = pool.origins, state.origin_word(event)
    for slot in slots:
        word = words[slot]
        words[slot] = ((word & GENERATION_MASK) + GENERATION_ONE & WORD_MASK) | (word & LEASED) | flags
        origins[slot] = origin
        if pool.blamed:
            pool.blamed.pop(slot, None)
    return True


def _next_tenancy(words: Slots, flags: int) -> Slots:
    new = (words & ACROSS) + GENERATION_ONE
    new &= WORD_MASK
    new |= flags
    return new


def _count_in(pool: PoolShadow, holder: Holder | None, count: int, was_free: int | None = None) -> None:
    pool.free -= count if was_free is None else was_free
    if holder is not None:
        holder.count(pool.number, count)
        if holder.is_node:
            pool.cached += count


def _judge_alloc(state: State, event: Alloc, pool: PoolShadow, holder: Holder | None, flags: int) -> None:
    """The slow way, for slots of single pages: what is wrong with which slot; then the engine's view is taken."""
    slots = event.slots
    exists = (slots >= 0) & (slots < pool.size)
    first = np.zeros(slots.size, np.bool_)
    first[np.unique(slots, return_index=True)[1]] = True
    words = pool.tenancy[np.where(exists, slots, 0)]
    reserved = exists & ((words & RESERVED) != 0)
    busy = ~exists | ~first | ((words & (HELD | PENDING)) != 0)
    violations = []
    if reserved.any():
        violations.append(Violation("reserved_slot", pool, slots[reserved]))
    bad = busy & ~reserved
    if bad.any():
        violations.append(Violation("double_alloc", pool, slots[bad]))
    state.report(event, violations)
    taken = slots[exists & first]
    _take_over(state, event, pool, taken, holder, flags)
    good = slots[exists & first & ~reserved & ~busy]
    if pool.blamed and good.size:
        state.verdicts.new_tenancy(pool, good)


def _take_over(state: State, event: Event, pool: PoolShadow, slots: Slots, holder: Holder | None, flags: int) -> None:
    """A new tenancy for the holder, whoever held the slots before."""
    if not slots.size:
        return
    words = pool.tenancy[slots]
    held = (words & HELD) != 0
    pending = (words & PENDING) != 0
    was_free = int(np.count_nonzero(~held & ~pending & ((words & RESERVED) == 0)))
    if held.any():
        giveback.count_out(state, pool, words[held])
        giveback.unmapped(state, pool, slots[held])
        if pool.sharers is not None:
            pool.sharers[slots[held]] = 0
    pool.pending -= int(np.count_nonzero(pending))
    if pool.kind == "row":
        giveback.bury_rows(state, pool, slots)
    pool.tenancy[slots] = _next_tenancy(words, flags)
    pool.origin[slots] = state.origin_word(event)
    _count_in(pool, holder, int(slots.size), was_free)


def _alloc_pages(state: State, event: Alloc, pool: PoolShadow, holder: Holder | None, flags: int) -> None:
    """Pages larger than one slot: fresh pages begin a tenancy whole, further slots of a page continue it."""
    slots = event.slots
    pages = pool.whole_pages(slots) if slots.size >= pool.page else None
    if pages is not None and pages.size and int(pages[0]) >= 0 and pool.exist(slots):
        block = pool.by_page[pages]
        if not np.count_nonzero(block & BUSY):
            pool.by_page[pages] = _next_tenancy(block, flags)
            pool.origin.reshape(-1, pool.page)[pages] = state.origin_word(event)
            _count_in(pool, holder, int(block.size))
            if pool.blamed:
                state.verdicts.new_tenancy(pool, pages)
            return
    if slots.size == 1 and holder is not None and 0 <= (slot := int(slots[0])) < pool.size:
        word = pool.words[slot]  # a decode step: one further slot of the owner's last page, or the first of a new one
        if word & (HELD | NAMED | RESERVED) == HELD and word & HOLDER_MASK == holder.bits:
            pool.words[slot] = word | NAMED
            return
        number = slot // pool.page
        block = pool.by_page[number]
        if not np.count_nonzero(block & BUSY):
            block[:] = _next_tenancy(block, flags & ~NAMED)
            pool.words[slot] |= NAMED
            pool.origin[number * pool.page : (number + 1) * pool.page] = state.origin_word(event)
            _count_in(pool, holder, pool.page)
            if pool.blamed:
                state.verdicts.goes_on(pool, event.slots)
                pool.blamed.pop(number, None)
            return
    exists = (slots >= 0) & (slots < pool.size)
    first = np.zeros(slots.size, np.bool_)
    first[np.unique(slots, return_index=True)[1]] = True
    usable = np.where(exists, slots, 0)
    words = pool.tenancy[usable]
    reserved = exists & ((words & RESERVED) != 0)
    page_of = usable // pool.page
    block = pool.by_page[page_of]
    fresh = exists & ~((block & (HELD | PENDING)) != 0).any(axis=1)
    continues = exists & first & ((words & (HELD | NAMED)) == HELD)
    if holder is not None:
        here = (block & HELD) != 0
        theirs = (block & HOLDER_MASK) == holder.bits
        unknown = (words & HOLDER_MASK) == 0
        continues &= ((here & theirs).any(axis=1)) | unknown
    violations = []
    if reserved.any():
        violations.append(Violation("reserved_slot", pool, slots[reserved]))
    bad = ~reserved & ~(continues | (fresh & first))
    if bad.any():
        violations.append(Violation("double_alloc", pool, slots[bad]))
    state.report(event, violations)
    new_pages = np.unique(page_of[fresh])
    seized = np.setdiff1d(np.unique(page_of[exists & bad]), new_pages)
    for whole in (new_pages, seized):
        members = pool.slots_of(whole)
        members = members[(pool.tenancy[members] & RESERVED) == 0]
        _take_over(state, event, pool, members, holder, flags & ~NAMED)
    lone = slots[reserved & first]
    _take_over(state, event, pool, lone, holder, flags)
    if pool.blamed and new_pages.size:
        state.verdicts.goes_on(pool, slots)
        state.verdicts.new_tenancy(pool, np.setdiff1d(new_pages, lone // pool.page))
    named = slots[exists & first]
    if holder is not None:
        unnamed_owner = slots[continues & ((words & HOLDER_MASK) == 0)]
        name_slots(pool, unnamed_owner, holder)
    pool.tenancy[named] |= NAMED
