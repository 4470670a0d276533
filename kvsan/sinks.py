"""Sinks: where what a process found goes. The one here keeps it in memory and makes the report of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from kvsan.findings import Failure, Finding, Joined, PoolTotals, Report

JOINED_LIMIT = 100
"""Later violations of one cause that are told one by one; further ones are only counted."""


class Sink(Protocol):
    """What a policy and a sanitizer tell. No method raises or blocks, `flush` and `close` aside, which are bounded.

    `promise` follows the line that is said of a finding: when its report comes, if one comes by itself.
    """

    promise: str

    def finding(self, finding: Finding) -> None:
        """A new finding; its token was not seen before in this process."""

    def joined(self, token: str, joined: Joined) -> None:
        """A later violation with the cause of the token's finding."""

    def duplicate(self, token: str, count: int = 1) -> None:
        """The token's finding was met again."""

    def suppressed(self, rule: str, count: int = 1) -> None:
        """A finding that the rule (as its file writes it, with file and line) keeps out of the report."""

    def failure(self, failure: Failure) -> None:
        """Something in kvsan itself failed."""

    def totals(self, pools: Sequence[PoolTotals], events: int = 0) -> None:
        """The totals of every pool now, and the number of events so far; they replace earlier ones."""

    def note(self, text: str) -> None:
        """A sentence that a person must read."""

    def lacks(self, text: str) -> None:
        """As `note`, of something that is not watched though it was to be."""

    def say(self, line: str) -> None:
        """A line for standard error at once, already made printable."""

    def flush(self, timeout: float = 2.0) -> bool:
        """Waits until what was told is safe; false when the time was not enough."""

    def close(self, timeout: float = 2.0) -> bool:
        """As `flush`, and says that the process has nothing more to tell."""


class Collector:
    """A sink in memory; `report` may be asked at any time."""

    promise = ""

    def __init__(self) -> None:
        self._findings: dict[str, Finding] = {}
        self._repeats: Counter[str] = Counter()
        self._joined: dict[str, list[Joined]] = {}
        self._rules: Counter[str] = Counter()
        self._failures: list[Failure] = []
        self._notes: list[str] = []
        self._totals: tuple[PoolTotals, ...] = ()
        self._events = 0
        self._complete = True

    def finding(self, finding: Finding) -> None:
        """See `Sink`; a token met before counts as a duplicate."""
        key = finding.token or f"{finding.kind}:{finding.object}:{finding.at}"
        if key in self._findings:
            self.duplicate(key, finding.count)
        else:
            self._findings[key] = finding

    def joined(self, token: str, joined: Joined) -> None:
        """See `Sink`."""
        self._joined.setdefault(token, []).append(joined)

    def duplicate(self, token: str, count: int = 1) -> None:
        """See `Sink`."""
        self._repeats[token] += count

    def suppressed(self, rule: str, count: int = 1) -> None:
        """See `Sink`."""
        self._rules[rule] += count

    def failure(self, failure: Failure) -> None:
        """See `Sink`."""
        self._failures.append(failure)

    def totals(self, pools: Sequence[PoolTotals], events: int = 0) -> None:
        """See `Sink`."""
        self._totals, self._events = tuple(pools), events

    def note(self, text: str) -> None:
        """See `Sink`."""
        if text not in self._notes:
            self._notes.append(text)

    def lacks(self, text: str) -> None:
        """See `Sink`."""
        self._complete = False
        self.note(text)

    def say(self, line: str) -> None:
        """See `Sink`."""
        print(line, file=sys.stderr, flush=True)

    def flush(self, timeout: float = 2.0) -> bool:
        """See `Sink`; memory is safe at once."""
        return True

    close = flush

    def report(self) -> Report:
        """The report of what was told so far, of one process."""
        findings = tuple(
            replace(
                finding,
                count=finding.count + self._repeats[key],
                joined=finding.joined + tuple(self._joined.get(key, ())),
            )
            for key, finding in self._findings.items()
        )
        used = [f"Suppressed {times} time{'s' * (times != 1)} by {rule}." for rule, times in self._rules.items()]
        return Report(
            findings=findings,
            totals=self._totals,
            failures=tuple(self._failures),
            notes=(*self._notes, *used),
            suppressed=sum(self._rules.values()),
            events=self._events,
            complete=self._complete and not self._failures,
        )


def merge(reports: Sequence[tuple[str, Report]]) -> Report:
    """One report of several processes, each with its label ("pid 4711").

    Findings with one token become one, counted together; a pool's name gets the label where several processes have a
    pool of that name.
    """
    findings: dict[tuple[str, int], Finding] = {}
    elsewhere: dict[tuple[str, int], list[str]] = {}
    pools = Counter(pool.pool for _, report in reports for pool in report.totals)
    for number, (label, report) in enumerate(reports):
        for place, finding in enumerate(report.findings):
            key = (finding.token, 0) if finding.token else (label, 1 + number * 1_000_000 + place)
            first = findings.setdefault(key, finding)
            if first is not finding:
                joined = (*first.joined, *finding.joined)[:JOINED_LIMIT]
                findings[key] = replace(first, count=first.count + finding.count, joined=joined)
                elsewhere.setdefault(key, []).append(label)
    for key, labels in elsewhere.items():
        extra = {**findings[key].extra, "also_in": ", ".join(dict.fromkeys(labels))}
        findings[key] = replace(findings[key], extra=extra)
    return Report(
        findings=tuple(findings.values()),
        totals=tuple(
            replace(pool, pool=f"{pool.pool} ({label})") if pools[pool.pool] > 1 else pool
            for label, report in reports
            for pool in report.totals
        ),
        failures=tuple(failure for _, report in reports for failure in report.failures),
        notes=tuple(dict.fromkeys(note for _, report in reports for note in report.notes)),
        suppressed=sum(report.suppressed for _, report in reports),
        processes=sum(report.processes for _, report in reports),
        events=sum(report.events for _, report in reports),
        complete=all(report.complete for _, report in reports),
    )
