"""The end of a report: the pools' totals, kvsan's own failures, notes, and the closing line."""

from __future__ import annotations

from collections import Counter

from kvsan.findings import KINDS, PoolTotals, Report
from kvsan.reporters.escape import NAME_LIMIT, PROSE_LIMIT, visible
from kvsan.reporters.page import Column, Page
from kvsan.reporters.text import GLUE, grouped, plural


def totals(page: Page, report: Report) -> None:
    """One row for each pool. Pending and reserved slots have columns where there are any; rows are never cached."""
    if not report.totals:
        return
    pending = any(total.pending for total in report.totals)
    reserved = any(total.reserved for total in report.totals)
    numbers = ["size", *["reserved"] * reserved, "free", *["pending"] * pending, "owned", "cached", "locked", "leaked"]
    columns = [
        Column("pool"),
        *(Column(name, right=True) for name in [*numbers]),
        Column("events", right=True, name="events"),
        Column("findings", name="findings"),
    ]
    rows = [
        [
            visible(total.pool, NAME_LIMIT),
            *(_number(total, name) for name in [*numbers, "events"]),
            kinds_found(total.findings),
        ]
        for total in report.totals
    ]
    page.table(columns, rows, indent=1, tight=True)


def _number(total: PoolTotals, name: str) -> str:
    if total.kind == "row" and name in ("cached", "locked") and not getattr(total, name):
        return "-"
    return grouped(getattr(total, name))


def kinds_found(counts: dict[str, int]) -> str:
    """`race 84, leak 1`, in the order of the kinds; a dash for nothing."""
    shown = sorted(counts, key=_rank)
    return ", ".join(f"{visible(kind)}{GLUE}{grouped(counts[kind])}" for kind in shown if counts[kind]) or "-"


def _rank(kind: str) -> int:
    return KINDS.index(kind) if kind in KINDS else len(KINDS)


def _processes(report: Report) -> set[str]:
    """The processes (traces) that a finding was met in, those that its like was met in included."""
    found: set[str] = set()
    for finding in report.findings:
        found.add(f"pid {finding.pid}" if finding.pid is not None else finding.file or "")
        found.update(label for label in finding.extra.get("also_in", "").split(", ") if label)
    return found


def failures(page: Page, report: Report) -> None:
    """What failed in kvsan itself, what that cost, and what to do."""
    for failure in report.failures:
        pid = f" (pid {failure.pid})" if failure.pid is not None else ""
        page.paragraph(
            f"in {visible(failure.where)}{pid}: {visible(failure.error, PROSE_LIMIT)}",
            label="FAILED", label_style="bold magenta",
        )  # fmt: skip
        page.paragraph(visible(failure.cost, PROSE_LIMIT))


def notes(page: Page, report: Report) -> None:
    """Sentences that a person must read."""
    for note in report.notes:
        page.paragraph(visible(note, PROSE_LIMIT), label="NOTE", label_style="bold magenta")


def closing(page: Page, report: Report, exit_status: int | None) -> None:
    """`kvsan: 2 findings (1 race, 1 leak), 0 suppressed, in 1 of 3 processes.`"""
    suppressed = f"{grouped(report.suppressed)} suppressed"
    failed = f", {plural(len(report.failures), 'failure')} of kvsan itself" if report.failures else ""
    where = plural(report.processes, "process", "processes")
    if report.findings:
        kinds = Counter(finding.kind for finding in report.findings)
        named = ", ".join(f"{grouped(kinds[kind])}{GLUE}{visible(kind)}" for kind in kinds)
        inside = len(_processes(report))
        where = f"{inside} of {where}" if 0 < inside <= report.processes and report.processes > 1 else where
        text = f"kvsan: {plural(len(report.findings), 'finding')} ({named}), {suppressed}, in {where}{failed}."
    else:
        events = f" ({plural(report.events, 'event')})" if report.events else ""
        text = f"kvsan: no findings, {suppressed}, in {where}{events}{failed}."
    if not report.complete:
        text += " Not everything was watched."
    if exit_status is not None:
        text += f" Exit status {exit_status}."
    doubtful = report.failures or not report.complete
    style = "bold red" if report.findings else "bold yellow" if doubtful else "bold green"
    page.sentence(text, style=style)
