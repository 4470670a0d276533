"""Hooks: where events come in. `current()` is what an engine calls; it costs nothing while kvsan is off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .null import NULL, NullSanitizer

if TYPE_CHECKING:
    from kvsan.options import Options
    from kvsan.sinks import Sink

    from .sanitizer import Sanitizer

__all__ = ["NullSanitizer", "current", "scope", "start", "stop"]

_active: Sanitizer | None = None
_stop: Any = None


def current() -> Sanitizer | NullSanitizer:
    """The sanitizer of this process, or one whose operations do nothing if kvsan is off. Ask once and keep it."""
    if _active is not None:
        return _active
    from kvsan import entry

    entry.activate()
    return _active if _active is not None else NULL


def start(options: Options, sink: Sink) -> Sanitizer:
    """Starts the sanitizer of this process; what it finds goes to the sink."""
    global _active, _stop
    from .lifetime import begin
    from .sanitizer import Sanitizer

    sanitizer = Sanitizer(options, sink)
    sanitizer.load_plugins()
    _stop = begin(sanitizer, sink)
    _active = sanitizer
    return sanitizer


def stop() -> None:
    """Ends what `start` began: the recorded trace is closed, the totals go to the sink."""
    global _active, _stop
    sanitizer, end, _active, _stop = _active, _stop, None, None
    if sanitizer is not None:
        sanitizer.settle_at_end()
    if end is not None:
        end()
    if sanitizer is not None:
        sanitizer.tell_totals()


@contextmanager
def scope(options: Options | None = None, **named: Any) -> Iterator[Sanitizer]:
    """A sanitizer of its own for the duration, as `current()`; for tests. Scopes nest."""
    global _active
    from .sanitizer import Sanitizer

    before, sanitizer = _active, Sanitizer(options, **named)
    _active = sanitizer
    try:
        yield sanitizer
    finally:
        _active = before
