"""What `pytest --kvsan` does: scopes tests, judges them, and sums up."""

from __future__ import annotations

import difflib
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING

import _pytest
import pytest
from _pytest.runner import runtestprotocol

from kvsan.errors import FindingRaised
from kvsan.findings import KINDS, Access, Finding, Frame, Report
from kvsan.hooks import scope
from kvsan.options import Options
from kvsan.pytest_plugin import SANITIZER
from kvsan.reporters.terminal import console_for, render

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

# Attributes of a test's report, with plain values: a report travels from xdist's workers as JSON.
_FOUND, _EXPECTED, _EVENTS = "kvsan_found", "kvsan_expected", "kvsan_events"

_PYTEST_FOLDER = os.path.join(os.path.dirname(_pytest.__file__), "")


class KvsanFailure(Exception):
    """Why a test fails: what was found in it, or what was expected and did not come."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a test's markers say: the kinds that must come, and whether it is tracked at all."""

    kinds: frozenset[str] = frozenset()
    off: bool = False

    @classmethod
    def of(cls, item: pytest.Item) -> Expectation:
        """Reads the test's markers; the nearest one that says `off` counts, kinds add up. Raises KvsanFailure."""
        kinds: set[str] = set()
        off: bool | None = None
        for mark in item.iter_markers("kvsan"):
            unknown = ", ".join(sorted(mark.kwargs.keys() - {"expect", "off"}) + [repr(each) for each in mark.args])
            if unknown:
                raise KvsanFailure(f"the marker kvsan takes expect= and off=, not {unknown}")
            expect = mark.kwargs.get("expect", ())
            kinds.update((expect,) if isinstance(expect, str) else expect)
            if off is None and "off" in mark.kwargs:
                off = bool(mark.kwargs["off"])
        for kind in sorted(kinds - set(KINDS)):
            near = difflib.get_close_matches(kind, KINDS, n=1)
            raise KvsanFailure(
                f"expect={kind!r} is no kind of finding" + (f"; did you mean {near[0]!r}?" if near else "")
            )
        return cls(frozenset(kinds), bool(off))


@dataclass(slots=True)
class Tally:
    """What the tests of a run came to, for the summary."""

    tests: int = 0
    events: int = 0
    # Node id -> kind -> count, of tests with findings only; the expected ones apart from those that failed the test.
    found: dict[str, Mapping[str, int]] = field(default_factory=dict)
    expected: dict[str, Mapping[str, int]] = field(default_factory=dict)


class Scopes:
    """The plugin that is registered under --kvsan."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tally = Tally()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Runs set-up, call and teardown in one scope, and judges before anything is logged.

        What a test still holds can only be told after its fixtures were torn down; by then pytest would have logged the
        call as passed. So the reports are collected first, the way plugins that run tests again do.
        """
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        try:
            expectation = Expectation.of(item)
        except KvsanFailure as failure:
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            _fail(_verdict_report(reports), f"kvsan: {failure}")
        else:
            if expectation.off:
                reports = runtestprotocol(item, log=False, nextitem=nextitem)
            else:
                reports = self._tracked(item, nextitem, expectation)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _tracked(
        self, item: pytest.Item, nextitem: pytest.Item | None, expectation: Expectation
    ) -> list[pytest.TestReport]:
        with scope(self.options) as sanitizer:
            item.stash[SANITIZER] = sanitizer
            sanitizer.load_plugins()
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            del item.stash[SANITIZER]
            try:
                events = sanitizer.events
                with suppress(FindingRaised):
                    sanitizer.check_end()
                verdict = _verdict_report(reports)
                _judge(verdict, sanitizer.report(), expectation, events=events, root=str(item.config.rootpath))
            except Exception as error:  # A verdict that failed must neither end the run nor pass for a clean one.
                _fail(_verdict_report(reports), f"kvsan itself failed: {type(error).__name__}: {error}")
        return reports

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds a judged test to the tally; under xdist this runs where the summary is printed."""
        if not hasattr(report, _EVENTS):
            return
        self.tally.tests += 1
        self.tally.events += getattr(report, _EVENTS)
        for by_test, attribute in ((self.tally.found, _FOUND), (self.tally.expected, _EXPECTED)):
            if counts := getattr(report, attribute):
                by_test[report.nodeid] = counts

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        terminalreporter.section("kvsan")
        for line in summary(self.tally, self.options.level):
            terminalreporter.write_line(line)


def summary(tally: Tally, level: str) -> Iterator[str]:
    """The lines of the terminal summary: a table of the tests with findings, then the totals."""
    table = [(test, "", counts) for test, counts in tally.found.items()]
    table += [(test, "  expected", counts) for test, counts in tally.expected.items()]
    if table:
        cells = [(test, _counts(counts, " ") + note) for test, note, counts in sorted(table, key=lambda row: row[0])]
        width = max(len(test) for test, _ in cells)
        yield f"{'test':{width}}  findings"
        yield from (f"{test:{width}}  {counts}" for test, counts in cells)
        yield ""
    tracked = f"{tally.tests} {'test' if tally.tests == 1 else 'tests'} tracked at level {level}"
    if not tally.found:
        yield f"{tracked}, no unexpected findings" if tally.expected else f"{tracked}, no findings"
    else:
        total: Counter[str] = Counter()
        for counts in tally.found.values():
            total.update(counts)
        yield f"{tracked}, {len(tally.found)} with findings: {_counts(total)}"
    if tally.tests and not tally.events:
        yield "No test produced an event: nothing was watched. Does the code under test call kvsan, or a hooked engine?"


def _judge(verdict: pytest.TestReport, report: Report, expectation: Expectation, *, events: int, root: str) -> None:
    """Writes into the test's report what was found in it, and fails it where that was not expected."""
    found = _count(each for each in report.findings if each.kind not in expectation.kinds)
    expected = _count(each for each in report.findings if each.kind in expectation.kinds)
    if verdict.skipped and not hasattr(verdict, "wasxfail") and not report.findings:
        return  # It did not run, so nothing was tracked.
    setattr(verdict, _FOUND, found)
    setattr(verdict, _EXPECTED, expected)
    setattr(verdict, _EVENTS, events)

    reasons = [f"kvsan: found {_counts(found)}"] if found else []
    reasons += [f"kvsan itself failed: {each.where}: {each.error} ({each.cost})" for each in report.failures]
    if verdict.passed:  # A test that failed anyway may not have reached what it was to show.
        missing = sorted(expectation.kinds - expected.keys())
        reasons += [f"kvsan: expected {kind}, which did not come" for kind in missing]
    if reasons:
        _fail(verdict, "\n".join(reasons))
    if found or report.failures:
        verdict.sections.append(("kvsan", _rendered(report, root)))


def _verdict_report(reports: list[pytest.TestReport]) -> pytest.TestReport:
    """The report that tells whether the test passed: the call's, or the set-up's where there was no call."""
    return next((report for report in reports if report.when == "call"), reports[0])


def _fail(verdict: pytest.TestReport, reason: str) -> None:
    """Fails the test for the reason; one that failed already keeps its own, one marked xfail fails as it should."""
    if verdict.failed:
        return
    if hasattr(verdict, "wasxfail"):
        verdict.outcome = "skipped"
        return
    try:
        raise KvsanFailure(reason)
    except KvsanFailure:
        shown = pytest.ExceptionInfo.from_current().getrepr(style="value")
    if shown.reprcrash is not None:
        shown.reprcrash.message = reason  # Without the exception's name, which the summary has no room for.
    verdict.longrepr = shown
    verdict.outcome = "failed"


def _rendered(report: Report, root: str) -> str:
    text = io.StringIO()
    findings = tuple(_without_runner(each) for each in report.findings)
    render(replace(report, findings=findings), console_for(text), root=root)
    return text.getvalue()


def _without_runner(finding: Finding) -> Finding:
    """The finding with stacks that end at the test: how pytest came to call it tells nobody anything."""

    def cut(access: Access | None) -> Access | None:
        return access and replace(access, stack=tuple(takewhile(_outside_pytest, access.stack)) or access.stack)

    return replace(
        finding,
        present=cut(finding.present),
        earlier=cut(finding.earlier),
        provenance=tuple(each for each in map(cut, finding.provenance) if each),
        held=tuple(replace(each, allocated=cut(each.allocated)) for each in finding.held),
    )


def _outside_pytest(frame: Frame) -> bool:
    return not frame.file.startswith(_PYTEST_FOLDER)


def _count(findings: Iterable[Finding]) -> dict[str, int]:
    return dict(Counter(each.kind for each in findings))


def _counts(counts: Mapping[str, int], between: str = ", ") -> str:
    """`2 leak, 1 race`, most frequent first."""
    return between.join(
        f"{count} {kind}" for kind, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
