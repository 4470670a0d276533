"""Answers `kvsan status`: a thread that looks for a question now and then, and tells who holds what.

It takes the tracker's lock for as long as counting takes, and nothing else of the engine's.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from contextlib import suppress

from kvsan import asking
from kvsan.asking import Answer, ThreadStack
from kvsan.depot import frames_from
from kvsan.holdings import Holdings

from .sanitizer import Sanitizer, is_own

LOOK_SECONDS = 0.25
LOCK_SECONDS = 2.0
"""How long an event may be in the making before the answer says so in place of what is held."""
DEPTH = 40
_LIBRARY = os.path.dirname(os.path.abspath(threading.__file__)) + os.sep
_INSTALLED = (os.path.join(_LIBRARY, "site-packages"), os.path.join(_LIBRARY, "dist-packages"))


class Answers:
    """Answers for one sanitizer until `end`. A forked child answers once it has told something of its own."""

    def __init__(self, sanitizer: Sanitizer, directory: str) -> None:
        self._sanitizer = sanitizer
        self._directory = directory
        self._told_before = -1
        self._offered = False
        self._answered: asking.Mark | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        _answering.add(self)
        self.begin()

    def begin(self) -> None:
        """Starts the thread, or starts it again after `end`."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._ended,), name="kvsan-answers", daemon=True)
        with suppress(RuntimeError):  # the process may have no further thread, or is at its end
            self._thread.start()

    def begin_in_child(self) -> None:
        """Starts anew after a fork: what the parent holds is the parent's to tell."""
        self._told_before, self._offered = self._sanitizer.told, False
        self.begin()

    def end(self) -> None:
        """Ends the thread."""
        self._ended.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(1.0)
        self._thread = None

    @property
    def running(self) -> bool:
        """Has it begun, and not ended?"""
        return self._thread is not None

    def _run(self, ended: threading.Event) -> None:
        while True:
            with suppress(OSError):  # a full disk may have room again; of a run that is over nobody asks any more
                self._look()
            if ended.wait(LOOK_SECONDS):
                return

    def _look(self) -> None:
        if self._sanitizer.told == self._told_before:
            return
        if not self._offered:
            asking.offer(self._directory)
            self._offered = True
        asked = asking.mark(self._directory)
        if asked is not None and asked != self._answered:
            asking.answer(self._directory, answer_of(self._sanitizer))
            self._answered = asked


def answer_of(sanitizer: Sanitizer) -> Answer:
    """What this process has to say now."""
    holdings, error = Holdings(), ""
    try:
        holdings = sanitizer.holdings(LOCK_SECONDS)
    except Exception as failed:
        error = f"{type(failed).__name__}: {failed}"
    return Answer(
        time_ns=time.time_ns(), pid=os.getpid(), level=sanitizer.level, events=sanitizer.events,
        quiet_ns=time.monotonic_ns() - sanitizer.last_event_ns, waiting=sanitizer.waiting, watching=sanitizer.watching,
        holdings=holdings, threads=_threads(), error=error,
    )  # fmt: skip


def _threads() -> tuple[ThreadStack, ...]:
    """Where the engine's threads are; the main one comes first."""
    innermost = sys._current_frames()
    found = []
    for thread in threading.enumerate():
        if thread.ident in innermost and not thread.name.startswith("kvsan-"):
            frames = [frame for frame in frames_from(innermost[thread.ident], DEPTH) if not is_own(frame.file)]
            while len(frames) > 1 and _is_standard(frames[-1].file):  # how threads and processes begin
                frames.pop()
            found.append(ThreadStack(thread.name, tuple(frames)))
    return tuple(found)


def _is_standard(file: str) -> bool:
    """Is this a file of Python's own library, or the command of a spawned process?"""
    return file == "<string>" or (file.startswith(_LIBRARY) and not file.startswith(_INSTALLED))


_answering: weakref.WeakSet[Answers] = weakref.WeakSet()
_resting: list[Answers] = []
"""Those that a fork has stopped."""


def _before_fork() -> None:
    # A thread that lives through a fork makes Python warn, and may hold a lock that the child then never gets.
    stopped = [each for each in _answering if each.running]
    for each in stopped:
        each.end()
    _resting.extend(stopped)


def _after_fork_in_parent() -> None:
    while _resting:
        _resting.pop().begin()


def _after_fork_in_child() -> None:
    while _resting:
        _resting.pop().begin_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
