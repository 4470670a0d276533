"""What an owner that is over still holds, as a table by pool."""

from __future__ import annotations

from collections import Counter

from kvsan.findings import Access, Finding, Held
from kvsan.reporters.escape import visible
from kvsan.reporters.page import Column, Page
from kvsan.reporters.phrases import owner_phrase, plain
from kvsan.reporters.places import Places
from kvsan.reporters.text import age, grouped, percent, plural

_COLUMNS = (
    Column("pool"), Column("held", right=True), Column("of pool", right=True), Column("allocated at"),
    Column("age", name="age"), Column("which"),
)  # fmt: skip

_ENDS = {"end": "ended", "abort": "was aborted", "finish": "finished", "retract": "was retracted"}
_HOW = {"abort": "by abort", "finish": "after it finished"}


def sentence(finding: Finding) -> str:
    """`request "c9" ended by abort at step 22 and still holds`."""
    present = finding.present
    owner = finding.owner if finding.owner is not None else finding.holder
    if present is None or plain(present.what) not in _ENDS:
        who = f"{owner_phrase(owner)} still holds" if owner is not None else "slots without an owner are held"
        return f"at {visible(present.what)}{_when(present)}, {who}" if present else who
    who = owner_phrase(owner) if owner is not None else "an owner without a name"
    how = present.note or _HOW.get(finding.extra.get("ended", ""), "")
    note = f" {visible(how)}" if how else ""
    return f"{who} {_ENDS[plain(present.what)]}{note}{_when(present)} and still holds"


def holdings(page: Page, finding: Finding, places: Places) -> None:
    """One row for each pool, allocation site and way it is held; then the total of pools that have several rows."""
    rows: list[tuple[str, ...]] = []
    for item in direct_first(finding.held):
        site = places.site(item.allocated) or _event(item.allocated)
        rows.append((
            places.pool(item.pool), grouped(item.count), percent(item.count, item.pool_size), site,
            _age(item.allocated, finding.present), _slots(item, finding, places),
        ))  # fmt: skip
    page.table(_COLUMNS, rows, indent=3)
    for line in _totals(finding.held, places):
        page.paragraph(line)


def direct_first(held: tuple[Held, ...]) -> list[Held]:
    """What the owner holds itself before what it holds through a leaked row, request or node."""
    return sorted(held, key=lambda item: bool(item.through))


def lost(held: tuple[Held, ...], places: Places) -> str:
    """`1 row and 5 token slots`."""
    counts: Counter[str] = Counter()
    for item in direct_first(held):
        counts[item.pool] += item.count
    parts = [places.counted(pool, count) for pool, count in counts.items()]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _totals(held: tuple[Held, ...], places: Places) -> list[str]:
    """How much of each pool is gone, where more than one row of the table says so."""
    rows = Counter(item.pool for item in held)
    lines = []
    for pool in [pool for pool, count in rows.items() if count > 1]:
        items = [item for item in held if item.pool == pool]
        count = sum(item.count for item in items)
        share = percent(count, items[0].pool_size)
        lines.append(f"in all {plural(count, 'slot')} of {places.pool(pool)}, {share} of it")
    return lines


def _slots(item: Held, finding: Finding, places: Places) -> str:
    """`slots 40-44, held through row 3`."""
    words = [places.bare_slots(item.pool, item.slots)] if item.slots else []
    if item.allocated is not None and item.allocated.owner not in (None, finding.owner):
        words.append(f"allocated for {owner_phrase(item.allocated.owner or '')}")
    if item.through:
        words.append(f"held through {visible(item.through.removeprefix('held through '))}")
    return ", ".join(words)


def _when(access: Access) -> str:
    step = f" at step {grouped(access.step)}" if access.step is not None else ""
    return f"{step} (event {grouped(access.at)})" if access.at >= 0 else step


def _event(access: Access | None) -> str:
    return f"event {grouped(access.at)}" if access is not None and access.at >= 0 else "not known"


def _age(allocated: Access | None, present: Access | None) -> str:
    if allocated is None or present is None:
        return "-"
    if allocated.time_ns is not None and present.time_ns is not None:
        return age(present.time_ns - allocated.time_ns)
    if allocated.step is not None and present.step is not None:
        return plural(present.step - allocated.step, "step")
    return plural(present.at - allocated.at, "event")
