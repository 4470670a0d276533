"""Who holds what at one moment, as values: what `kvsan status` and `check_memory` tell."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tracker import Tracker

UNSETTLED = ("ended", "finished", "aborted")
"""States in which an owner should soon hold nothing."""


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """One pool, in slots. `owned` is neither free nor pending nor cached; of it, `unknown` belongs to nobody known."""

    pool: str
    kind: str
    size: int
    page: int
    reserved: int
    free: int
    pending: int
    owned: int
    cached: int
    unknown: int


@dataclass(frozen=True, slots=True)
class OwnerCounts:
    """One owner: `slots` by pool, and the number of cache nodes that it has locked. `state`: live, finished, aborted,
    retracted or ended."""

    name: str
    state: str
    slots: dict[str, int] = field(default_factory=dict)
    locked: int = 0


@dataclass(frozen=True, slots=True)
class Holdings:
    """Every pool, and every owner that holds something of one or a lock: first those that should be gone, then those
    that hold most. `batches` counts those whose end the host has not seen; `findings` counts by kind what was found so
    far, each time that it was met."""

    pools: tuple[PoolCounts, ...] = ()
    owners: tuple[OwnerCounts, ...] = ()
    batches: int = 0
    findings: dict[str, int] = field(default_factory=dict)


def holdings_of(tracker: Tracker) -> Holdings:
    """What the tracker knows now. Goes through the holders, cache nodes among them, but through no pool."""
    state = tracker.state
    names = [pool.name for pool in state.by_number]
    locked = state.nodes.lockers()
    known: Counter[int] = Counter()
    owners: list[OwnerCounts] = []
    for holder in state.holders.all():
        if holder.is_node:
            continue
        mine = locked.pop(holder.name, 0)
        if holder.held or mine:
            known.update(holder.held)
            slots = {names[number]: count for number, count in holder.held.items()}
            owners.append(OwnerCounts(holder.name, holder.state, slots, mine))
    owners += [OwnerCounts(name, "live", locked=count) for name, count in locked.items()]
    owners.sort(key=lambda owner: (owner.state not in UNSETTLED, -sum(owner.slots.values()), -owner.locked))
    pools = []
    for pool in state.by_number:
        owned = pool.held - pool.cached
        pools.append(
            PoolCounts(
                pool=pool.name, kind=pool.kind, size=pool.size, page=pool.page, reserved=pool.reserved, free=pool.free,
                pending=pool.pending, owned=owned, cached=pool.cached, unknown=owned - known[pool.number],
            )
        )  # fmt: skip
    findings: Counter[str] = Counter()
    for kinds in state.verdicts.counts.values():
        findings.update(kinds)
    return Holdings(tuple(pools), tuple(owners), len(state.batches), dict(findings))
