"""The processes of a command's tree, as /proc shows them: which still run, and which Python process was not entered."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from dataclasses import dataclass

from kvsan.announce import is_python, start_of

_SETTLED_SECONDS = 0.5
"""A process this old has had the time to enter itself, or to become the program that it was forked for."""

_YOUNG_SECONDS = 3.0
"""For so long a process that has not entered itself may still do so."""

_DEEPEST = 100
"""More processes above one another are not followed."""

Key = tuple[int, int]
"""A process for ever: its id and when it began."""


@dataclass(slots=True)
class Sighting:
    """A Python process without a file in the spool, as it last looked."""

    argv: tuple[str, ...]
    executable: str
    parent_argv: tuple[str, ...]
    has_variables: bool
    declined: bool
    same_user: bool
    first: float
    last: float


class ProcessTree:
    """Looks at the tree of `root` from time to time.

    What lives shorter than the pause between stays unseen, unless an entered process started it and left word of it.
    """

    def __init__(self, root: int, spool: str) -> None:
        self._root = root
        self._spool = spool
        self._sightings: dict[Key, Sighting] = {}
        self._first: dict[Key, float] = {}
        self._seen: set[Key] = set()
        self.news = False
        """Whether the last look showed a process that the one before did not."""

    def look(self) -> None:
        """Notes every Python process of the tree that has no file in the spool."""
        entered = self._named(".jsonl")
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
        return {pid for pid, start in self._named(".jsonl") if is_alive(pid, start)}

    def unsettled(self) -> bool:
        """Whether some process may still have something to tell: it runs, or may be about to enter itself."""
        now = time.monotonic()
        for key in (self._named(".child") | self._sightings.keys()) - self._named(".jsonl"):
            if now - self._first.setdefault(key, now) < _YOUNG_SECONDS and is_alive(*key):
                return True
        return bool(self.running())

    def missed(self) -> list[str]:
        """A sentence for each Python process that was not entered, with the reason where it shows. One that asked for
        KVSAN=0 was left alone, and not missed."""
        entered = self._named(".jsonl")
        found: dict[Key, tuple[tuple[str, ...], str]] = {}
        for key in self._named(".child"):
            argv = self._word(key)
            found[key] = (
                argv,
                _reason_of_flags(argv) or "it ended before it got so far, or its site module does not run",
            )
        for key, seen in self._sightings.items():
            if seen.last - seen.first >= _SETTLED_SECONDS or seen.argv != seen.parent_argv:
                found[key] = seen.argv, _reason(seen)
            if seen.declined:
                found.pop(key, None)
        return [
            f"pid {key[0]} ({_shown(argv)}) was not entered: {reason}. kvsan saw nothing of it."
            for key, (argv, reason) in sorted(found.items())
            if key not in entered and not _only_says_something(argv)
        ]

    def _note(self, key: Key, argv: tuple[str, ...], parent_argv: tuple[str, ...], now: float) -> None:
        executable = _executable(key[0], argv)
        if not is_python(executable) or not argv:
            if argv:  # what was forked has become another program; a process that is just ending shows nothing
                self._sightings.pop(key, None)
            return
        earlier = self._sightings.get(key)
        environment = _environment(key[0])
        self._first.setdefault(key, now)
        self._sightings[key] = Sighting(
            argv,
            executable,
            parent_argv or (earlier.parent_argv if earlier else ()),
            b"KVSAN_SPOOL" in environment,
            environment.get(b"KVSAN") == b"0",
            _same_user(key[0]),
            earlier.first if earlier else now,
            now,
        )

    def _named(self, ending: str) -> set[Key]:
        """The processes that have a file with this ending in the spool."""
        try:
            names = os.listdir(self._spool)
        except OSError:
            return set()
        parts = [name[: -len(ending)].split("-") for name in names if name.endswith(ending)]
        return {(int(pid), int(start)) for pid, start in parts}

    def _word(self, key: Key) -> tuple[str, ...]:
        """The command line that the parent left of the process."""
        try:
            with open(os.path.join(self._spool, f"{key[0]}-{key[1]}.child"), encoding="utf-8") as file:
                return tuple(map(str, json.load(file)))
        except (OSError, ValueError, TypeError):
            return ()


def state_of(pid: int) -> str:
    """The process's state as /proc gives it: R, S, T (stopped), Z, ...; empty when there is none."""
    return next(iter(_stat(pid)), b"").decode()


def _reason(seen: Sighting) -> str:
    flags = _reason_of_flags(seen.argv)
    if flags:
        return flags
    if not seen.same_user:
        return "it runs as another user, who has no access to this run's findings"
    if not seen.has_variables:
        return "its environment was cleaned by a program that is not Python"
    if os.path.realpath(seen.executable) != os.path.realpath(sys.executable) or seen.executable != sys.executable:
        return f"kvsan is not installed where {seen.executable} looks with these flags"
    return "it ended before it got so far, or its site module does not run"


def _reason_of_flags(argv: tuple[str, ...]) -> str:
    return "-S keeps the interpreter from loading what enters it" if "S" in _interpreter_letters(argv) else ""


def _only_says_something(argv: tuple[str, ...]) -> bool:
    """python --version and the like run no program."""
    return bool(_interpreter_letters(argv) & {"V", "h", "?"}) or bool({"--version", "--help"} & set(argv[1:2]))


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


def _same_user(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return True


def spool_of(pid: int) -> str | None:
    """The spool folder that the process was started with; None if it was with none, or is another user's."""
    found = _environment(pid).get(b"KVSAN_SPOOL")
    return os.fsdecode(found) if found is not None else None


def ancestors(pid: int) -> list[int]:
    """The processes above this one, the nearest first."""
    found: list[int] = []
    while pid > 1 and len(found) < _DEEPEST:
        fields = _stat(pid)
        if not fields:
            break
        pid = int(fields[1])
        found.append(pid)
    return found


def is_alive(pid: int, start: int) -> bool:
    """Does the process that began then run, or wait?"""
    return start_of(pid) == start and state_of(pid) not in ("Z", "X", "")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(pid, f"task/{thread}/children").split())
    except OSError:
        pass  # it has ended
    return found


def _environment(pid: int) -> dict[bytes, bytes]:
    """What the process was started with; empty if it is another user's."""
    pairs = (part.partition(b"=") for part in _read(pid, "environ").split(b"\0"))
    return {name: value for name, _, value in pairs}


def _stat(pid: int) -> list[bytes]:
    """The fields of the process's line in /proc behind its name: its state, its parent, ...; empty without one."""
    return _read(pid, "stat").rpartition(b")")[2].split()


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
