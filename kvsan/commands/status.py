"""`kvsan status`: who holds what in servers that run now."""

from __future__ import annotations

import argparse
import glob
import json
import os
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass

from kvsan import asking
from kvsan.announce import check_private
from kvsan.asking import Answer
from kvsan.errors import KvsanError
from kvsan.process_tree import ancestors, is_alive, spool_of
from kvsan.reporters.escape import PROSE_LIMIT, visible
from kvsan.serialize import SerializeError, to_dict
from kvsan.spool import PREFIX, ProcessLog, read_processes

SILENT = 1
OWNERS = 20
"""How many owners are shown, if not all."""
_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Asked:
    """A living process with a sanitizer, the folder of its run, and when that was asked."""

    log: ProcessLog
    spool: str
    time_ns: int


class Status:
    """Show who holds what in a server that runs under kvsan run.

    PID is that of the engine's process, of the kvsan run around it, or of one
    between; without it, every run of this user is shown. Owners that are over
    and still hold something come first. A thread of kvsan's own answers; the
    engine is kept waiting for as long as its owners take to be counted.

    Exit status: 0 all have answered, 1 a process did not, 2 there is nobody to
    ask.
    """

    name = "status"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("pid", nargs="?", type=int, metavar="PID", help="a process of the run (default: all runs)")
        parser.add_argument("--stacks", action="store_true", help="also where every thread of the engine is")
        parser.add_argument("--all", action="store_true", help="all owners, not the first 20 only")
        parser.add_argument("--format", choices=("text", "json"), default="text", help="(default: text)")
        parser.add_argument(
            "--wait", type=_seconds, default=5.0, metavar="S", help="seconds for an answer (default: 5)"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Asks, waits for the answers, and prints them."""
        asked = [each for spool, logs in _engines(args.pid).items() for each in _ask(spool, logs)]
        answers = _answers(asked, args.wait)
        given = [(each.log, found) for each in asked if isinstance(found := answers.get(each.log.pid), Answer)]
        silent = [each for each in asked if isinstance(answers.get(each.log.pid), str)]
        if not given and not silent:
            raise KvsanError("the engine has ended while it was asked")
        if args.format == "json":
            processes = [{"name": log.name, "argv": [*log.argv], **to_dict(answer)} for log, answer in given]
            json.dump({"kvsan_status": 1, "processes": processes, "silent": [e.log.pid for e in silent]}, sys.stdout)
            print()
        elif given:
            _show(given, None if args.all else OWNERS, args.stacks)
        for each in silent:
            print(f"kvsan: {_label(each.log)} {answers[each.log.pid]}", file=sys.stderr)
        return SILENT if silent else 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"a number of seconds, more than 0, not {text!r}")
    return seconds


def _engines(pid: int | None) -> dict[str, list[ProcessLog]]:
    """The living processes with a sanitizer, by the folder of their run: `pid` alone if it is one, else those of the
    run that it belongs to or is (None: of all runs)."""
    runs = {spool: _living(spool) for spool in _spools(pid)}
    if pid is not None:
        runs = {spool: logs for spool, logs in runs.items() if _belongs(pid, spool, {log.pid for log in logs})}
    wrappers = [wrapper for spool in runs if (wrapper := asking.wrapper_of(spool)) is not None]
    if not wrappers and not any(runs.values()):
        what = f"pid {pid} belongs to no kvsan run" if pid is not None else "no kvsan run of this user is going on"
        looked = os.path.join(tempfile.gettempdir(), f"{PREFIX}*")
        raise KvsanError(f"{what} (looked for {looked}); start a server with kvsan run -- COMMAND")
    engines = {spool: [log for log in logs if log.active and not log.ended] for spool, logs in runs.items()}
    if not any(engines.values()):
        labels = [_label(log) for logs in runs.values() for log in logs]
        labels = labels or [f"the kvsan run with pid {wrapper}" for wrapper in wrappers]
        raise KvsanError(f"no engine was seen so far in {', '.join(labels)}")
    alone = {spool: [log for log in logs if log.pid == pid] for spool, logs in engines.items()}
    return alone if any(alone.values()) else engines


def _belongs(pid: int, spool: str, living: set[int]) -> bool:
    """Is this the run's wrapper, one of its living Python processes, or one between those?"""
    wrapper = asking.wrapper_of(spool)
    if pid == wrapper or pid in living or spool == spool_of(pid):
        return True
    return wrapper in ancestors(pid) and any(pid in ancestors(each) for each in living)


def _spools(pid: int | None) -> list[str]:
    """The folders of this user's runs, and of the run that `pid` says it belongs to."""
    found = glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{PREFIX}*"))
    if pid is not None and (own := spool_of(pid)) is not None:
        found.append(own)
    return [spool for spool in dict.fromkeys(found) if _private(spool)]


def _private(spool: str) -> bool:
    try:
        check_private(spool)
    except OSError:
        return False
    return True


def _living(spool: str) -> list[ProcessLog]:
    try:
        return [log for log in read_processes(spool) if is_alive(log.pid, log.start)]
    except OSError:  # the run has ended just now
        return []


def _label(log: ProcessLog) -> str:
    return visible(log.label, PROSE_LIMIT)


def _ask(spool: str, logs: list[ProcessLog]) -> list[Asked]:
    """Asks the processes of one run; nobody if it has ended just now."""
    try:
        asked = asking.ask(spool) if logs else 0
    except OSError:
        return []
    return [Asked(log, spool, asked) for log in logs]


def _answers(asked: list[Asked], seconds: float) -> dict[int, Answer | str]:
    """By process, what was answered within so many seconds, or why nothing was; without those that have ended."""
    until = time.monotonic() + seconds
    answers: dict[int, Answer | str] = {}
    waiting = asked
    while waiting and time.monotonic() < until:
        for each in waiting:
            try:
                given = asking.answer_of(each.spool, each.log, each.time_ns)
            except SerializeError as error:
                answers[each.log.pid] = f"answers in the words of another kvsan: {error}"
            else:
                answers |= {each.log.pid: given} if given is not None else {}
        waiting = [e for e in waiting if e.log.pid not in answers and is_alive(e.log.pid, e.log.start)]
        if waiting:
            time.sleep(_PAUSE)
    for each in waiting:
        answers[each.log.pid] = (
            f"did not answer within {seconds:g} s: it is stopped, its kvsan does not know the question, or it is in a "
            f"call that lets no other thread run (py-spy dump --pid {each.log.pid} shows which)"
        )
    return answers


def _command(argv: tuple[str, ...]) -> str:
    """The command line, without where its interpreter lies."""
    return shlex.join([os.path.basename(argv[0]), *argv[1:]]) if argv else ""


def _show(given: list[tuple[ProcessLog, Answer]], most: int | None, threads: bool) -> None:
    from kvsan.reporters.answer import draw
    from kvsan.reporters.page import Page
    from kvsan.reporters.terminal import console_for

    console = console_for(sys.stdout)
    page = Page(console.width, terminal=console.is_terminal)
    for log, answer in given:
        draw(page, answer, log.name or _command(log.argv), most=most, threads=threads, root=os.getcwd())
    page.print(console)
