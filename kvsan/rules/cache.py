"""The prefix cache: insert, attach, evict, split, match, and the locks on its nodes."""

from __future__ import annotations

import numpy as np

from ..encoding import EVER, FREED, HELD, HOLDER_MASK, HOLDER_SHIFT, NODE, RESERVED
from ..events import Attach, CacheInsert, Event, Evict, Lock, Match, Slots, Split, Unlock
from ..nodes import Node
from ..shadow import PoolShadow
from ..state import State
from ..verdicts import Violation
from . import giveback
from .nodeslots import held_by, refresh
from .ownership import move, with_rest
from .shares import add_shares, shares


def insert(state: State, event: CacheInsert) -> None:
    """`alias`, `use_after_free`, `free_not_owner`; the slots pass to the node."""
    pool = state.pool(event.pool)
    if not state.watched(pool):
        return
    pool.events += 1
    fresh = state.nodes.find(event.node) is None
    node = state.node(event.node)
    if fresh:
        state.verdicts.new_node(event.node)
    if event.ns is not None or fresh or not node.slots:
        node.ns = event.ns
    if event.parent is not None:
        node.hang_under(state.node(event.parent))
    node.inserted.add(pool.number)
    node.inserted_at = event.at
    giver = state.owner(event.owner)
    if giver is not None and pool.page == 1 and _holds_all(pool, event.slots, HELD | giver.bits):
        move(state, pool, np.sort(event.slots), node.holder)
        return
    slots = pool.existing(event.slots)
    words = pool.tenancy[slots]
    held = (words & HELD) != 0
    elsewhere = held & ((words & NODE) != 0) & ((words & HOLDER_MASK) != node.holder.bits)
    violations = []
    if elsewhere.any():
        other = state.holders.of(int((words[elsewhere][0] & HOLDER_MASK) >> HOLDER_SHIFT))
        first = state.nodes.find(other.name.removeprefix("tree:")) if other is not None else None
        violations.append(
            Violation(
                "alias", pool, slots[elsewhere],
                earlier=first.inserted_at if first is not None and first.inserted_at >= 0 else None,
                detail={"stands_under": first.name if first is not None else "(unknown)"},
            )
        )  # fmt: skip
    missing = event.slots[(event.slots < 0) | (event.slots >= pool.size)]
    lost = np.concatenate([slots[~held & ((words & RESERVED) == 0)], missing])
    if lost.size:
        violations.append(Violation("use_after_free", pool, lost))
    if giver is not None:
        known = held & ((words & HOLDER_MASK) != 0) & ~elsewhere
        wrong = known & ((words & HOLDER_MASK) != giver.bits) & ~shares(giver, pool, slots)
        if wrong.any():
            violations.append(Violation("free_not_owner", pool, slots[wrong]))
    state.report(event, violations)
    joining = np.unique(slots[held & ((words & HOLDER_MASK) != node.holder.bits)])
    move(state, pool, with_rest(pool, joining) if joining.size else joining, node.holder)


def _holds_all(pool: PoolShadow, slots: Slots, held: int) -> bool:
    """The common case in few steps: are these distinct slots that all exist, and are all held like this, by no node but
    that which `held` may name?"""
    if not slots.size:
        return False
    index, fine = pool.locate(slots)
    return fine and not np.count_nonzero((pool.tenancy[index] & (HELD | NODE | HOLDER_MASK)) != held)


def attach(state: State, event: Attach) -> None:
    """`use_after_free` unless the node, or one split from it, holds the slots; the owner becomes a sharer."""
    pool = state.pool(event.pool)
    if not state.watched(pool):
        return
    pool.events += 1
    node = state.nodes.find(event.node)
    first = pool.words[int(event.slots[0])] if event.slots.size and 0 <= event.slots[0] < pool.size else 0
    if (
        node is not None
        and _holds_all(pool, event.slots, HELD | NODE | (first & HOLDER_MASK))
        and _stems_from(state, (first & HOLDER_MASK) >> HOLDER_SHIFT, node)
    ):
        if event.owner is not None:
            holder = state.holders.get(event.owner)
            used = holder.shares.get(pool.number)
            add_shares(pool, holder, event.slots[~shares(holder, pool, event.slots)] if used else event.slots)
        return
    slots = np.unique(pool.existing(event.slots))
    words = pool.tenancy[slots]
    fine = np.zeros(slots.size, np.bool_)
    for number in np.unique((words & HOLDER_MASK) >> HOLDER_SHIFT).tolist():
        if node is not None and _stems_from(state, number, node):
            fine |= ((words & HOLDER_MASK) >> HOLDER_SHIFT) == number
    fine &= (words & HELD) != 0
    lost = np.concatenate([slots[~fine & ((words & RESERVED) == 0)], _missing(pool, event.slots)])
    if lost.size:
        state.report(event, [Violation("use_after_free", pool, lost, detail={"node": event.node})])
    if event.owner is not None:
        holder = state.holders.get(event.owner)
        sharing = slots[fine]
        add_shares(pool, holder, sharing[~shares(holder, pool, sharing)])


def _missing(pool: PoolShadow, slots: Slots) -> Slots:
    return slots[(slots < 0) | (slots >= pool.size)]


def _stems_from(state: State, number: int, node: Node) -> bool:
    """Is the holder this node, or one that was split from it?"""
    holder = state.holders.of(number)
    if holder is None or not holder.is_node:
        return False
    current = state.nodes.find(holder.name.removeprefix("tree:"))
    while current is not None:
        if current is node:
            return True
        current = current.split_from
    return False


def evict(state: State, event: Evict) -> None:
    """`double_free`, `free_not_owner`, `free_in_flight`, `evict_locked`, `stale_capture`; the cache gives slots
    back."""
    if event.node is not None:
        _evict_node(state, event, event.node)
    elif event.pool is not None and event.slots is not None:
        pool = state.pool(event.pool)
        if state.watched(pool):
            _evict_slots(state, event, pool, event.slots)


def _evict_node(state: State, event: Evict, name: str) -> None:
    node = state.nodes.find(name)
    if node is None:
        return
    violations: list[Violation] = []
    leaving = [(pool, slots) for pool in state.by_number if (slots := held_by(pool, node)).size]
    if node.protected:
        violations.append(Violation("evict_locked", node=name, held=list(leaving), earlier=_locked_at(node)))
    for pool, slots in leaving:
        pool.events += 1
        violations += _judge_eviction(state, pool, _page_mates(pool, slots), node=name)
    state.report(event, violations)
    for pool, slots in leaving:
        _give_back(state, event, pool, slots)
    node.slots.clear()
    node.inserted.clear()
    above = node.parent
    node.split_from = None
    state.nodes.drop(node)
    if state.nodes.find(name) is None:
        state.holders.retire(node.holder)
    if above is not None and state.nodes.forget_bare(above):
        state.holders.retire(above.holder)


def _evict_slots(state: State, event: Evict, pool: PoolShadow, named: Slots) -> None:
    pool.events += 1
    slots = pool.existing(named)
    words = pool.tenancy[slots]
    held = (words & HELD) != 0
    first = np.zeros(slots.size, np.bool_)
    first[np.unique(slots, return_index=True)[1]] = True
    violations = []
    valid = ((words & RESERVED) == 0) & ((words & EVER) != 0)
    never = np.concatenate([slots[~valid], _missing(pool, named)])
    if never.size:
        violations.append(Violation("invalid_free", pool, never))
    gone = valid & (~held | ~first)
    same = gone & (((words & FREED) != 0) | ~first)
    if same.any():
        violations.append(Violation("double_free", pool, np.unique(slots[same])))
    if (gone & ~same).any():
        kind = "page_double_free" if pool.page > 1 else "double_free"
        violations.append(Violation(kind, pool, slots[gone & ~same]))
    foreign = valid & held & ((words & NODE) == 0) & ((words & HOLDER_MASK) != 0)
    if foreign.any():
        violations.append(Violation("free_not_owner", pool, slots[foreign]))
    leaving = np.unique(slots[held])
    for number in np.unique((words[held & ~foreign] & HOLDER_MASK) >> HOLDER_SHIFT).tolist():
        holder = state.holders.of(number)
        node = state.nodes.find(holder.name.removeprefix("tree:")) if holder is not None else None
        if node is not None and node.protected:
            its = slots[held & ((words & HOLDER_MASK) == node.holder.bits)]
            violations.append(Violation("evict_locked", pool, its, node=node.name, earlier=_locked_at(node)))
    if leaving.size:
        violations += _judge_eviction(state, pool, _page_mates(pool, leaving), node=None)
    state.report(event, violations)
    _give_back(state, event, pool, leaving)


def _judge_eviction(state: State, pool: PoolShadow, slots: Slots, node: str | None) -> list[Violation]:
    violations = giveback.in_flight(state, pool, slots)
    used = slots[pool.shared(slots)]
    if used.size:
        violations.append(
            Violation("evict_locked", pool, used, node=node, detail={"sharers": _sharers(state, pool, used)})
        )
    return violations + giveback.unmapped(state, pool, slots)


def _sharers(state: State, pool: PoolShadow, slots: Slots) -> str:
    names = [h.name for h in state.holders.all() if pool.number in h.shares and shares(h, pool, slots).any()]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _locked_at(node: Node) -> int | None:
    indices = [at for below in node.subtree() for who, at in below.locked_at.items() if below.locks.get(who)]
    return max(indices, default=None)


def _page_mates(pool: PoolShadow, slots: Slots) -> Slots:
    """The held slots of the pages that these stand on: what is given back with them."""
    if pool.page == 1 or not slots.size:
        return slots
    members = pool.slots_of(pool.pages_of(slots))
    mates: Slots = members[(pool.tenancy[members] & HELD) != 0]
    return mates


def _give_back(state: State, event: Event, pool: PoolShadow, slots: Slots) -> None:
    slots = slots[(pool.tenancy[slots] & HELD) != 0]
    if slots.size:
        giveback.release(state, event, pool, _page_mates(pool, slots), slots)


def split(state: State, event: Split) -> None:
    """The child takes slots over and stands between the node and its parent."""
    node = state.node(event.node)
    fresh = state.nodes.find(event.child) is None
    child = state.node(event.child)
    if child is node:
        return
    if fresh:
        state.verdicts.new_node(event.child)
        child.ns = node.ns
        child.split_from = node
    child.inserted |= node.inserted
    child.hang_under(node.parent)
    node.hang_under(child)
    for pool in _split_pools(state, event, node):
        slots = pool.existing(event.slots)
        theirs = np.unique(slots[pool.among(slots, held_by(pool, node))]) if slots.size else slots
        if theirs.size:
            pool.events += 1
            move(state, pool, with_rest(pool, theirs), child.holder)
            refresh(pool, node)


def _split_pools(state: State, event: Split, node: Node) -> list[PoolShadow]:
    """The pools that the event speaks of: the one it names; else those that inserts named, token slots before
    others."""
    if event.pool is not None:
        return [state.pool(event.pool)]
    holding = [pool for pool in state.by_number if held_by(pool, node).size]
    inserted = [pool for pool in holding if pool.number in node.inserted] or holding
    return [pool for pool in inserted if pool.kind == "kv"] or inserted


def match(state: State, event: Match) -> None:
    """`namespace_mixup`: a match stays in the key domain that inserted the node."""
    node = state.nodes.find(event.node)
    if node is not None and node.inserted and node.ns != event.ns:
        detail = {"inserted": node.ns or "(none)", "matched": event.ns or "(none)"}
        earlier = node.inserted_at if node.inserted_at >= 0 else None
        violation = Violation("namespace_mixup", node=event.node, owner=event.owner, earlier=earlier, detail=detail)
        state.report(event, [violation])


def lock(state: State, event: Lock) -> None:
    """One more lock."""
    if event.owner is not None:
        state.holders.get(event.owner)
    state.nodes.lock(state.node(event.node), event.owner, event.at)


def unlock(state: State, event: Unlock) -> None:
    """`lock_underflow`: unlocks do not outnumber locks."""
    node = state.nodes.find(event.node)
    if node is None or not state.nodes.unlock(node, event.owner):
        state.report(event, [Violation("lock_underflow", node=event.node, owner=event.owner)])
    if node is not None and state.nodes.forget_bare(node):
        state.holders.retire(node.holder)
