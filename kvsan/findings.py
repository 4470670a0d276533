"""Findings: what a detector says, as frozen values that every reporter is a pure function of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# The order in which rules name an event that breaks several of them.
KINDS: tuple[str, ...] = (
    "reserved_slot", "double_alloc", "invalid_free", "double_free", "page_double_free", "free_not_owner",
    "free_in_flight", "evict_locked", "stale_capture", "alias", "orphan", "stale_row", "use_after_free", "race",
    "uninit_read", "leak", "lock_leak", "lock_underflow", "count_mismatch", "record_contract", "namespace_mixup",
    "rank_divergence",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack, innermost first in a stack tuple."""

    file: str
    line: int
    function: str


_SITE = re.compile(r"(?P<file>[^\n]+):(?P<line>\d{1,9}) (?P<function>[^\n ]+)")


def frame_of(site: str) -> Frame | None:
    """The frame that a site in words is of, as a recorder writes it: `FILE:LINE FUNCTION`; None for other words."""
    found = _SITE.fullmatch(site)
    return Frame(found["file"], int(found["line"]), found["function"]) if found is not None else None


@dataclass(frozen=True, slots=True)
class Access:
    """One event as a finding cites it: the present access, the earlier one, or a step in a slot's history.

    `what` is a word for people ("write", "read", "alloc", "free", "insert", "attach", "capture", "lock", "end", ...);
    `cells` a half-open interval of row cells; `time_ns` a monotonic clock; `step` the scheduler iteration; `note` what
    else is to be said ("in flight", "not finished").
    """

    what: str
    at: int
    agent: str = "host"
    owner: str | None = None
    pool: str | None = None
    slots: tuple[int, ...] = ()
    cells: tuple[int, int] | None = None
    batch: str | None = None
    node: str | None = None
    step: int | None = None
    time_ns: int | None = None
    stack: tuple[Frame, ...] = ()
    site: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class SlotMap:
    """The neighbourhood of a slot: one letter a slot from `first` on.

    Letters: `.` free, `o` owned, `c` cached, `p` pending, `r` being read, `x` in transfer, `#` reserved, `!` the
    finding's own slots.
    """

    pool: str
    first: int
    letters: str


@dataclass(frozen=True, slots=True)
class Held:
    """What one owner holds in one pool, by allocation site (leaks)."""

    pool: str
    slots: tuple[int, ...]
    count: int
    pool_size: int
    allocated: Access | None
    through: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """A later violation with the same cause."""

    kind: str
    at: int
    pool: str | None
    slots: tuple[int, ...]
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule, at the event that broke it.

    `object` is POOL:SLOT, POOL:pageN, POOL, node:NAME or owner:NAME. `slots` are the slots that break the rule (for
    rows, the rows). `owner` acts, `holder` is who holds the first slot. `why` says why this is a fault, `missing` which
    order is missing (races), `hint` what to do. `token` is equal for findings of one cause at one pair of sites.
    """

    kind: str
    at: int
    object: str
    pool: str | None = None
    slots: tuple[int, ...] = ()
    owner: str | None = None
    holder: str | None = None
    node: str | None = None
    severity: str = "error"
    present: Access | None = None
    earlier: Access | None = None
    provenance: tuple[Access, ...] = ()
    generation: int | None = None
    held: tuple[Held, ...] = ()
    slot_map: SlotMap | None = None
    why: str = ""
    missing: str = ""
    hint: str = ""
    token: str = ""
    count: int = 1
    joined: tuple[Joined, ...] = ()
    pid: int | None = None
    process: str = ""
    rank: int | None = None
    file: str | None = None
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """The totals of one pool when they were taken, in slots; `events` counts events that touched the pool."""

    pool: str
    kind: str
    size: int
    page: int
    reserved: int
    free: int
    pending: int
    owned: int
    cached: int
    locked: int
    leaked: int
    events: int
    findings: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of kvsan itself: what it cost and what to do about it."""

    where: str
    error: str
    cost: str
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What one process, or several, ended with.

    `notes` are sentences a person must read (a child not entered, ...). `complete`: all that was to be watched was, as
    far as is known; where not, notes and failures say what.
    """

    findings: tuple[Finding, ...] = ()
    totals: tuple[PoolTotals, ...] = ()
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    suppressed: int = 0
    processes: int = 1
    events: int = 0
    complete: bool = True
