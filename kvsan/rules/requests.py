"""The lives of requests, what is left when they end, and what the engine's records and totals claim."""

from __future__ import annotations

import numpy as np

from ..encoding import HELD, HOLDER_MASK, PENDING, RESERVED
from ..events import Count, Event, Idle, KvRecord, ReqAbort, ReqEnd, ReqFinish, ReqRetract, ReqStart, Slots, Step
from ..holders import Holder
from ..nodes import Node
from ..shadow import PoolShadow
from ..state import State
from ..verdicts import Violation
from .ownership import revive
from .shares import end_shares


def req_start(state: State, event: ReqStart) -> None:
    """The request enters the engine."""
    if event.owner is not None:
        holder = state.holders.get(event.owner)
        revive(state, holder)
        holder.state = "live"


def req_finish(state: State, event: ReqFinish) -> None:
    """The request is over; its releases follow."""
    _over(state, event, "finished")


def req_abort(state: State, event: ReqAbort) -> None:
    """The request is over by abort; its releases follow."""
    _over(state, event, "aborted")


def req_retract(state: State, event: ReqRetract) -> None:
    """The engine takes back what the request holds; it lives again from its next alloc."""
    _over(state, event, "retracted")


def _over(state: State, event: Event, how: str) -> None:
    if event.owner is not None:
        holder = state.holders.get(event.owner)
        holder.state = how
        holder.over_at = event.at


def req_end(state: State, event: ReqEnd) -> None:
    """`leak`, `lock_leak`: at its end an owner holds nothing and has unlocked what it locked."""
    if event.owner is None:
        return
    holder = state.holders.get(event.owner)
    violations = []
    if holder.held:
        violations.append(_leak(state, holder))
    locked = state.nodes.locked_by(holder.name)
    violations += [_lock_leak(node, holder.name) for node in locked]
    state.report(event, violations)
    for node in locked:
        node.forgive(holder.name)
    for number in list(holder.shares):
        end_shares(holder, state.by_number[number])
    holder.shares.clear()
    holder.record = None
    holder.over_at = event.at
    holder.ended_at = event.at
    holder.state = "ended"
    state.verdicts.end_of(holder.name)
    state.holders.retire(holder)


def _leak(state: State, holder: Holder) -> Violation:
    held = [(state.by_number[number], slots_held(state.by_number[number], holder)) for number in sorted(holder.held)]
    how = "finish" if holder.state == "finished" else holder.state.removesuffix("ed")
    return Violation("leak", held[0][0], held[0][1], owner=holder.name, held=held[1:], detail={"ended": how})


def slots_held(pool: PoolShadow, holder: Holder | None) -> Slots:
    """The slots that the holder (None: nobody known) holds: a scan of the pool, for reports only."""
    wanted = HELD | (holder.bits if holder is not None else 0)
    slots: Slots = np.flatnonzero((pool.tenancy & (HELD | HOLDER_MASK | RESERVED)) == wanted)
    return slots


def _lock_leak(node: Node, owner: str | None) -> Violation:
    return Violation("lock_leak", node=node.name, owner=owner, earlier=node.locked_at.get(owner))


def step(state: State, event: Step) -> None:
    """One scheduler iteration ends."""
    state.history.step += 1


def idle(state: State, event: Idle) -> None:
    """`leak`, `lock_leak`: while the engine has nothing to do, only sessions and the cache hold anything."""
    for violations in idle_violations(state):
        state.report(event, violations)
    for node in state.nodes.all():
        for owner in [who for who in node.locks if not _may_hold(who)]:
            node.forgive(owner)


def idle_violations(state: State) -> list[list[Violation]]:
    """What an idle engine should not hold, one list for each cause."""
    causes = []
    known: dict[int, int] = {}
    for holder in state.holders.all():
        for number, count in holder.held.items():
            known[number] = known.get(number, 0) + count
        if holder.held and holder.state != "ended" and not holder.is_session and not holder.is_node:
            causes.append([_leak(state, holder)])
    for pool in state.by_number:
        if pool.held > known.get(pool.number, 0):
            causes.append([Violation("leak", pool, slots_held(pool, None), detail={"ended": "no owner"})])
        if pool.pending:
            waiting = np.flatnonzero((pool.tenancy & PENDING) != 0)
            causes.append([Violation("leak", pool, waiting, detail={"ended": "pending"})])
    for node in state.nodes.all():
        owners = [who for who in node.locks if not _may_hold(who) and node.unpaid(who)]
        if owners and node.lock_count > 0:
            causes.append([_lock_leak(node, owners[0])])
    return causes


def _may_hold(owner: str | None) -> bool:
    return owner is not None and owner.startswith(("session:", "tree:"))


def kv_record(state: State, event: KvRecord) -> None:
    """`record_contract`: the engine's own record agrees with itself and with the cells that its row maps."""
    if event.owner is None:
        return
    holder = state.holders.get(event.owner)
    wrong = {}
    if event.committed > event.allocated:
        wrong["committed"] = f"{event.committed} > allocated {event.allocated}"
    if event.protected > event.allocated:
        wrong["protected"] = f"{event.protected} > allocated {event.allocated}"
    table: PoolShadow | None = None
    if event.row is None:
        if event.allocated != 0:
            wrong["allocated"] = f"{event.allocated} without a row"
    else:
        table = _record_table(state, event, holder)
        if table is not None and state.watch_slots:
            mapped = _mapped_cells(state, table, event.row) + event.evicted
            row = state.table(table).find(event.row)
            page = row.into.page if row is not None and row.into is not None else 1
            if event.allocated > -(-mapped // page) * page:
                wrong["allocated"] = f"{event.allocated} > {mapped} cells that row {event.row} maps"
    if wrong:
        rows = np.array([event.row] if event.row is not None else [], np.int64)
        state.report(event, [Violation("record_contract", table, rows, owner=event.owner, detail=wrong)])
    holder.record = event


def _record_table(state: State, event: KvRecord, holder: Holder) -> PoolShadow | None:
    """The row pool that the record speaks of: the one it names, else one in which its owner holds a row, else the
    first."""
    if event.pool is not None:
        return state.pool(event.pool)
    tables = [state.pools[name] for name in state.tables]
    for table in tables:
        if table.number in holder.held:
            return table
    return tables[0] if tables else None


def _mapped_cells(state: State, table: PoolShadow, number: int) -> int:
    row = state.table(table).find(number)
    if row is None or row.into is None:
        return 0
    if row.verify(0, row.length):
        return row.length
    return int(row.live(0, row.length).size)


def count(state: State, event: Count) -> None:
    """`count_mismatch`: the engine's totals agree with each other and with the shadow."""
    pool = state.pool(event.pool)
    if not state.watched(pool):
        return
    sessions = sum(holder.held.get(pool.number, 0) for holder in state.holders.all() if holder.is_session)
    wrong: dict[str, tuple[int, int]] = {}
    if event.available is not None and event.available != pool.free:
        wrong["available"] = (event.available, pool.free)
    if event.evictable is not None or event.protected is not None:
        cached = (event.evictable or 0) + (event.protected or 0)
        if (
            event.evictable is not None and event.protected is not None and cached != pool.cached
        ) or cached > pool.cached:
            wrong["evictable + protected"] = (cached, pool.cached)
    if event.session is not None and event.session != sessions:
        wrong["session"] = (event.session, sessions)
    if event.total is not None and event.total != pool.size - pool.reserved:
        wrong["total"] = (event.total, pool.size - pool.reserved)
    if not wrong:
        pool.adrift = None
    drift = tuple(claimed - right for claimed, right in wrong.values())
    if wrong and drift != pool.drift:
        detail = {name: f"{claimed}, should be {right}" for name, (claimed, right) in wrong.items()}
        state.report(event, [Violation("count_mismatch", pool, detail=detail)])
    pool.drift = drift or None
