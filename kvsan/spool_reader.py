"""What the processes of a tree left in the spool folder, as one report."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvsan.findings import Report
from kvsan.serialize import (
    SerializeError,
    failure_from_dict,
    finding_from_dict,
    joined_from_dict,
    totals_from_dict,
)
from kvsan.sinks import Collector, merge

_SHOWN_ARGUMENTS = 100


@dataclass(slots=True)
class ProcessLog:
    """What one process left.

    `active`: it had a sanitizer (a forked child, one with an event of its own); `ended`: it said that it has nothing
    more to tell.
    `unsupported` is the Python version of an interpreter that is too old to be entered.
    """

    pid: int
    start: int
    ppid: int | None = None
    argv: tuple[str, ...] = ()
    version: str = ""
    name: str = ""
    unsupported: str = ""
    active: bool = False
    ended: bool = False
    dropped: int = 0
    first_finding: int = 0
    collector: Collector = field(default_factory=Collector)

    @property
    def label(self) -> str:
        """`pid 4711 (python -m server)`, for sentences."""
        command = shlex.join(self.argv)
        shown = command if len(command) <= _SHOWN_ARGUMENTS else command[:_SHOWN_ARGUMENTS] + "…"
        return f"pid {self.pid} ({shown})" if shown else f"pid {self.pid}"

    def report(self, running: bool) -> Report:
        """The report of this process; one that still runs is not expected to have said its last words."""
        made = self.collector.report()
        lacking = []
        if self.unsupported:
            lacking.append(
                f"{self.label} was not entered: it runs Python {self.unsupported}, kvsan needs 3.10 or newer."
            )
        if self.dropped:
            lacking.append(f"{self.label}: {self.dropped} records did not fit the queue or the disk and were dropped.")
        if self.active and not self.ended and not running:
            lacking.append(
                f"{self.label} ended without last words, as a killed process does: what it found until then is here, "
                "its totals are the last it gave, if any, and its leaks were not looked for."
            )
        findings = tuple(
            replace(f, pid=self.pid if f.pid is None else f.pid, process=f.process or self.name) for f in made.findings
        )
        failures = tuple(replace(f, pid=self.pid if f.pid is None else f.pid) for f in made.failures)
        processes = 0 if self.unsupported else 1
        return replace(
            made,
            findings=findings,
            failures=failures,
            notes=(*made.notes, *lacking),
            processes=processes,
            complete=made.complete and not lacking,
        )


def read_spool(directory: str, running: Collection[int] = ()) -> Report:
    """The report of every process that wrote to the folder, merged; `running` are the ids of those still alive.

    A torn last line (a process killed while it wrote) is passed over; any other broken line becomes a note with its
    place and the reason. Findings stand in the order in which processes met their first.
    """
    logs = read_processes(directory)
    logs.sort(key=lambda log: (log.first_finding or 1 << 63, log.pid))
    return merge([(f"pid {log.pid}", log.report(log.pid in running)) for log in logs])


def read_processes(directory: str) -> list[ProcessLog]:
    """One log for each file of the folder, in the order of the files' names."""
    return [read_file(Path(directory) / name) for name in sorted(os.listdir(directory)) if name.endswith(".jsonl")]


def read_file(file: Path) -> ProcessLog:
    """The log of one process; never raises for what stands in the file."""
    pid, _, start = file.stem.partition("-")
    log = ProcessLog(int(pid) if pid.isdecimal() else 0, int(start) if start.isdecimal() else 0)
    for number, line in _lines(file, log):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not an object")
            _take(log, record)
        except (ValueError, KeyError, TypeError, SerializeError) as error:
            log.collector.lacks(f"{file}:{number}: this line could not be read and is missing here: {error}")
    return log


def _lines(file: Path, log: ProcessLog) -> Iterator[tuple[int, str]]:
    try:
        text = file.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        log.collector.lacks(f"{file}: what this process found could not be read: {error}")
        return
    complete, newline, torn = text.rpartition("\n")
    yield from enumerate(complete.split("\n") if newline else [], start=1)
    if torn:
        log.collector.lacks(f"pid {log.pid} was killed while it wrote; its last record is incomplete.")


def _take(log: ProcessLog, record: dict[str, Any]) -> None:
    """Adds one record; an unknown type is passed over (a newer kvsan in the child)."""
    kind = record["type"]
    collector = log.collector
    log.active = log.active or kind in ("active", "answers", "finding", "totals")
    if kind == "process":
        log.ppid, log.argv = int(record["ppid"]), tuple(map(str, record["argv"]))
        log.version, log.unsupported = str(record["version"]), str(record.get("unsupported", ""))
    elif kind == "active":
        log.name, log.ended = str(record["name"]), False
    elif kind == "finding":
        log.first_finding = log.first_finding or int(record["t"])
        collector.finding(finding_from_dict(record["finding"]))
    elif kind == "joined":
        collector.joined(str(record["token"]), joined_from_dict(record["joined"]))
    elif kind == "duplicate":
        collector.duplicate(str(record["token"]), int(record["count"]))
    elif kind == "suppressed":
        collector.suppressed(str(record["rule"]), int(record["count"]))
    elif kind == "failure":
        collector.failure(failure_from_dict(record["failure"]))
    elif kind == "totals":
        collector.totals([totals_from_dict(pool) for pool in record["pools"]], int(record["events"]))
    elif kind == "note":
        collector.note(str(record["text"]))
    elif kind == "lacks":
        collector.lacks(str(record["text"]))
    elif kind == "dropped":
        log.dropped = max(log.dropped, int(record["count"]))
    elif kind == "end":
        log.ended = True
