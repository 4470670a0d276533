"""Policy: which findings are told, and what a finding does to the engine. Detectors know nothing of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from kvsan.errors import FindingRaised, OptionError
from kvsan.findings import KINDS, Access, Finding, Frame, Joined
from kvsan.options import Options, nearest
from kvsan.sinks import JOINED_LIMIT, Sink


@dataclass(frozen=True, slots=True)
class Suppression:
    """Findings not to report: glob patterns of kind, site and owner; `place` is the rule's file and line."""

    kind: str
    site: str
    owner: str
    place: str = ""

    def matches(self, finding: Finding) -> bool:
        """Whether kind, some site of the finding, and its owner or holder fit the patterns."""
        if not fnmatchcase(finding.kind, self.kind):
            return False
        owners = {name for name in (finding.owner, finding.holder) if name} or {""}
        if not any(fnmatchcase(name, self.owner) for name in owners):
            return False
        return self.site == "*" or any(fnmatchcase(name, self.site) for name in site_names(finding))

    def __str__(self) -> str:
        return f"{self.place} ({self.kind}:{self.site}:{self.owner})"


def read_suppressions(file: str) -> tuple[Suppression, ...]:
    """The rules of a file: lines `kind:site-pattern:owner-pattern`, of which the last two may be missing; # comments.

    Raises OptionError with file and line for a rule that could never match.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise OptionError(f"the suppressions file {file} cannot be read: {error}") from error
    return tuple(
        _suppression(line.strip(), f"{file}:{number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.strip().startswith("#")
    )


def _suppression(line: str, place: str) -> Suppression:
    parts = [part.strip() for part in line.split(":", 2)]
    kind, site, owner = parts + ["*"] * (3 - len(parts))
    if not any(fnmatchcase(known, kind) for known in KINDS):
        raise OptionError(f"{place}: no finding is of kind {kind!r}{nearest(kind, KINDS)}")
    if not site or not owner:
        raise OptionError(f"{place}: an empty pattern matches nothing; write * for any")
    if site.endswith(".py") and owner.isdecimal():
        raise OptionError(
            f"{place}: the second ':' begins the owner pattern; for a line of a file write {site}?{owner}"
        )
    return Suppression(kind, site, owner, place)


class Policy:
    """Decides about every finding of a process.

    Several threads may call; the worst that comes of it is a finding told twice, which the report counts as one.
    `leave` ends the process for `on_error=halt`.
    """

    def __init__(self, options: Options, sink: Sink, *, leave: Callable[[int], None] = os._exit) -> None:
        self._options = options
        self._sink = sink
        self._leave = leave
        self._suppressions = read_suppressions(options.suppress) if options.suppress else ()
        self._told: set[str] = set()
        self._joined: Counter[str] = Counter()
        self._full = False

    def take(self, finding: Finding) -> None:
        """Tells a finding that is new, counts one that is not; raises FindingRaised or ends the process if told to."""
        token = token_of(finding)
        rule = next((rule for rule in self._suppressions if rule.matches(finding)), None)
        if rule is not None:
            self._sink.suppressed(str(rule))
            return
        if token in self._told:
            self._sink.duplicate(token)
        elif len(self._told) >= self._options.max_findings:
            self._overflow()
        else:
            self._told.add(token)
            self._sink.finding(finding)
            if self._options.on_error == "log":
                self._sink.say(f"{headline(finding)}{self._sink.promise}")
        if self._options.on_error == "raise":
            raise FindingRaised(headline(finding), finding)
        if self._options.on_error == "halt":
            self._sink.say(f"{headline(finding)}; on_error=halt ends this process")
            self._sink.close(5.0)
            self._leave(self._options.error_exitcode)

    def joined(self, token: str, joined: Joined) -> None:
        """Tells a later violation with the cause of an earlier finding; it neither raises nor ends anything."""
        if token not in self._told:  # suppressed, or past the limit
            return
        self._joined[token] += 1
        if self._joined[token] <= JOINED_LIMIT:
            self._sink.joined(token, joined)
        else:
            self._sink.duplicate(token)

    def _overflow(self) -> None:
        if not self._full:
            self._full = True
            limit = self._options.max_findings
            self._sink.note(f"pid {os.getpid()} found more than {limit} faults; the report has the first {limit}.")


def token_of(finding: Finding) -> str:
    """The finding's dedup token; one without is as good as any other of its kind at its object."""
    return finding.token or f"{finding.kind}:{finding.object}"


def headline(finding: Finding) -> str:
    """One line about a finding, with everything printable that an engine or a client may have put there."""
    from kvsan.reporters.escape import quoted, visible

    kind = finding.kind.replace("_", " ").upper()
    line = f"kvsan: {kind} on {visible(finding.object, 80)}"
    if finding.owner is not None:
        line += f" by {quoted(finding.owner)}"
    if finding.present is not None:
        access = finding.present
        where = _frame_names(access.stack[0])[0] if access.stack else access.site or ""
        line += f" at {visible(where, 120)}" if where else ""
    return line


def site_names(finding: Finding) -> Iterator[str]:
    """What a site pattern is matched against: every frame of the finding's accesses, named in several ways."""
    accesses: list[Access | None] = [finding.present, finding.earlier, *finding.provenance]
    accesses += [held.allocated for held in finding.held]
    for access in accesses:
        if access is None:
            continue
        if access.site:
            yield access.site
        for frame in access.stack:
            yield from _frame_names(frame)


def _frame_names(frame: Frame) -> tuple[str, ...]:
    base = os.path.basename(frame.file)
    stem = os.path.splitext(base)[0]
    return (
        f"{base}:{frame.line} {frame.function}",
        f"{base}:{frame.line}",
        base,
        frame.file,
        f"{frame.file}:{frame.line}",
        frame.function,
        f"{stem}.{frame.function}",
    )
