"""`kvsan check FILE...`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Iterator

from kvsan.errors import EventError, KvsanError, TraceError
from kvsan.events import Event
from kvsan.findings import Failure, Finding, PoolTotals, Report
from kvsan.ranks import RankHistory, compare, comparison_notes
from kvsan.reporters.formats import FORMATS, renderer
from kvsan.reporters.terminal import console_for, render
from kvsan.state import LEVELS
from kvsan.traces import Trace, read_trace
from kvsan.tracker import Tracker

FOUND = 88
UNUSABLE = 2


@dataclasses.dataclass(slots=True)
class Checked:
    """What one file came to; `error` says why the rest of it could not be read."""

    file: str
    findings: list[Finding] = dataclasses.field(default_factory=list)
    totals: tuple[PoolTotals, ...] = ()
    events: int = 0
    error: TraceError | None = None
    expect: dict[str, object] | None = None
    history: RankHistory | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    whole: bool = True


class Check:
    """Judge recorded traces.

    Every FILE is a trace, as text (JSON Lines) or binary; traces whose headers
    name one group are also compared as the ranks of one engine. Exit status:
    0 clean, 88 something was found, 2 a file could not be used.
    """

    name = "check"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("files", nargs="+", metavar="FILE", help="a trace")
        parser.add_argument(
            "--format", choices=("text", *FORMATS), default="text", help="of the report (default: text)"
        )
        parser.add_argument(
            "--level", choices=LEVELS, help="what is judged (default: the level in the trace's header, else full)"
        )
        parser.add_argument("--at", type=int, metavar="EVENT", help="only what was found at this event")
        parser.add_argument(
            "--expect", action="store_true", help="compare with what each header expects; 0 if all agree, else 88"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Prints the report to standard output, what could not be read to standard error."""
        checked = [check_file(file, args.level) for file in args.files]
        parted = compare([each.history for each in checked if each.history is not None])
        for each in checked:
            each.findings += [finding for finding in parted if finding.file == each.file]
            each.findings.sort(key=lambda finding: finding.at)
        if args.expect:
            return _compare_expectations(checked)
        unusable = [each.error for each in checked if each.error is not None]
        report = _report(checked, args.at)
        status = UNUSABLE if unusable else FOUND if report.findings else 0
        if args.format != "text":
            failures = tuple(Failure(error.file, str(error), "what follows there was not judged") for error in unusable)
            report = dataclasses.replace(report, failures=failures)
            _print_utf8(renderer(args.format)(report, root=os.getcwd(), exit_status=status))
        elif report.findings or not unusable:
            render(report, console_for(sys.stdout), root=os.getcwd(), exit_status=status)
        for error in unusable:
            print(f"kvsan: error: {error}", file=sys.stderr)
        return status


def _print_utf8(document: str) -> None:
    """The documents say that they are UTF-8, whatever the terminal's encoding is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(document.encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()


def check_file(file: str, level: str | None = None) -> Checked:
    """Judges one trace as far as it can be read; without a level, at the one that it was recorded at."""
    result = Checked(file)
    try:
        trace = read_trace(file)
    except TraceError as error:
        result.error = error
        return result
    recorded = trace.header.level or "full"
    tracker = Tracker(level or recorded)
    if level is not None and LEVELS.index(level) > LEVELS.index(recorded):
        result.notes.append(f"{file}: recorded at level {recorded}; what is judged beyond it was not told whole")
        result.whole = False
    if trace.cut:
        result.whole = False
        result.notes.append(
            f"{file}: the trace has no end: its process was killed, or part of the file is missing. What came after, "
            "leaks at the end among it, is not judged"
        )
    result.expect = trace.header.expect
    if trace.header.group is not None and trace.header.rank is not None:
        result.history = RankHistory(trace.header.group, trace.header.rank, file)
    number = 1
    try:
        for event in _with_progress(trace):
            number = event.at
            if result.history is not None:
                result.history.before(event, tracker.state)
            try:
                tracker.take(event)
            except EventError as error:
                raise TraceError(f"event {event.at} ({event.op}): {error}", file=file) from None
            result.events += 1
    except TraceError as error:
        result.error = error
        if result.events:
            result.error = TraceError(
                f"{error.reason}; {result.events} events up to {number} were read", file=file, line=error.line
            )
    result.findings = [dataclasses.replace(finding, file=file) for finding in tracker.findings]
    result.totals = tracker.totals()
    return result


def _with_progress(trace: Trace) -> Iterator[Event]:
    """Shows how far a long trace has come, where somebody is looking."""
    if not sys.stderr.isatty():
        yield from trace.events
        return
    shown = started = time.monotonic()
    for count, event in enumerate(trace.events):
        if count % 4096 == 0 and time.monotonic() - shown > 0.5:
            shown = time.monotonic()
            rate = count / (shown - started)
            print(f"\r\033[Kkvsan: {trace.file}: {count:,} events, {rate:,.0f} a second", end="", file=sys.stderr)
        yield event
    if shown != started:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _report(checked: list[Checked], at: int | None) -> Report:
    """One report of all files; findings of one file with one token are counted, not repeated."""
    findings: dict[tuple[str, str], Finding] = {}
    for each in checked:
        for finding in each.findings:
            if at is not None and finding.at != at:
                continue
            key = (each.file, finding.token)
            known = findings.get(key)
            findings[key] = dataclasses.replace(known, count=known.count + 1) if known is not None else finding
    several = len(checked) > 1
    notes = tuple(note for each in checked for note in each.notes)
    if several:
        notes += comparison_notes([each.history for each in checked if each.history is not None])
    totals = [
        dataclasses.replace(pool, pool=f"{pool.pool} ({each.file})") if several else pool
        for each in checked
        for pool in each.totals
    ]
    return Report(
        tuple(findings.values()),
        tuple(totals),
        notes=notes,
        processes=len(checked),
        events=sum(each.events for each in checked),
        complete=all(each.whole and each.error is None for each in checked),
    )


def _compare_expectations(checked: list[Checked]) -> int:
    wrong = 0
    for each in checked:
        if each.expect is None:
            raise KvsanError(f"{each.file}: the header has no 'expect' to compare with")
        want = (
            "clean" if each.expect.get("verdict") == "clean" else f"{each.expect.get('kind')}@{each.expect.get('at')}"
        )
        got = f"{each.findings[0].kind}@{each.findings[0].at}" if each.findings else "clean"
        got = str(each.error) if each.error is not None else got
        wrong += got != want
        print(
            f"{'ok   ' if got == want else 'WRONG'} {each.file}: " + (got if got == want else f"want {want}, got {got}")
        )
    print(f"{len(checked) - wrong} of {len(checked)} as expected")
    return FOUND if wrong else 0
