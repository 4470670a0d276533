"""The report on a terminal or in a pipe: the same words, colour only where there is a terminal."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console

from kvsan.findings import Report
from kvsan.reporters import finding, totals
from kvsan.reporters.page import Page
from kvsan.reporters.places import Places

PIPE_WIDTH = 100


def render(report: Report, console: Console, *, root: str = "", exit_status: int | None = None) -> None:
    """Prints the whole report.

    `root` is a folder; files below it are written from there. `exit_status` is what the command ends with, for the
    last line; None where there is none.
    """
    lay_out(report, console.width, terminal=console.is_terminal, root=root, exit_status=exit_status).print(console)


class _Console(Console):
    """A console that leaves it to the command what a closed pipe means; rich would end the process with status 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console_for(stream: TextIO) -> Console:
    """A console for `render` on the stream: as wide as the terminal, 100 columns and without colour elsewhere."""
    is_terminal = stream.isatty()
    return _Console(file=stream, width=None if is_terminal else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def lay_out(
    report: Report, width: int, *, terminal: bool = False, root: str = "", exit_status: int | None = None
) -> Page:
    """The report as a page of `width` columns, not yet printed. On a `terminal` summaries are wrapped."""
    page = Page(width, terminal=terminal)
    places = Places.of(report, root)
    for number, item in enumerate(report.findings, 1):
        finding.draw(page, item, places, number, len(report.findings))
        page.blank()
    totals.totals(page, report)
    page.blank()
    totals.failures(page, report)
    totals.notes(page, report)
    page.blank()
    totals.closing(page, report, exit_status)
    return page
