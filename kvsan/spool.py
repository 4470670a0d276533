"""The spool folder: every process appends what it finds to a file of its own, and the wrapper reads them all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

from kvsan.announce import announce, append, check_private
from kvsan.findings import Failure, Finding, Joined, PoolTotals
from kvsan.serialize import to_dict
from kvsan.spool_reader import ProcessLog, read_processes, read_spool

__all__ = ["ProcessLog", "SpoolWriter", "make_spool", "read_processes", "read_spool"]

QUEUE_LIMIT = 10_000
"""Items that may wait for the thread; what counts less is dropped at this number, findings at twice as many."""

PREFIX = "kvsan-"
"""How the name of a run's spool folder begins."""

_MINOR = frozenset({"joined", "duplicate", "suppressed"})
_STOP, _FLUSH = "stop", "flush"

Item = tuple[str, Any]


def make_spool(parent: str | None = None) -> str:
    """A new spool folder, private to the user."""
    return tempfile.mkdtemp(prefix=PREFIX, dir=parent)


class SpoolWriter:
    """A sink that writes to the process's own file in the spool folder, on a thread of its own.

    No call blocks: a bounded queue takes what is told, and what does not fit is dropped and counted. The thread starts
    with the first item, writes a finding as soon as it sees it, stops before a fork and starts anew after it, on either
    side; a forked child writes to a file of its own. Raises PermissionError for a folder that is not private.
    """

    promise = " (report at exit)"

    # `announced`: somebody else writes the first line of this process and of the children that it forks.
    def __init__(self, directory: str, *, announced: bool = False) -> None:
        check_private(directory)
        self.directory = directory
        self._announced = announced
        self._reset()
        if not announced:
            announce(directory, "start")
        _writers.add(self)

    def _reset(self) -> None:
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._told_dropped = 0
        self._repeats: Counter[str] = Counter()
        self._rules: Counter[str] = Counter()
        self._complained = False

    def finding(self, finding: Finding) -> None:
        """See `Sink`."""
        self._put("finding", finding)

    def joined(self, token: str, joined: Joined) -> None:
        """See `Sink`."""
        self._put("joined", (token, joined))

    def duplicate(self, token: str, count: int = 1) -> None:
        """See `Sink`."""
        self._put("duplicate", (token, count))

    def suppressed(self, rule: str, count: int = 1) -> None:
        """See `Sink`."""
        self._put("suppressed", (rule, count))

    def failure(self, failure: Failure) -> None:
        """See `Sink`."""
        self._put("failure", failure)

    def totals(self, pools: Sequence[PoolTotals], events: int = 0) -> None:
        """See `Sink`."""
        self._put("totals", (tuple(pools), events))

    def note(self, text: str) -> None:
        """See `Sink`."""
        self._put("note", text)

    def lacks(self, text: str) -> None:
        """See `Sink`."""
        self._put("lacks", text)

    def active(self, name: str) -> None:
        """This process has a sanitizer from here on; `name` is what reports call the process, may be empty."""
        self._put("active", name)

    def say(self, line: str) -> None:
        """See `Sink`."""
        self._put("say", line)

    def flush(self, timeout: float = 2.0) -> bool:
        """See `Sink`."""
        written = threading.Event()
        self._put(_FLUSH, written)
        return written.wait(timeout)

    def close(self, timeout: float = 2.0) -> bool:
        """See `Sink`."""
        self._put("end", None)
        return self.flush(timeout)

    def _put(self, kind: str, payload: Any) -> None:
        if self._queue.qsize() >= (QUEUE_LIMIT if kind in _MINOR else 2 * QUEUE_LIMIT) and kind != _STOP:
            self._dropped += 1
            return
        self._queue.put((kind, payload))  # reentrant: a signal handler may come in between
        if self._thread is None or not self._thread.is_alive():
            self._start()

    def _start(self) -> None:
        if not self._starting.acquire(blocking=False):
            return  # the thread that is being started will find the item
        try:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="kvsan-spool", daemon=True)
                self._thread.start()
        except RuntimeError:  # the interpreter shuts down and starts no thread any more
            self._thread = None
            while not self._queue.empty():
                self._write(self._batch(0.0))
        finally:
            self._starting.release()

    def _run(self) -> None:
        while self._write(self._batch(1.0 if self._repeats or self._rules else None)):
            pass

    def _batch(self, timeout: float | None) -> list[Item]:
        """What waits in the queue; with a timeout perhaps nothing."""
        try:
            batch = [self._queue.get(timeout=timeout)]
        except Empty:
            return []
        while len(batch) < 256 and not self._queue.empty():
            batch.append(self._queue.get())
        return batch

    def _write(self, batch: list[Item]) -> bool:
        """Writes a batch; repeats are added up and written once a second. False: the thread is to stop."""
        lines: list[dict[str, Any]] = []
        done: list[threading.Event] = []
        go_on = True
        for kind, payload in batch:
            if kind == "duplicate":
                self._repeats[payload[0]] += payload[1]
            elif kind == "suppressed":
                self._rules[payload[0]] += payload[1]
            elif kind == "say":
                _stderr(payload)
            elif kind == _FLUSH:
                done.append(payload)
            elif kind == _STOP:
                go_on = False
            else:
                lines.append(_line(kind, payload))
        if not batch or done or not go_on or any(line["type"] == "end" for line in lines):
            lines[:0] = self._counted()
        try:
            if lines:
                append(self.directory, "".join(json.dumps(line) + "\n" for line in lines))
        except (OSError, ValueError, TypeError) as error:
            self._dropped += len(lines)
            if not self._complained:
                self._complained = True
                _stderr(f"kvsan: what this process finds cannot be written to {self.directory}: {error}")
        for event in done:
            event.set()
        return go_on

    def _counted(self) -> list[dict[str, Any]]:
        """What was only counted so far, as lines."""
        lines: list[dict[str, Any]] = [{"type": "duplicate", "token": t, "count": n} for t, n in self._repeats.items()]
        lines += [{"type": "suppressed", "rule": rule, "count": n} for rule, n in self._rules.items()]
        if self._dropped > self._told_dropped:
            lines.append({"type": "dropped", "count": self._dropped})
            self._told_dropped = self._dropped
        self._repeats.clear()
        self._rules.clear()
        return lines

    def _before_fork(self) -> None:
        # A thread that lives through a fork makes Python warn, and may hold a lock that the child then never gets.
        if self._thread is not None and self._thread.is_alive():
            self._put(_STOP, None)
            self._thread.join(1.0)

    def _after_fork_in_child(self) -> None:
        self._reset()
        if not self._announced:
            try:
                announce(self.directory, "fork")
            except OSError as error:
                _stderr(f"kvsan: a forked process cannot write to {self.directory}: {error}")


def _line(kind: str, payload: Any) -> dict[str, Any]:
    line: dict[str, Any] = {"type": kind, "t": time.time_ns()}
    if kind in ("finding", "failure"):
        line[kind] = to_dict(payload, defaults=False)
    elif kind == "joined":
        line["token"], line["joined"] = payload[0], to_dict(payload[1])
    elif kind == "totals":
        line["pools"], line["events"] = to_dict(payload[0]), payload[1]
    elif kind in ("note", "lacks"):
        line["text"] = payload
    elif kind == "active":
        line["name"] = payload
    return line


def _stderr(line: str) -> None:
    with contextlib.suppress(OSError):  # the engine may have closed it
        os.write(2, (line + "\n").encode("utf-8", "backslashreplace"))


_writers: weakref.WeakSet[SpoolWriter] = weakref.WeakSet()


def _before_fork() -> None:
    for writer in list(_writers):
        writer._before_fork()


def _after_fork_in_child() -> None:
    for writer in list(_writers):
        writer._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
