"""From broken rules to findings: one cause gives one finding, and what follows from it joins it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .events import Event, Slots
from .findings import KINDS, Finding, Joined
from .shadow import PoolShadow

if TYPE_CHECKING:
    from .state import State

RANK = {kind: rank for rank, kind in enumerate(KINDS)}
INSERT_RANK = {**RANK, "alias": -3, "use_after_free": -2, "free_not_owner": -1}
"""The order in which rules name an event; an insert has one of its own."""

HOLDING = frozenset(
    [
        "reserved_slot",
        "double_alloc",
        "invalid_free",
        "double_free",
        "page_double_free",
        "free_not_owner",
        "alias",
        "orphan",
        "stale_row",
        "leak",
        "lock_leak",
        "record_contract",
    ]
)
"""Kinds that say who holds what wrongly: what an owner leaks later, and totals that are off later, may follow from
them. A leak does not follow from a race."""

NO_SLOTS: Slots = np.empty(0, np.int64)


@dataclass(slots=True, eq=False)
class Violation:
    """A broken rule, before anybody asked whether it has a cause of its own.

    `slots` are the slots (rows) of `pool` that break it; `owner` who it concerns (for a leak: who leaks); `earlier`
    the index of the event that it collides with; `cells` the row cells in question; `held` further pools' slots that
    break the rule; `also` slots that the cause concerns as well, though the rule does not speak of them; `detail`
    what only this kind knows.
    """

    kind: str
    pool: PoolShadow | None = None
    slots: Slots = field(default_factory=lambda: NO_SLOTS)
    node: str | None = None
    owner: str | None = None
    earlier: int | None = None
    earlier_agent: int | None = None
    cells: tuple[int, int] | None = None
    held: list[tuple[PoolShadow, Slots]] = field(default_factory=list)
    also: list[tuple[PoolShadow, Slots]] = field(default_factory=list)
    detail: dict[str, str] = field(default_factory=dict)

    def places(self) -> list[tuple[PoolShadow, Slots]]:
        """Every pool and its slots that the violation concerns."""
        places = [(self.pool, self.slots)] if self.pool is not None and self.slots.size else []
        return places + self.held


Narrator = Callable[["State", Event, Violation], Finding]


class Verdicts:
    """Decides which violations are findings, and remembers what each finding concerns.

    `on_finding` and `on_joined` are called at once; findings are also kept, with a bound on those that join them.
    """

    KEPT_JOINED = 64
    KEPT_FINDINGS = 4096

    def __init__(self, narrator: Narrator) -> None:
        self._narrate = narrator
        self.findings: list[Finding] = []
        self.joined: dict[str, list[Joined]] = {}
        self.counts: dict[str, dict[str, int]] = {}
        self._nodes: dict[str, Finding] = {}
        self._owners: dict[str, Finding] = {}
        self.on_finding: Callable[[Finding], None] = lambda finding: None
        self.on_joined: Callable[[Finding, Joined], None] = lambda finding, joined: None

    def report(self, state: State, event: Event, violations: list[Violation]) -> None:
        """Takes the violations of one event: the earliest rule among those with a cause of their own names it, the
        others join."""
        fresh = []
        rank = INSERT_RANK if event.op == "insert" else RANK
        taken = [place for violation in violations for place in violation.places()] if event.op == "alloc" else []
        for violation in sorted(violations, key=lambda v: rank[v.kind]):
            cause = self._cause(violation)
            if cause is None:
                fresh.append(violation)
            else:
                self._join(cause, event, violation)
        for place, slots in taken:  # what is taken wrongly begins a tenancy too, which no earlier finding concerns
            self.new_tenancy(place, np.unique(slots // place.page))
            for slot in slots.tolist() if place.doubled else ():  # unless it was bound to be, since a double free
                if slot in place.doubled:
                    place.blamed[slot // place.page] = place.doubled.pop(slot)
        if not fresh:
            return
        finding = self._narrate(state, event, fresh[0])
        if len(self.findings) < self.KEPT_FINDINGS:
            self.findings.append(finding)
        pool = finding.pool or "-"
        kinds = self.counts.setdefault(pool, {})
        kinds[finding.kind] = kinds.get(finding.kind, 0) + 1
        if finding.owner is not None and finding.kind in HOLDING:
            self._owners[finding.owner] = finding
            if len(self._owners) > self.KEPT_FINDINGS:
                del self._owners[next(iter(self._owners))]
        for violation in fresh:
            self._blame(finding, violation)
        self.on_finding(finding)
        for violation in fresh[1:]:
            self._join(finding, event, violation)

    def _cause(self, violation: Violation) -> Finding | None:
        """The earlier finding that the whole violation follows from; what follows from one is taken out of it."""
        cause: Finding | None = None
        if violation.node is not None:
            cause = self._nodes.get(violation.node)
        if violation.kind in ("leak", "lock_leak") and violation.owner is not None:
            cause = cause or self._owners.get(violation.owner)
        if cause is not None:
            return cause
        if violation.kind == "count_mismatch" and violation.pool is not None:
            blamed = (finding for finding in violation.pool.blamed.values() if finding.kind in HOLDING)
            return next(blamed, violation.pool.adrift)
        for pool, slots in violation.also:
            cause = cause or next((pool.blamed[page] for page in _pages(pool, slots) if page in pool.blamed), None)
        if cause is not None:
            return cause
        left: list[tuple[PoolShadow, Slots]] = []
        for pool, slots in violation.places():
            known = self._known(violation.kind, pool, slots)
            if known:
                cause = cause or next(iter(known.values()))
                slots = np.array([slot for slot in slots.tolist() if slot not in known], np.int64)
            if slots.size:
                left.append((pool, slots))
        if cause is None or not left:
            return cause
        if violation.pool is not None:
            violation.pool, violation.slots = left[0]
            left = left[1:]
        violation.held = left
        return None

    def _known(self, kind: str, pool: PoolShadow, slots: Slots) -> dict[int, Finding]:
        """The slots that an earlier finding concerns in this tenancy; and, of those handed out twice, the ones that
        were given back twice before, however many tenancies ago."""
        if not pool.blamed and not pool.doubled:
            return {}
        known = {slot: pool.blamed[slot // pool.page] for slot in slots.tolist() if slot // pool.page in pool.blamed}
        if kind == "double_alloc" and pool.doubled:
            known |= {slot: pool.doubled[slot] for slot in slots.tolist() if slot in pool.doubled}
        return known

    def _blame(self, finding: Finding, violation: Violation) -> None:
        for pool, slots in violation.places() + violation.also:
            for page in _pages(pool, slots):
                pool.blamed.setdefault(page, finding)
            if violation.kind in ("double_free", "page_double_free"):
                pool.doubled.update(dict.fromkeys(slots.tolist(), finding))
        if violation.node is not None:
            self._nodes.setdefault(violation.node, finding)
            if len(self._nodes) > self.KEPT_FINDINGS:
                del self._nodes[next(iter(self._nodes))]

    def _join(self, finding: Finding, event: Event, violation: Violation) -> None:
        self._blame(finding, violation)
        pool = violation.pool.name if violation.pool is not None else None
        joined = Joined(violation.kind, event.at, pool, tuple(violation.slots.tolist()), violation.owner or event.owner)
        kept = self.joined.setdefault(f"{finding.at}:{finding.token}", [])
        if len(self.joined) > self.KEPT_FINDINGS:
            del self.joined[next(iter(self.joined))]
        if len(kept) < self.KEPT_JOINED:
            kept.append(joined)
        self.on_joined(finding, joined)

    def new_tenancy(self, pool: PoolShadow, pages: Slots) -> None:
        """A tenancy of these pages begins: what is found from here on has a cause of its own."""
        for page in pages.tolist():
            pool.blamed.pop(page, None)

    def goes_on(self, pool: PoolShadow, slots: Slots) -> None:
        """Slots of free pages are taken. An engine that takes a page from its middle holds it still, although an
        earlier finding set it free: its totals and the shadow's part here, whatever new tenancy begins."""
        pages = slots // pool.page
        for page in np.setdiff1d(pages, pages[slots % pool.page == 0]).tolist():
            finding = pool.blamed.get(page)
            if finding is not None and finding.kind in HOLDING:
                pool.adrift = finding

    def end_of(self, owner: str) -> None:
        """The owner's life is over; what its name leaks later is another's."""
        self._owners.pop(owner, None)

    def new_node(self, node: str) -> None:
        """The name stands for a new node."""
        self._nodes.pop(node, None)


def _pages(pool: PoolShadow, slots: Slots) -> list[int]:
    pages: list[int] = np.unique(slots // pool.page).tolist()
    return pages
