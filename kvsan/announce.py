"""How a process shows that it was entered: the first line of its own file in the spool folder.

Runs at the start of every Python process of a tree, so it imports nothing that the interpreter has not loaded.
"""

from __future__ import annotations

import os
import sys
import time

_started: dict[int, int] = {}


def start_of(pid: int) -> int | None:
    """When the process began, in ticks since boot, which together with its id names it for ever; None: no such one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def spool_file(directory: str) -> str:
    """The file of the calling process."""
    pid = os.getpid()
    if pid not in _started:
        _started[pid] = start_of(pid) or time.time_ns()
    return os.path.join(directory, f"{pid}-{_started[pid]}.jsonl")


def check_private(directory: str) -> None:
    """Raises PermissionError unless the folder belongs to this user and nobody else can look into it."""
    status = os.lstat(directory)
    if status.st_uid != os.geteuid():
        raise PermissionError(f"the spool folder {directory} belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & 0o170077 != 0o040000:
        raise PermissionError(f"the spool folder {directory} is open to others, or no folder")


def append(directory: str, text: str) -> None:
    """Adds whole lines to the process's file. The file is closed again at once: engines close descriptors they do not
    know, and reuse the numbers."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    fd = os.open(spool_file(directory), flags, 0o600)
    try:
        data = text.encode("utf-8", "surrogatepass")
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def announce(directory: str, how: str) -> None:
    """Writes the process's first line. `how`: start or fork."""
    argv = ", ".join(map(quote, getattr(sys, "orig_argv", sys.argv)))
    version = ".".join(map(str, sys.version_info[:3]))
    append(
        directory,
        f'{{"type": "process", "pid": {os.getpid()}, "ppid": {os.getppid()}, "how": {quote(how)}, "argv": [{argv}], '
        f'"executable": {quote(sys.executable or "")}, "version": {quote(version)}, "t": {time.time_ns()}}}\n',
    )


def announce_child(directory: str, pid: int, argv: list[str]) -> None:
    """Leaves the name of a program that this process has started, so that one that is not entered is missed."""
    start = start_of(pid)
    if start is None:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(os.path.join(directory, f"{pid}-{start}.child"), flags, 0o600)
    try:
        os.write(fd, f"[{', '.join(map(quote, argv))}]".encode())
    finally:
        os.close(fd)


def is_python(executable: str) -> bool:
    """Whether the program is an interpreter, by its name: python, python3.11, pypy3, ..."""
    name = executable.rpartition("/")[2]
    rest = name.removeprefix("python") if name.startswith("python") else name.removeprefix("pypy")
    return rest != name and not rest.strip("0123456789.t")


def quote(text: str) -> str:
    """A JSON string, without loading the json package."""
    try:
        from _json import encode_basestring_ascii
    except ImportError:
        from json.encoder import py_encode_basestring_ascii as encode_basestring_ascii
    return str(encode_basestring_ascii(text))
