"""How a living process is asked who holds what: a question and the answers to it are files in the spool folder.

The question is one file, which whoever asks replaces; processes with a sanitizer look for it now and then, and say so
in their logs. Each answers in a file of its own, which says what was so at a time after the question.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass, field

from kvsan.announce import append, check_private, spool_file, start_of
from kvsan.findings import Frame
from kvsan.holdings import Holdings
from kvsan.serialize import from_dict, to_dict
from kvsan.spool_reader import ProcessLog

QUESTION = "question"
WRAPPER = "wrapper"
ANSWER = ".answer"

Mark = tuple[int, int]
"""What changes with every question."""


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """Where a thread of the engine is, innermost frame first."""

    name: str
    stack: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One process at `time_ns` (since the epoch).

    `quiet_ns`: since its last event; `waiting`: events that wait for slot ids from a device; `watching`: is what the
    engine does still told? `error`: why the holdings are missing.
    """

    time_ns: int
    pid: int
    level: str
    events: int
    quiet_ns: int
    waiting: int
    watching: bool
    holdings: Holdings = field(default_factory=Holdings)
    threads: tuple[ThreadStack, ...] = ()
    error: str = ""


def name_wrapper(directory: str) -> None:
    """The calling process is the kvsan run that the folder belongs to. Raises OSError."""
    pid = os.getpid()
    _replace(os.path.join(directory, WRAPPER), f"{pid} {start_of(pid) or 0}")


def wrapper_of(directory: str) -> int | None:
    """The living kvsan run that the folder belongs to; None if it has ended, or never said so."""
    try:
        with open(os.path.join(directory, WRAPPER), encoding="ascii") as file:
            pid, start = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return pid if start_of(pid) == start else None


def mark(directory: str) -> Mark | None:
    """The mark of the last question; None if there was none."""
    try:
        status = os.stat(os.path.join(directory, QUESTION))
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def offer(directory: str) -> None:
    """The calling process looks for questions from here on. Raises OSError."""
    append(directory, '{"type": "answers"}\n')


def ask(directory: str) -> int:
    """Asks every process of the folder; the time (ns since the epoch) that answers to it come after. Raises OSError."""
    check_private(directory)
    asked = time.time_ns()
    _replace(os.path.join(directory, QUESTION), "")
    return asked


def answer(directory: str, given: Answer) -> None:
    """Leaves the calling process's answer. Raises OSError."""
    name = spool_file(directory).removesuffix(".jsonl") + ANSWER
    _replace(name, json.dumps(to_dict(given)))


def answer_of(directory: str, log: ProcessLog, asked: int) -> Answer | None:
    """The process's answer to the question asked then, once it is there. Raises SerializeError for one of another
    kvsan."""
    try:
        with open(os.path.join(directory, f"{log.pid}-{log.start}{ANSWER}"), encoding="utf-8") as file:
            given = from_dict(Answer, json.load(file))
    except (OSError, ValueError):
        return None
    return given if given.time_ns >= asked else None


def _replace(path: str, text: str) -> None:
    """Writes a whole file, so that nobody reads half of it."""
    fd, name = tempfile.mkstemp(dir=os.path.dirname(path))
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
