"""Notices that an engine's scheduler is imported, and lets its adapter in. Costs other processes one comparison an
import.

Engines import heavy modules in every one of their processes, and only the scheduler's is to be watched; so nothing but
the constructor of the scheduler is wrapped here, and the adapter comes when a scheduler is made.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEDULERS = {"sglang.srt.managers.scheduler": ("Scheduler", "kvsan.hooks.adapters.sglang")}
"""The module of an engine's scheduler: its class, and the adapter, which has `attach(scheduler_class)` and
`begin(scheduler)`."""

_MARK = "_kvsan_arrival"


def watch() -> None:
    """Waits for the schedulers of all known engines; takes those that are there already. Does nothing the second
    time."""
    for name in SCHEDULERS:
        if name in sys.modules:
            _wrap(sys.modules[name])
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Stands in front of the import system until a scheduler comes by."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in SCHEDULERS:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    _after(spec.loader)
                return spec
        return None


def _after(loader: Any) -> None:
    """Wraps the scheduler's class as soon as the module that defines it has run."""
    run = loader.exec_module

    def exec_module(module: Any) -> None:
        run(module)
        _wrap(module)

    loader.exec_module = exec_module


def _wrap(module: Any) -> None:
    attribute, adapter = SCHEDULERS[module.__name__]
    scheduler = getattr(module, attribute, None)
    if scheduler is None or _MARK in vars(scheduler):
        return
    construct = scheduler.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        entrance = _enter(adapter, scheduler)
        construct(self, *args, **kwargs)
        if entrance is not None:
            entrance.begin(self)

    __init__.__doc__ = construct.__doc__
    __init__.__wrapped__ = construct  # type: ignore[attr-defined]
    scheduler.__init__ = __init__
    setattr(scheduler, _MARK, True)


def _enter(adapter: str, scheduler: Any) -> Any:
    """The adapter's module, its probes in place; None if it could not be, which is told and left at that."""
    from importlib import import_module

    try:
        module = import_module(adapter)
        module.attach(scheduler)
    except Exception as error:
        from kvsan import entry

        entry.complain(f"{adapter} could not be entered: {type(error).__name__}: {error}; this engine is not watched")
        return None
    return module
