"""Errors that carry the exit status of the command that meets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsan.findings import Finding


class KvsanError(Exception):
    """Base of kvsan's own errors; `exit_status` is what a kvsan command ends with."""

    exit_status = 2


class TraceError(KvsanError):
    """An unusable trace: says file, line and reason."""

    def __init__(self, reason: str, *, file: str = "<trace>", line: int | None = None) -> None:
        self.file = file
        self.line = line
        self.reason = reason
        place = file if line is None else f"{file}:{line}"
        super().__init__(f"{place}: {reason}")


class OptionError(KvsanError):
    """An unknown option or a value that does not fit it."""


class EventError(KvsanError):
    """An event that no tracker can take (unknown pool, wrong field type)."""


class FindingRaised(KvsanError):
    """A finding, raised in the engine's thread at the call that broke the rule (`on_error=raise`)."""

    exit_status = 88

    def __init__(self, message: str, finding: Finding) -> None:
        super().__init__(message)
        self.finding = finding
