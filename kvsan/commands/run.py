"""`kvsan run`: a server with kvsan in every Python process of its tree, and one report at the end."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kvsan.announce import check_private
from kvsan.errors import KvsanError, OptionError
from kvsan.findings import Failure, Finding, Report
from kvsan.options import Options, add_flags

if TYPE_CHECKING:
    from rich.console import Console

    from kvsan.process_tree import ProcessTree
    from kvsan.supervise import Child

UNWRITTEN = 2
"""The exit status in place of 0 where a file of the report could not be written."""

LINGER_SECONDS = 10.0
"""How long the rest of the tree may take after the command itself has ended."""


class Run:
    """Run a server, or any command, with kvsan inside every Python process of it.

    The report comes on standard error when the command has ended; standard
    output is the command's alone. Signals are passed on.

    Exit status: 88 when anything was found, also when the command was ended by
    a signal (--error-exitcode, --keep-exitcode); else the command's own, 0 when
    a signal ended it that kvsan passed on, 128 + N for another signal N; 127
    and 126 when there is no such command or it cannot be run. With
    --incomplete-exitcode a 0 does not hide what was not watched. 2 in place of
    0 when a file of the report could not be written.
    """

    name = "run"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Adds the options and the command."""
        parser.usage = "kvsan run [options] -- COMMAND [ARGUMENT ...]"
        parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        add_flags(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Runs the command and returns the exit status."""
        command: list[str] = args.command + args.rest
        if not command:
            raise OptionError("no command to run; write kvsan run [options] -- COMMAND")
        if not sys.platform.startswith("linux"):
            raise KvsanError(f"kvsan run needs Linux (this is {sys.platform})")
        options = _options(args)
        _check(options)
        spool, mine = _make_spool(options)
        keep = True
        try:
            status = _run(command, replace(options, spool=spool))
            keep = False
        except KvsanError:
            keep = False
            raise
        finally:
            if mine and not keep:
                shutil.rmtree(spool, ignore_errors=True)
            elif keep:
                print(f"kvsan: what was found so far is in {spool}", file=sys.stderr)
        return status


def _options(args: argparse.Namespace) -> Options:
    environ = {
        name: value for name, value in os.environ.items() if name != "KVSAN_SPOOL"
    }  # a wrapper's around this one
    cwd = os.getcwd()
    return Options.from_environment(environ, cwd).updated_from_flags(args, cwd)


def _check(options: Options) -> None:
    """Refuses now what would fail at the end, after the server has run for hours."""
    from kvsan.policy import read_suppressions

    if options.suppress:
        read_suppressions(options.suppress)
    for file in (*options.report, *filter(None, [options.record])):
        folder = os.path.dirname(file)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OptionError(f"{file} cannot be written: {folder} is missing or not writable")
        if os.path.isdir(file):
            raise OptionError(f"{file} cannot be written: it is a folder")


def _make_spool(options: Options) -> tuple[str, bool]:
    """The spool folder, and whether it goes when the report is out."""
    from kvsan.spool import make_spool

    if options.spool is None:
        return make_spool(), True
    try:
        os.makedirs(options.spool, mode=0o700, exist_ok=True)
        check_private(options.spool)
    except OSError as error:
        raise OptionError(str(error)) from error
    return options.spool, False


def _run(command: Sequence[str], options: Options) -> int:
    from kvsan.asking import name_wrapper
    from kvsan.fallback import write_site
    from kvsan.inherit import with_site
    from kvsan.process_tree import ProcessTree
    from kvsan.supervise import Supervisor

    spool = options.spool
    assert spool is not None
    write_site(spool)
    name_wrapper(spool)
    environment = {**os.environ, **options.to_environment()}
    environment["PYTHONPATH"] = with_site(os.environ.get("PYTHONPATH"), spool)
    supervisor = Supervisor(command, environment)
    tree = ProcessTree(supervisor.child.pid, spool)

    def look() -> bool:
        tree.look()
        return tree.news

    try:
        child = supervisor.wait(look)
        supervisor.linger(LINGER_SECONDS, lambda: not tree.unsettled())
        report = _collect(spool, tree, child, options)
        status = _publish(report, options, child.exit_status())
    finally:
        supervisor.restore()  # not earlier: who stops a server that has just died must not stop its report
    return status


def _status(report: Report, options: Options, own: int) -> int:
    """What kvsan run ends with, where the command's own status is `own`."""
    if report.findings and not options.keep_exitcode:
        return options.error_exitcode
    if not report.complete and options.incomplete_exitcode is not None:
        return own or options.incomplete_exitcode
    return own


def _idle_rules(report: Report, options: Options) -> list[str]:
    """Which suppressions matched nothing, where something was found that they do not fit."""
    from kvsan.policy import read_suppressions

    try:
        rules = read_suppressions(options.suppress) if options.suppress and report.findings else ()
    except OptionError:  # the file has changed since
        return []
    idle = [rule.place for rule in rules if not any(str(rule) in note for note in report.notes)]
    if not idle:
        return []
    return [f"Suppressions that matched nothing: {', '.join(idle)}. A line is KIND:SITE:OWNER; it is no DEDUP token."]


def _collect(spool: str, tree: ProcessTree, child: Child, options: Options) -> Report:
    """The report of the whole tree, with what a person must know of its processes."""
    from kvsan.spool import read_spool

    running = tree.running()
    report = read_spool(spool, running)
    lacking = tree.missed()
    if running:
        left = ", ".join(map(str, sorted(running)))
        lacking.append(f"Still running when this report was made, with findings that are not in it: pid {left}.")
    if not (lacking or report.notes or report.totals or report.findings or report.failures):
        lacking.append(_nothing(report.processes))
    notes = (child.sentence(), *report.notes, *_idle_rules(report, options), *lacking)
    found = tuple(replace(finding, file=_trace_of(finding, options)) for finding in report.findings)
    return replace(report, findings=found, notes=notes, complete=report.complete and not lacking)


def _trace_of(finding: Finding, options: Options) -> str | None:
    """The trace that was recorded of the finding's process."""
    file = options.record_path(finding.pid) if finding.pid is not None else None
    return file if file is not None and os.path.isfile(file) else finding.file


def _nothing(processes: int) -> str:
    """Why there is nothing to tell of a tree with so many Python processes."""
    if not processes:
        return "No Python process was seen in the command's tree, so that there was nothing to enter."
    return (
        "No engine was seen in the command's tree, so that nothing was watched. A process that others start, as Ray's "
        "workers are, or on another host, needs a kvsan run of its own. What a program's own kvsan.Sanitizer() finds "
        "stays with it; kvsan.hooks.current() is the one that reports here."
    )


def _publish(report: Report, options: Options, own: int) -> int:
    """Writes the report's files, then the report to standard error; what fails is said, and the rest still written.
    Returns what kvsan run ends with, where the command's own status is `own`."""
    from kvsan.reporters import terminal

    status = _status(report, options, own)
    failures = _write(report, options.report, options, status)
    if failures:
        report = replace(report, failures=(*report.failures, *failures.values()), complete=False)
        status = _status(report, options, own) or UNWRITTEN
        _write(report, [file for file in options.report if file not in failures], options, status)
    try:
        console = _console(options)
        if console.is_terminal:
            console.print()  # the terminal may have written ^C where the report begins
        terminal.render(report, console, root=os.getcwd(), exit_status=status)
        sys.stderr.flush()
    except (BrokenPipeError, SystemExit):  # nobody reads it (rich says so by SystemExit); the status still counts
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    except Exception as error:
        _plain(report, error)
    return status


def _write(report: Report, files: Sequence[str], options: Options, status: int) -> dict[str, Failure]:
    """Writes the report to the files; by file, why it could not be written."""
    from kvsan.reporters import terminal
    from kvsan.reporters.formats import format_of, renderer

    failures: dict[str, Failure] = {}
    root = os.getcwd()
    for file in files:
        try:
            if (name := format_of(file)) is not None:
                document = renderer(name)(report, root=root, exit_status=status)
                Path(file).write_text(document, encoding="utf-8", errors="backslashreplace")
            else:
                with open(file, "w", encoding="utf-8") as stream:
                    terminal.render(report, _file_console(stream, options), root=root, exit_status=status)
        except Exception as error:
            cost = f"{file} is missing or incomplete; the report stands on standard error"
            failures[file] = Failure("writing the report", f"{type(error).__name__}: {error}", cost, os.getpid())
    return failures


def _plain(report: Report, error: Exception) -> None:
    """The findings without the terminal reporter, which failed."""
    from kvsan.policy import headline

    print(f"kvsan: the report cannot be shown as it should: {type(error).__name__}: {error}", file=sys.stderr)
    for finding in report.findings:
        print(headline(finding), file=sys.stderr)


def _console(options: Options) -> Console:
    from rich.console import Console

    from kvsan.reporters.terminal import PIPE_WIDTH

    colored = {"always": True, "never": False}.get(options.color)
    width = options.width or (None if sys.stderr.isatty() else PIPE_WIDTH)
    return Console(
        file=sys.stderr, width=width, force_terminal=True if colored else None, no_color=colored is False or None,
        highlight=False, markup=False, emoji=False,
    )  # fmt: skip


def _file_console(stream: TextIO, options: Options) -> Console:
    from rich.console import Console

    from kvsan.reporters.terminal import PIPE_WIDTH

    return Console(
        file=stream, width=options.width or PIPE_WIDTH, force_terminal=False, color_system=None,
        highlight=False, markup=False, emoji=False,
    )  # fmt: skip
