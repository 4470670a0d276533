"""Faults for a live SGLang scheduler, one at a time, as a plugin of it: `KVSAN_TEST_FAULT=NAME[:inside]`.

By default a fault wraps functions of SGLang outside kvsan's probes, so that kvsan sees the faulty call; with `:inside`
it sits between kvsan's probe and SGLang, so that only the effect gives it away. Each hit is printed to standard error.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

VARIABLE = "KVSAN_TEST_FAULT"
SCHEDULER = "sglang.srt.managers.scheduler"
TOKEN = "sglang.srt.mem_cache.allocator.token:TokenToKVPoolAllocator"
ROWS = "sglang.srt.mem_cache.memory_pool:ReqToTokenPool"
TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"

Fault = Callable[..., Any]


class Hits:
    """When a fault strikes: at every `period`-th chance after the first `spare` ones, three times."""

    def __init__(self, name: str, spare: int, period: int = 5) -> None:
        self.name, self.spare, self.period = name, spare, period
        self.chances = self.hits = 0

    def strike(self) -> bool:
        """Does the fault strike now?"""
        self.chances += 1
        if self.chances <= self.spare or (self.chances - self.spare - 1) % self.period or self.hits >= 3:
            return False
        self.hits += 1
        print(f"FAULT {self.name} {self.hits}", file=sys.stderr, flush=True)
        return True


def _leak(hits: Hits, original: Fault, pool: Any, free_index: Any) -> Any:
    """A release forgets the last slot."""
    if pool.free_group is None and free_index.numel() > 1 and hits.strike():
        free_index = free_index[:-1]
    return original(pool, free_index)


def _double_free(hits: Hits, original: Fault, pool: Any, free_index: Any) -> Any:
    """A release runs twice."""
    result = original(pool, free_index)
    if pool.free_group is None and free_index.numel() > 1 and hits.strike():
        original(pool, free_index)
    return result


def _stale_prefix(hits: Hits, original: Fault, pool: Any, indices: Any, values: Any) -> Any:
    """A matched prefix is not written into its row. (A later chunk writes what is there already: that is no chance.)"""
    run = isinstance(indices, tuple) and isinstance(indices[1], slice)
    if run and indices[1].start == 0 and (indices[1].stop or 0) > 4:
        same = bool((pool.req_to_token[indices] == values).all())
        if not same and hits.strike():
            return None
    return original(pool, indices, values)


def _lock_leak(hits: Hits, original: Fault, tree: Any, lock: Any) -> Any:
    """An unlock is skipped."""
    if lock is not None and hits.strike():
        return None
    return original(tree, lock)


def _row_leak(hits: Hits, original: Fault, pool: Any, indices: Any) -> Any:
    """A row is not given back."""
    if hits.strike():
        return None
    return original(pool, indices)


def _row_double_free(hits: Hits, original: Fault, pool: Any, indices: Any) -> Any:
    """A row is given back twice."""
    if hits.strike():
        original(pool, indices)
    return original(pool, indices)


def _foreign_free(hits: Hits, original: Fault, tree: Any, kv: Any, ranges: Any) -> Any:
    """A release frees the first slot of its prefix, which the tree holds, along with its own."""
    if kv.cache_protected_len > 0 and ranges and ranges[0][0] == kv.cache_protected_len and hits.strike():
        ranges = [(kv.cache_protected_len - 1, ranges[0][1]), *ranges[1:]]
    return original(tree, kv, ranges)


def _double_alloc(hits: Hits, original: Fault, pool: Any, need_size: int) -> Any:
    """The free list keeps a slot that it hands out."""
    import torch

    result = original(pool, need_size)
    if result is not None and result.numel() > 1 and hits.strike():
        pool.free_pages = torch.cat((result[:1], pool.free_pages))
    return result


FAULTS: dict[str, tuple[str, Fault, int, str]] = {
    "leak": (f"{TOKEN}.free", _leak, 0, "leak"),
    "double_free": (f"{TOKEN}.free", _double_free, 0, "double_free"),
    "stale_prefix": (f"{ROWS}.write", _stale_prefix, 2, "stale_row"),
    "lock_leak": (f"{TREE}.unlock", _lock_leak, 3, "lock_leak"),
    "row_leak": (f"{ROWS}.free_rows", _row_leak, 2, "leak"),
    "row_double_free": (f"{ROWS}.free_rows", _row_double_free, 2, "double_free"),
    "foreign_free": (f"{TREE}.free_kv_row", _foreign_free, 2, "free_not_owner"),
    "double_alloc": (f"{TOKEN}.alloc", _double_alloc, 6, "double_alloc"),
}
"""By name: what it wraps, how, how many chances it lets go by, and the finding that it must give."""


def register() -> None:
    """SGLang calls this in each of its processes, before the scheduler is made."""
    chosen = os.environ.get(VARIABLE)
    if not chosen or SCHEDULER not in sys.modules:
        return
    name, _, place = chosen.partition(":")
    if place == "inside":  # kvsan's probes come when the scheduler is made, and wrap this
        _wrap(name)
        return
    scheduler = sys.modules[SCHEDULER].Scheduler  # type: ignore[attr-defined]
    loop = scheduler.run_event_loop

    @functools.wraps(loop)
    def run_event_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        _wrap(name)
        return loop(self, *args, **kwargs)

    scheduler.run_event_loop = run_event_loop


def _wrap(name: str) -> None:
    where, fault, spare, _ = FAULTS[name]
    module, _, path = where.partition(":")
    owner, attribute = getattr(import_module(module), path.partition(".")[0]), path.partition(".")[2]
    original, hits = getattr(owner, attribute), Hits(name, spare)

    @functools.wraps(original)
    def faulty(*args: Any, **kwargs: Any) -> Any:
        return fault(hits, original, *args, **kwargs)

    setattr(owner, attribute, faulty)
