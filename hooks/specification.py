"""The pluggy specification: one hook for each event of a trace, and what the tracker tells in return.

The hooks are made from the event classes, so that the two cannot drift apart: `kvsan_alloc(event: Alloc)`,
`kvsan_free(event: Free)`, `kvsan_write_cache_indices(event: RowWrite)`, `kvsan_cache_insert(event: CacheInsert)`, and
`kvsan_<op>(event)` for every other operation. Events arrive one at a time, under the sanitizer's lock, with their index
set; an implementation must neither block nor keep references to engine memory.

The tracker, the trace recorder and any third-party detector are plugins of the same manager. A package adds one through
the entry point group `kvsan.plugins`, which is loaded in every process that `kvsan run` enters, where `KVSAN=1`
switches kvsan on, and by `pytest --kvsan`.
"""

from __future__ import annotations

import pluggy

from kvsan.events import EVENT_CLASSES, Event
from kvsan.findings import Failure, Finding

PROJECT = "kvsan"
PLUGINS = "kvsan.plugins"
"""The entry point group of plugins."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Specification:
    """Every hook. The event hooks are added below."""

    @hookspec
    def kvsan_finding(self, finding: Finding) -> None:
        """A new finding, after the shadow took the event in."""

    @hookspec
    def kvsan_failure(self, failure: Failure) -> None:
        """Something in kvsan itself failed."""


def _add_event_hooks() -> None:
    for cls in EVENT_CLASSES:

        def hook(self: Specification, event: Event) -> None: ...

        hook.__name__ = cls.hook
        hook.__qualname__ = f"Specification.{cls.hook}"  # pluggy leaves `self` out where the name says it is a method
        hook.__doc__ = f"{cls.__name__}: {cls.__doc__}"
        setattr(Specification, cls.hook, hookspec(hook))


_add_event_hooks()
