"""Keeps kvsan's variables in the environment of child processes, also where an entered parent cleans it.

A child that looks like Python is noted in the spool, so that one that was not entered all the same is missed there.
Patches the few functions through which Python starts programs. A child whose environment says `KVSAN=0` is left alone.
No audit hook: one could never be taken away again, and it would be called for every `sys._getframe`.
"""

from __future__ import annotations

import os
import sys

from kvsan.announce import announce_child, is_python

TYPE_CHECKING = False
if TYPE_CHECKING:  # not from typing, which would be loaded for this alone
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

NAMES = ("KVSAN", "KVSAN_OPTIONS", "KVSAN_SPOOL")


def site_folder(spool: str) -> str:
    """The folder in the spool that goes to the front of PYTHONPATH, for interpreters where kvsan is not installed."""
    return os.path.join(spool, "site")


def with_site(pythonpath: str | None, spool: str) -> str:
    """A PYTHONPATH that begins with the spool's site folder."""
    parts = [part for part in (pythonpath or "").split(os.pathsep) if part]
    folder = site_folder(spool)
    return os.pathsep.join([folder, *(part for part in parts if part != folder)])


def install(variables: dict[str, str]) -> None:
    """Patches os and _posixsubprocess, once in a process; children get the variables that their environment lacks."""
    _patch(os, "execv", lambda call: _exec(call, os.execve, variables))
    _patch(os, "execve", lambda call: _with_environment(call, 2, variables))
    for name in ("posix_spawn", "posix_spawnp"):
        if hasattr(os, name):
            _patch(os, name, lambda call: _with_environment(call, 2, variables))
    try:
        import _posixsubprocess
    except ImportError:
        return
    _patch(_posixsubprocess, "fork_exec", lambda call: _with_list(call, 5, variables))
    subprocess: Any = sys.modules.get("subprocess")
    if subprocess is not None and hasattr(subprocess, "_fork_exec"):
        subprocess._fork_exec = _posixsubprocess.fork_exec


def completed(env: Mapping[Any, Any], variables: dict[str, str]) -> Mapping[Any, Any]:
    """The environment itself when it has what it needs or declines, else a copy with the variables added."""
    present = {os.fsdecode(key): value for key, value in env.items() if os.fsdecode(key) in (*NAMES, "PYTHONPATH")}
    if all(name in present for name in NAMES) or declines(present):
        return env
    copy = {key: value for key, value in env.items() if os.fsdecode(key) not in (*NAMES, "PYTHONPATH")}
    pythonpath = os.fsdecode(present["PYTHONPATH"]) if "PYTHONPATH" in present else None
    copy.update(variables, PYTHONPATH=with_site(pythonpath, variables["KVSAN_SPOOL"]))
    return copy


def declines(env: Mapping[Any, Any]) -> bool:
    """Does the environment ask kvsan to leave the process alone?"""
    return any(os.fsdecode(key) == "KVSAN" and os.fsdecode(value) == "0" for key, value in env.items())


def _of_process(env: Mapping[Any, Any] | None, variables: dict[str, str]) -> Mapping[Any, Any] | None:
    """As `completed`; None stands for the environment of the process, which the program may have cleaned."""
    if env is not None:
        return completed(env, variables)
    full = completed(os.environ, variables)
    return None if full is os.environ else full


def _patch(module: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(module, name)
    if getattr(original, "_kvsan", False):
        return
    replacement: Any = make(original)
    replacement._kvsan = True
    replacement.__name__ = replacement.__qualname__ = name
    replacement.__doc__ = original.__doc__
    setattr(module, name, replacement)


def _note_child(
    pid: Any, argv: Any, candidates: Iterable[Any], env: Mapping[Any, Any] | None, variables: dict[str, str]
) -> None:
    """Leaves word of a Python process that this one has started; what fails here is not worth a word."""
    try:
        if not declines(os.environ if env is None else env) and any(
            is_python(os.fsdecode(one)) and os.access(one, os.X_OK) for one in candidates
        ):
            announce_child(variables["KVSAN_SPOOL"], pid, [os.fsdecode(word) for word in argv])
    except Exception:
        return


def _with_environment(call: Callable[..., Any], place: int, variables: dict[str, str]) -> Callable[..., Any]:
    """A function that takes the environment as a mapping, at that place or as the argument `env`."""

    def start(*args: Any, **rest: Any) -> Any:
        try:
            if len(args) > place:
                args = (*args[:place], _of_process(args[place], variables), *args[place + 1 :])
            elif "env" in rest:
                rest["env"] = _of_process(rest["env"], variables)
        except Exception:
            pass  # not an environment: let the real function complain
        result = call(*args, **rest)
        if isinstance(result, int):  # a process id; exec does not come back
            env = args[place] if len(args) > place else rest.get("env")
            _note_child(result, args[1] if len(args) > 1 else (), args[:1], env, variables)
        return result

    return start


def _with_list(call: Callable[..., Any], place: int, variables: dict[str, str]) -> Callable[..., Any]:
    """fork_exec takes a list of b"NAME=value", or None for the environment of the process."""

    def start(*args: Any) -> Any:
        env: Mapping[Any, Any] | None = None
        try:
            given = args[place]
            env = dict(os.environb) if given is None else dict(item.split(b"=", 1) for item in given)
            full = completed(env, variables)
            if full is not env:
                items = [os.fsencode(key) + b"=" + os.fsencode(value) for key, value in full.items()]
                args = (*args[:place], items, *args[place + 1 :])
        except Exception:
            pass
        pid = call(*args)
        _note_child(pid, args[0], args[1], env, variables)
        return pid

    return start


def _exec(call: Callable[..., Any], with_env: Callable[..., Any], variables: dict[str, str]) -> Callable[..., Any]:
    """execv passes on the environment of the process, which the program may have cleaned."""

    def start(path: Any, args: Any, /) -> Any:
        if completed(os.environ, variables) is os.environ:
            return call(path, args)
        return with_env(path, args, completed(os.environ, variables))

    return start
