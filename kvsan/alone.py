"""An engine that kvsan is a plugin of, without `kvsan run` around it: what is found goes to standard error at once.

Engines end their workers by SIGKILL, so that nothing may wait for an end; every finding is told whole as it comes.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING

from kvsan.findings import Failure, Finding, Report
from kvsan.options import Options
from kvsan.sinks import Collector

if TYPE_CHECKING:
    from kvsan.hooks.sanitizer import Sanitizer

QUEUE_LIMIT = 1000
"""Findings that may wait to be shown; what comes on top is in the totals only."""


def start() -> Sanitizer:
    """Starts this process's sanitizer with the options of the environment. Raises OptionError for wrong ones."""
    from kvsan import hooks

    sink = Teller()
    sanitizer = hooks.start(Options.from_environment(os.environ, os.getcwd()), sink)
    atexit.register(_end, sink)
    return sanitizer


def _end(sink: Teller) -> None:
    from kvsan import hooks

    hooks.stop()
    sink.flush(2.0)


class Teller(Collector):
    """Shows every finding, failure and note on standard error, on a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: SimpleQueue[Finding | str | threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def finding(self, finding: Finding) -> None:
        """See `Sink`."""
        super().finding(finding)
        self._put(finding)

    def failure(self, failure: Failure) -> None:
        """See `Sink`."""
        super().failure(failure)
        self._put(f"kvsan: pid {failure.pid}: {failure.where}: {failure.error}; {failure.cost}")

    def note(self, text: str) -> None:
        """See `Sink`."""
        super().note(text)
        self._put(f"kvsan: {text}")

    def say(self, line: str) -> None:
        """See `Sink`; the finding itself follows, so its headline alone is not needed."""

    def flush(self, timeout: float = 2.0) -> bool:
        """See `Sink`."""
        shown = threading.Event()
        self._put(shown)
        return shown.wait(timeout)

    close = flush

    def _put(self, item: Finding | str | threading.Event) -> None:
        if self._queue.qsize() < QUEUE_LIMIT or isinstance(item, threading.Event):
            self._queue.put(item)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="kvsan-teller", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
            elif isinstance(item, str):
                print(item, file=sys.stderr, flush=True)
            else:
                _show(replace(item, pid=os.getpid()))


def _show(finding: Finding) -> None:
    from kvsan.policy import headline
    from kvsan.reporters import finding as layout
    from kvsan.reporters.page import Page
    from kvsan.reporters.places import Places
    from kvsan.reporters.terminal import PIPE_WIDTH, console_for

    try:
        page = Page(PIPE_WIDTH)
        layout.draw(page, finding, Places.of(Report(findings=(finding,)), os.getcwd()), 1, 1)
        console = console_for(sys.stderr)
        with console.capture() as shown:
            page.print(console)
        print(shown.get(), end="", file=sys.stderr, flush=True)  # at once: other ranks may find the same just now
    except Exception as error:
        print(f"{headline(finding)} (cannot be shown whole: {type(error).__name__}: {error})", file=sys.stderr)
