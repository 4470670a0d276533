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
SLICE_SECONDS = 0.05
"""How long the thread waits at a time before it looks whether it is to end."""
DEPTH = 40
_LIBRARY = os.path.dirname(os.path.abspath(threading.__file__)) + os.sep
_INSTALLED = (os.path.join(_LIBRARY, "site-packages"), os.path.join(_LIBRARY, "dist-packages"))


class Answers:
    """Answers for one sanitizer until `end`. A forked child answers once it has taken an event of its own."""

    def __init__(self, sanitizer: Sanitizer, directory: str) -> None:
        self._sanitizer = sanitizer
        self._directory = directory
        self._identity = _identity(directory)
        self._events_before = -1
        self._offered = False
        self._answered: asking.Mark | None = None
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
        self._events_before, self._offered = self._sanitizer.events, False
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
        # The folder goes with its kvsan run, and somebody else may then make one of that name.
        while self._identity is not None and _identity(self._directory) == self._identity:
            with suppress(Exception):  # whoever asked is told of no answer; the engine is not concerned
                self._look(ended)
            if ended.wait(LOOK_SECONDS):
                return

    def _look(self, ended: threading.Event) -> None:
        if self._sanitizer.events == self._events_before:
            return
        if not self._offered:
            self._offered = True
            asking.offer(self._directory)
        asked = asking.mark(self._directory)
        if asked is not None and asked != self._answered:
            self._answered = asked  # whatever comes of it: once
            asking.answer(self._directory, _answer(self._sanitizer, ended))


def _identity(directory: str) -> tuple[int, int] | None:
    try:
        status = os.stat(directory)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _answer(sanitizer: Sanitizer, ended: threading.Event) -> Answer:
    """What this process has to say now."""
    now, quiet_ns = time.time_ns(), time.monotonic_ns() - sanitizer.last_event_ns
    holdings, error = Holdings(), ""
    try:
        holdings = _holdings(sanitizer, ended)
    except Exception as failed:
        error = f"{type(failed).__name__}: {failed}"
    threads: tuple[ThreadStack, ...] = ()
    with suppress(Exception):  # threads are somebody else's objects
        threads = _threads()
    return Answer(
        time_ns=now, pid=os.getpid(), level=sanitizer.level, events=sanitizer.events, quiet_ns=quiet_ns,
        waiting=sanitizer.waiting, watching=sanitizer.watching, holdings=holdings, threads=threads, error=error,
    )  # fmt: skip


def _holdings(sanitizer: Sanitizer, ended: threading.Event) -> Holdings:
    """Raises TimeoutError if an event is in the making for too long; a fork, or the end, need not wait for that."""
    until = time.monotonic() + LOCK_SECONDS
    while not ended.is_set() and time.monotonic() < until:
        with suppress(TimeoutError):
            return sanitizer.holdings(SLICE_SECONDS)
    raise TimeoutError(f"an event has been in the making for {LOCK_SECONDS:g} s")


def _threads() -> tuple[ThreadStack, ...]:
    """Where the engine's threads are; the main one comes first."""
    found = []
    innermost = sys._current_frames()
    try:
        del innermost[threading.get_ident()]  # this frame, which refers to all of them: a cycle that only the collector
        for thread in threading.enumerate():  # would end, and what the engine has in its frames would live till then
            if thread.ident in innermost and not str(thread.name).startswith("kvsan-"):
                frames = [each for each in frames_from(innermost[thread.ident], DEPTH) if not is_own(each.file)]
                while len(frames) > 1 and _is_standard(frames[-1].file):  # how threads and processes begin
                    frames.pop()
                found.append(ThreadStack(str(thread.name), tuple(frames)))
    finally:
        innermost.clear()
    return tuple(found)


def _is_standard(file: str) -> bool:
    """Is this a file of Python's own library, or the command of a spawned process?"""
    return file == "<string>" or (file.startswith(_LIBRARY) and not file.startswith(_INSTALLED))


_answering: weakref.WeakSet[Answers] = weakref.WeakSet()
_resting: list[Answers] = []
"""Those that a fork has stopped."""
_forking = threading.RLock()
"""Held from before a fork until after it: several threads may fork at once, and a signal's handler within a fork."""


def _before_fork() -> None:
    # A thread that lives through a fork makes Python warn, and may hold a lock that the child then never gets.
    _forking.acquire()
    stopped = [each for each in _answering if each.running]
    for each in stopped:
        each.end()
    _resting.extend(stopped)


def _after_fork_in_parent() -> None:
    while _resting:
        _resting.pop().begin()
    _forking.release()


def _after_fork_in_child() -> None:
    global _forking
    _forking = threading.RLock()
    while _resting:
        _resting.pop().begin_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
