"""The processes of a command's tree, as /proc shows them: which still run, and which Python process was not entered."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from dataclasses import dataclass

from kvsan.announce import start_of

_PYTHON = re.compile(r"(python|pypy)[\d.]*t?$")
_SETTLED_SECONDS = 0.5
"""A process this old has had the time to enter itself, or to become the program that it was forked for."""

Key = tuple[int, int]
"""A process for ever: its id and when it began."""


@dataclass(slots=True)
class Sighting:
    """A Python process without a file in the spool, as it last looked."""

    argv: tuple[str, ...]
    executable: str
    parent_argv: tuple[str, ...]
    has_variables: bool
    same_user: bool
    first: float
    last: float


class ProcessTree:
    """Looks at the tree of `root` from time to time; what lives shorter than the pause between may stay unseen."""

    def __init__(self, root: int, spool: str) -> None:
        self._root = root
        self._spool = spool
        self._sightings: dict[Key, Sighting] = {}
        self._seen: set[Key] = set()
        self.news = False
        """Whether the last look showed a process that the one before did not."""

    def look(self) -> None:
        """Notes every Python process of the tree that has no file in the spool."""
        entered = self._entered()
        now = time.monotonic()
        before = len(self._seen)
        pending: list[tuple[int, tuple[str, ...]]] = [(self._root, ())]
        pending += [(pid, ()) for pid, start in entered if start_of(pid) == start]
        visited: set[int] = set()
        while pending:
            pid, parent_argv = pending.pop()
            start = start_of(pid)
            if pid in visited or start is None:
                continue
            visited.add(pid)
            self._seen.add((pid, start))
            argv = _argv(pid)
            pending += [(child, argv) for child in _children(pid)]
            if (pid, start) not in entered:
                self._note((pid, start), argv, parent_argv, now)
        self.news = len(self._seen) > before

    def running(self) -> set[int]:
        """The entered processes that still run."""
        return {pid for pid, start in self._entered() if start_of(pid) == start and not _is_zombie(pid)}

    def missed(self) -> list[str]:
        """A sentence for each Python process that was not entered, with the reason where it shows."""
        entered = self._entered()
        return [
            f"pid {pid} ({_shown(seen.argv)}) was not entered: {_reason(seen)}. kvsan saw nothing of it."
            for (pid, start), seen in sorted(self._sightings.items())
            if (pid, start) not in entered
            and (seen.last - seen.first >= _SETTLED_SECONDS or seen.argv != seen.parent_argv)
        ]

    def _note(self, key: Key, argv: tuple[str, ...], parent_argv: tuple[str, ...], now: float) -> None:
        executable = _executable(key[0], argv)
        if not _PYTHON.match(os.path.basename(executable)) or not argv:
            if argv:  # what was forked has become another program; a process that is just ending shows nothing
                self._sightings.pop(key, None)
            return
        earlier = self._sightings.get(key)
        self._sightings[key] = Sighting(
            argv,
            executable,
            parent_argv or (earlier.parent_argv if earlier else ()),
            _has_variables(key[0]),
            _same_user(key[0]),
            earlier.first if earlier else now,
            now,
        )

    def _entered(self) -> set[Key]:
        try:
            names = os.listdir(self._spool)
        except OSError:
            return set()
        parts = [name[: -len(".jsonl")].split("-") for name in names if name.endswith(".jsonl")]
        return {(int(pid), int(start)) for pid, start in parts}


def state_of(pid: int) -> str:
    """The process's state as /proc gives it: R, S, T (stopped), Z, ...; empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def _reason(seen: Sighting) -> str:
    letters = _interpreter_letters(seen.argv)
    if "S" in letters:
        return "-S keeps the interpreter from loading what enters it"
    if not seen.same_user:
        return "it runs as another user, who has no access to this run's findings"
    if not seen.has_variables:
        return "its environment was cleaned by a program that is not Python, or it asked for KVSAN=0"
    if os.path.realpath(seen.executable) != os.path.realpath(sys.executable) or letters & {"E", "I", "s"}:
        return f"kvsan is not installed where {seen.executable} looks with these flags"
    return "it ended before it got so far, or its site module does not run"


def _interpreter_letters(argv: tuple[str, ...]) -> set[str]:
    """The interpreter's own one-letter options."""
    letters: set[str] = set()
    words = iter(argv[1:])
    for word in words:
        if not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):
            continue
        for place, letter in enumerate(word[1:], start=2):
            if letter in "cm":
                return letters
            letters.add(letter)
            if letter in "WXQ":  # with a value, here or in the next word
                if place == len(word):
                    next(words, None)
                break
    return letters


def _shown(argv: tuple[str, ...]) -> str:
    command = shlex.join(argv)
    return command if len(command) <= 100 else command[:100] + "…"


def _argv(pid: int) -> tuple[str, ...]:
    data = _read(pid, "cmdline")
    return tuple(os.fsdecode(part) for part in data.rstrip(b"\0").split(b"\0")) if data else ()


def _executable(pid: int, argv: tuple[str, ...]) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:  # another user's
        return argv[0] if argv else ""


def _has_variables(pid: int) -> bool:
    parts = _read(pid, "environ").split(b"\0")
    return any(part.startswith(b"KVSAN_SPOOL=") for part in parts) and b"KVSAN=0" not in parts


def _same_user(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return True


def _is_zombie(pid: int) -> bool:
    return state_of(pid) in ("Z", "X", "")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(pid, f"task/{thread}/children").split())
    except OSError:
        pass  # it has ended
    return found


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
