"""Ranks of one group must hand out and take back the same slots in the same order: where two histories part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import NamedTuple

from .events import OWNERSHIP_OPS, Event, Evict, Slots
from .findings import Access, Finding
from .rules.nodeslots import held_by
from .state import State

SHOWN = 64


class Rank(NamedTuple):
    """One of several processes that must decide alike: which of its group, from 0 on."""

    group: str
    number: int


@dataclass(frozen=True, slots=True)
class Change:
    """One ownership event of one pool: what must be equal on every rank, and where it stands."""

    op: str
    slots: bytes
    owner: str | None
    at: int
    agent: str
    site: str | None
    some: tuple[int, ...]

    def agrees(self, other: Change) -> bool:
        """Same operation on the same slots, for the same owner where both name one."""
        same_owner = self.owner is None or other.owner is None or self.owner == other.owner
        return self.op == other.op and self.slots == other.slots and same_owner


@dataclass(slots=True)
class RankHistory:
    """The ownership events of one rank, by pool. `file` is the trace that they come from."""

    group: str
    rank: int
    file: str
    pools: dict[str, list[Change]] = field(default_factory=dict)

    def before(self, event: Event, state: State) -> None:
        """Notes an event that the tracker is about to take: an eviction names a node, whose slots are known until
        then."""
        if event.op not in OWNERSHIP_OPS:
            return
        if isinstance(event, Evict) and event.node is not None:
            node = state.nodes.find(event.node)
            if node is not None:
                for pool in state.by_number:
                    slots = held_by(pool, node)
                    if slots.size:
                        self._add(pool.name, event, slots.tobytes(), tuple(slots[:SHOWN].tolist()))
            return
        pool_name = getattr(event, "pool", None)
        named: Slots | None = getattr(event, "slots", None)
        if named is None:
            named = getattr(event, "keys", None)
        if pool_name is not None and named is not None:
            self._add(pool_name, event, named.tobytes(), tuple(named[:SHOWN].tolist()))

    def _add(self, pool: str, event: Event, slots: bytes, some: tuple[int, ...]) -> None:
        change = Change(event.op, slots, event.owner, event.at, event.agent, event.site, some)
        self.pools.setdefault(pool, []).append(change)


def compare(histories: Sequence[RankHistory]) -> list[Finding]:
    """`rank_divergence`, at most one for each rank: the first event that differs from the lowest rank's. A group in
    which a rank occurs twice is not compared: those are several runs."""
    findings = []
    for ranks in _groups(histories):
        if _twice(ranks) is not None:
            continue
        lowest = ranks[0]
        for other in ranks[1:]:
            parted = [
                finding
                for pool in sorted(other.pools.keys() | lowest.pools.keys())
                if (finding := _parting(pool, lowest, other)) is not None
            ]
            findings += sorted(parted, key=lambda finding: finding.at)[:1]
    return findings


def comparison_notes(histories: Sequence[RankHistory]) -> tuple[str, ...]:
    """What to know of such a comparison, in words: who was compared, for silence means something only then."""
    notes = []
    for ranks in _groups(histories):
        lowest, named = ranks[0], ", ".join(str(each.rank) for each in ranks)
        if (number := _twice(ranks)) is not None:
            files = ", ".join(each.file for each in ranks if each.rank == number)
            notes.append(
                f"the ranks of {lowest.group} were not compared, since rank {number} is there more than once: give the "
                f"traces of one run ({files})"
            )
        elif len(ranks) == 1:
            notes.append(f"rank {named} of {lowest.group} was compared with none: the other ranks' traces are not here")
        else:
            common = sum(
                min(len(each.pools.get(pool, ())) for each in ranks)
                for pool in {pool for each in ranks for pool in each.pools}
            )
            notes.append(
                f"ranks {named} of {lowest.group} were compared in the {common:,} ownership events that all have"
            )
    return tuple(notes) or ("each trace was judged by itself: none says that it is one rank of several",)


def _groups(histories: Sequence[RankHistory]) -> list[list[RankHistory]]:
    """The histories by their groups, in each the lowest rank first."""
    ordered = sorted(histories, key=lambda history: (history.group, history.rank))
    return [list(ranks) for _, ranks in groupby(ordered, key=lambda history: history.group)]


def _twice(ranks: list[RankHistory]) -> int | None:
    """A rank that occurs more than once."""
    return next((one.rank for one, other in pairwise(ranks) if one.rank == other.rank), None)


def _parting(pool: str, lowest: RankHistory, other: RankHistory) -> Finding | None:
    for number, (theirs, right) in enumerate(zip(other.pools.get(pool, ()), lowest.pools.get(pool, ()), strict=False)):
        if not theirs.agrees(right):
            return Finding(
                kind="rank_divergence",
                at=theirs.at,
                object=f"{pool}:{theirs.some[0]}" if theirs.some else pool,
                pool=pool,
                slots=theirs.some,
                owner=theirs.owner,
                present=_access(pool, theirs, f"rank {other.rank}, {other.file}"),
                earlier=_access(pool, right, f"rank {lowest.rank}, {lowest.file}"),
                why=f"Event {number} of pool {pool} is {_words(theirs)} on rank {other.rank} and {_words(right)} on "
                f"rank {lowest.rank}: from here on the same slot means something else on each.",
                token=f"rank_divergence:{pool}:{theirs.site or theirs.op}",
                rank=other.rank,
                file=other.file,
            )
    return None


def _words(change: Change) -> str:
    slots = ", ".join(map(str, change.some[:8])) + (", ..." if len(change.some) > 8 else "")
    return f"{change.op} [{slots}]" + (f' for "{change.owner}"' if change.owner else "")


def _access(pool: str, change: Change, note: str) -> Access:
    return Access(
        what=change.op, at=change.at, agent=change.agent, owner=change.owner, pool=pool, slots=change.some,
        site=change.site, note=note,
    )  # fmt: skip
