"""Lies beside the programs that the tests run: a `kvsan.hooks` that finds whatever a program asks it to."""

from __future__ import annotations

import sys
import types
from typing import Any

sink: Any = None


def hooks(start: Any = None, stop: Any = None) -> None:
    """Puts a fake `kvsan.hooks` in place and activates it, as an engine's first question would."""
    import kvsan
    import kvsan.entry

    module: Any = types.ModuleType("kvsan.hooks")
    module.start = start or _start
    module.stop = stop or _stop
    sys.modules["kvsan.hooks"] = module
    kvsan.hooks = module  # type: ignore[attr-defined]
    kvsan.entry.activate()


def find(token: str, kind: str = "race") -> None:
    """A finding with this token, if the process is entered."""
    from kvsan.findings import Finding

    if sink is None:
        hooks()
    if sink is not None:
        sink.finding(Finding(kind, 1, "kv:1", "kv", (1,), token=token))


class _Sanitizer:
    events = 3


def _start(options: Any, told: Any) -> Any:
    global sink
    sink = told
    return _Sanitizer


def _stop() -> None:
    from kvsan.findings import PoolTotals

    sink.totals([PoolTotals("kv", "kv", 64, 16, 1, 60, 0, 3, 0, 0, 0, 12)], 3)
