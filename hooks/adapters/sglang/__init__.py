"""The adapter for SGLang: `attach` puts the probes in place, `begin` takes a scheduler's pools under watch."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from kvsan import alone

from ... import current
from ...sanitizer import Sanitizer
from ..probes import Resolved, install
from .table import PROBES, stream_probes
from .watch import KV, ROWS, Watch

PLAIN = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")
"""The allocators whose slots are followed; others have maps and moves that are not read yet."""

_watch: Watch | None = None
_found: list[Resolved] = []


def attach(scheduler_class: type) -> None:
    """Puts the probes in place, blind until `begin`; once."""
    global _watch
    if _watch is not None:
        return
    sanitizer = current()
    if not isinstance(sanitizer, Sanitizer):
        if os.environ.get("KVSAN") != "1":
            return
        sanitizer = alone.start()
    _watch = Watch(sanitizer)
    _found.extend(install(PROBES, _watch))


def begin(scheduler: Any) -> None:
    """The scheduler is made: its pools are declared, and the probes open their eyes. Nothing raised here gets out."""
    watch = _watch
    if watch is None or watch.scheduler is not None:
        return
    try:
        _begin(watch, scheduler)
    except Exception as error:
        watch.failed("beginning to watch the scheduler", error)


def _begin(watch: Watch, scheduler: Any) -> None:
    watch.scheduler = scheduler
    watch.rows = scheduler.req_to_token_pool
    watch.kv = scheduler.token_to_kv_pool_allocator
    watch.tree = scheduler.tree_cache
    watch.page = int(watch.kv.page_size)
    device = str(scheduler.device).partition(":")[0]
    found = install(stream_probes(device), watch)
    _found.extend(found)
    watch.name_streams()
    watch.slots = _can_read_slots(watch, device)
    san = watch.san
    san.pool(ROWS, kind="row", size=int(watch.rows.size) + 1, reserved=[0])
    if watch.slots:
        size = (int(watch.kv.size) // watch.page + 1) * watch.page
        san.pool(KV, kind="kv", size=size, page=watch.page, reserved=np.arange(watch.page))
        watch.node_of = np.zeros(size, np.int64)
    else:
        san.pool(KV, kind="kv", size=1, reserved=[0])
    for each in _found:
        if not each.found and not each.probe.older:
            watch.complain("SGLang adapter", each.error, f"not seen: {each.probe.lost} ({each.probe.events})")
    watch.found = _found
    watch.blind = False
    watch.check()


def _can_read_slots(watch: Watch, device: str) -> bool:
    """Lowers the level to `rows` where slots cannot be followed, and says why."""
    if watch.san.options.level == "rows":
        return False
    kind = type(watch.kv).__name__
    if device != "cpu":
        why = f"slot ids are on the device ({device}), and reading them would make the scheduler wait for it"
    elif kind not in PLAIN:
        why = f"the slots of a {kind} are not followed yet"
    elif int(watch.kv.available_size()) != int(watch.kv.size) // watch.page * watch.page:
        why = "slots were handed out before the scheduler was ready"
    else:
        return True
    watch.note(f"SGLang: only rows are watched, not token slots: {why}.")
    watch.san.watch_rows_only()
    return False


__all__ = ["attach", "begin"]
