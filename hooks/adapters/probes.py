"""Probes: places in an engine, and the readers that turn a call there into events.

A reader is a generator over one call. It gets the adapter's watch and the call's arguments; what it does before its
one `yield` happens before the call, `yield` gives it the result, and what follows happens after the call. If the call
raises, or the watch ends in it, the reader ends at its `yield` (its `finally` runs). A reader that fails never reaches
the engine: it is told once, and the whole watch ends, because a shadow that missed a call would accuse the innocent.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from kvsan.errors import FindingRaised

Reader = Callable[..., Generator[None, Any, None]]

MARK = "__kvsan_probe__"


class Watch(Protocol):
    """What readers work on; while `blind`, no reader runs."""

    blind: bool

    def failed(self, where: str, error: Exception) -> None:
        """A reader failed: nothing is watched any more."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One place: `where` is "module:function" or "module:Class.method"; `events` are the operations it gives, `lost` is
    what kvsan cannot see without it. Without a `needed` one sound engines would be accused, so that nothing is watched;
    `older` places belong to other releases, and may be missing without any loss."""

    where: str
    events: str
    read: Reader
    lost: str
    needed: bool = True
    older: bool = False


@dataclass(frozen=True, slots=True)
class Resolved:
    """Where a probe's target was found, or why not (`error`)."""

    probe: Probe
    owner: Any = None
    name: str = ""
    original: Any = None
    error: str = ""

    @property
    def found(self) -> bool:
        """Is the place there?"""
        return not self.error


def resolve(probe: Probe) -> Resolved:
    """Looks the place up; imports its module. Only what the class itself defines counts: what it inherits has a probe
    of its own."""
    module_name, _, path = probe.where.partition(":")
    try:
        owner: Any = import_module(module_name)
    except Exception as error:
        return Resolved(probe, error=f"{module_name} cannot be imported: {type(error).__name__}: {error}")
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part, None)
        if owner is None:
            return Resolved(probe, error=f"{module_name} has no {part}")
    original = vars(owner).get(name)
    if original is None:
        return Resolved(probe, error=f"{'.'.join([module_name, *outer])} defines no {name}")
    return Resolved(probe, owner, name, original)


def install(probes: Iterable[Probe], watch: Watch) -> list[Resolved]:
    """Wraps every place that resolves, and every module's alias of a function; once, however often it is called."""
    found = [resolve(probe) for probe in probes]
    for each in found:
        if not each.found or hasattr(_plain(each.original), MARK):
            continue
        wrapper = wrap(each.probe, _plain(each.original), watch)
        if isinstance(each.original, staticmethod):
            setattr(each.owner, each.name, staticmethod(wrapper))
            continue
        setattr(each.owner, each.name, wrapper)
        if not isinstance(each.owner, type):
            _replace_aliases(each.original, wrapper)
    return found


def missing(found: Iterable[Resolved]) -> list[Resolved]:
    """Those of the places that were found in which no probe is, now: somebody replaced it, or it was never put
    there."""
    return [each for each in found if each.found and not _inside(vars(each.owner).get(each.name))]


def _plain(function: Any) -> Any:
    return function.__func__ if isinstance(function, staticmethod) else function


def _inside(function: Any) -> bool:
    """Is a probe in this function, or in one that it wraps?"""
    function = _plain(function)
    for _ in range(16):
        if function is None:
            return False
        if hasattr(function, MARK):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _replace_aliases(original: Any, wrapper: Any) -> None:
    """Modules that took the function over by name (`from module import function`) get the wrapper too."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if names:
            for name in [name for name, value in list(names.items()) if value is original]:
                names[name] = wrapper


def wrap(probe: Probe, original: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    """A function that calls the original, and hands each call to the probe's reader."""
    read = probe.read

    def end(reader: Generator[None, Any, None]) -> None:
        try:
            reader.close()
        except FindingRaised:
            raise
        except Exception as error:
            watch.failed(probe.where, error)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if watch.blind:
            return original(*args, **kwargs)
        try:
            reader = read(watch, *args, **kwargs)
            next(reader)
        except FindingRaised:
            raise
        except StopIteration:
            return original(*args, **kwargs)
        except Exception as error:
            watch.failed(probe.where, error)
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            end(reader)
            raise
        if watch.blind:  # since a call in this one: what came after that was not seen
            end(reader)
            return result
        try:
            reader.send(result)
        except StopIteration:
            pass
        except FindingRaised:
            raise
        except Exception as error:
            watch.failed(probe.where, error)
        return result

    setattr(call, MARK, probe.where)
    return call
