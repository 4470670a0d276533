"""Records a process's events to a trace, on a thread of its own: a plugin of the hooks' manager."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, Protocol, TextIO

import pluggy

from ..events import EVENT_CLASSES, Event
from ..ranks import Rank
from .binary import BinaryWriter
from .text import TextWriter

hookimpl = pluggy.HookimplMarker("kvsan")

WAITING = 200_000
"""Events that may wait to be written. A trace with a hole would be judged wrongly, so recording ends when more
would."""


class Recorded(Protocol):
    """What a recorder asks of the sanitizer whose events it writes."""

    rank: Rank | None

    @property
    def level(self) -> str:
        """What is judged, and so what it is told whole: rows, slots or full."""

    def site_of(self, stack: int) -> str | None:
        """The innermost engine frame of a stack, in words."""


class Recorder:
    """Appends every event to `path`: text if it ends in .jsonl, binary else.

    The header is written with the first event. It says up to which level the events are whole and, if the process is
    one of several ranks, which of which group: as the sanitizer was told (`set_rank`), or else as the environment
    variables KVSAN_GROUP and KVSAN_RANK say.

    Raises OSError if the file cannot be made.
    """

    def __init__(self, path: str, sanitizer: Recorded) -> None:
        self.path = path
        self._sanitizer = sanitizer
        self._queue: SimpleQueue[Event | None] = SimpleQueue()
        self._ended = ""
        self._stream: TextIO | BinaryIO
        self._begin: Callable[..., TextWriter | BinaryWriter]
        if path.endswith(".jsonl"):
            text = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
            self._stream, self._begin = text, partial(TextWriter, text)
        else:
            binary = open(path, "wb")  # noqa: SIM115 (closed by `close`)
            self._stream, self._begin = binary, partial(BinaryWriter, binary)
        self._thread = threading.Thread(target=self._run, name="kvsan-recorder", daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=self._after_fork)

    def take(self, event: Event) -> None:
        """Queues an event."""
        if self._ended:
            return
        if self._queue.qsize() >= WAITING:
            self._ended = f"{self.path}: recording ended at event {event.at}, because the disk was too slow"
            return
        self._queue.put(event)

    def close(self) -> list[str]:
        """Writes what waits and closes the file; returns sentences that a person must read."""
        ended, self._ended = self._ended, self._ended or "closed"
        self._queue.put(None)
        self._thread.join(5.0)
        if self._thread.is_alive() and not ended:
            return [f"{self.path}: recording ended early, because the disk was too slow"]
        return [self._ended] if self._ended not in ("closed", "forked") else []

    def _run(self) -> None:
        writer: TextWriter | BinaryWriter | None = None
        try:
            while True:
                try:
                    event = self._queue.get(timeout=0.2)
                except Empty:
                    self._stream.flush()
                    continue
                if writer is None:
                    writer = self._begin(**_header(self._sanitizer))
                if event is None:
                    if self._ended == "closed":
                        writer.end()
                    return
                if event.site is None and event.stack:
                    event.site = self._sanitizer.site_of(event.stack)
                writer.write(event)
        except Exception as error:
            self._ended = f"{self.path}: recording ended: {error}"
        finally:
            try:
                self._stream.close()
            except OSError as error:
                self._ended = f"{self.path}: recording ended: {error}"

    def _after_fork(self) -> None:
        """The writing thread exists in the parent alone, and so does the file's story: what waits in this copy of the
        buffer must not be written a second time when this process ends."""
        self._ended = "forked"
        if not self._stream.closed:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


def _header(sanitizer: Recorded) -> dict[str, Any]:
    """The header's fields; without group and rank where one of them is not known."""
    rank = sanitizer.rank
    if rank is None:
        group, number = os.environ.get("KVSAN_GROUP"), os.environ.get("KVSAN_RANK", "")
        rank = Rank(group, int(number)) if group is not None and number.isdecimal() else None
    fields = {"engine": "", "title": f"process {os.getpid()}", "level": sanitizer.level}
    return fields if rank is None else {**fields, "group": rank.group, "rank": rank.number}


def _add_hooks() -> None:
    for cls in EVENT_CLASSES:

        def implementation(self: Recorder, event: Event) -> None:
            self.take(event)

        implementation.__name__ = cls.hook
        implementation.__qualname__ = f"Recorder.{cls.hook}"  # pluggy takes `self` away where this says it is a method
        setattr(Recorder, cls.hook, hookimpl(implementation))


_add_hooks()
