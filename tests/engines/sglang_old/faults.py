"""Faults for a living scheduler of an old release: those of `..sglang.faults` that fit, and in place of the others what
these releases have instead: requests that hold their row themselves, and a prefix cache in Python."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..sglang import faults
from ..sglang.faults import ROWS, VARIABLE, Fault, Original, Switch

ALLOCATOR = "sglang.srt.mem_cache.allocator"
TOKEN, PAGED = f"{ALLOCATOR}:TokenToKVPoolAllocator", f"{ALLOCATOR}:PagedTokenToKVPoolAllocator"
TREE = "sglang.srt.mem_cache.radix_cache:RadixCache"


class OldSwitch(Switch):
    """What faults ask of an old scheduler."""

    def own(self, req: Any) -> Any:
        """The slots that a request does not share with the cache, int64, shape [n]."""
        row = self.scheduler.req_to_token_pool.req_to_token[req.req_pool_idx]
        return row[req.cache_protected_len : req.kv_committed_len].long()


def leak(switch: OldSwitch, original: Original, tree: Any, req: Any, *args: Any, **named: Any) -> Any:
    """A release forgets its last slot, with pages the last page."""
    own = switch.own(req)
    kept = (req.kv_committed_len - 1) // tree.page_size * tree.page_size
    forgotten = own[kept - req.cache_protected_len :]
    chance = req.finished() and kept > req.cache_protected_len
    if chance and switch.strike(owner=str(req.rid), slots=forgotten.tolist()):
        req.kv_committed_len = req.kv_allocated_len = kept
    return original(tree, req, *args, **named)


def double_free(switch: OldSwitch, original: Original, tree: Any, req: Any, *args: Any, **named: Any) -> Any:
    """A release does not publish, and gives back twice."""
    own = switch.own(req)
    if not (req.finished() and own.numel() and switch.strike(owner=str(req.rid), slots=own.tolist())):
        return original(tree, req, *args, **named)
    result = original(tree, req, is_insert=False)
    tree.token_to_kv_pool_allocator.free(own)
    return result


def foreign_free(switch: OldSwitch, original: Original, tree: Any, req: Any, *args: Any, **named: Any) -> Any:
    """A release also gives back the last page of its prefix, which the cache holds."""
    held, page = req.cache_protected_len, tree.page_size
    if req.finished() and held:
        row = switch.scheduler.req_to_token_pool.req_to_token[req.req_pool_idx]
        slots = row[held - page : held].long()
        if switch.strike(owner=str(req.rid), slots=slots.tolist()):
            tree.token_to_kv_pool_allocator.free(slots)
    return original(tree, req, *args, **named)


def row_leak(switch: OldSwitch, original: Original, pool: Any, req: Any) -> Any:
    """A request forgets its row instead of giving it back."""
    if switch.strike(owner=str(req.rid), row=int(req.req_pool_idx)):
        req.req_pool_idx = None
        return None
    return original(pool, req)


def row_double_free(switch: OldSwitch, original: Original, pool: Any, req: Any) -> Any:
    """A request gives its row back twice."""
    row = int(req.req_pool_idx)
    result = original(pool, req)
    if switch.strike(owner=str(req.rid), row=row):
        original(pool, faults.on_row(row))
    return result


def lock_leak(switch: OldSwitch, original: Original, tree: Any, node: Any, *args: Any, **named: Any) -> Any:
    """A release skips its unlock."""
    over = any(req.finished() and req.last_node is node for req in switch.requests())
    if over and node is not tree.root_node and switch.strike(node=str(node.id)):
        return None
    return original(tree, node, *args, **named)


def lock_underflow(switch: OldSwitch, original: Original, tree: Any, node: Any, *args: Any, **named: Any) -> Any:
    """What a request has locked is unlocked twice."""
    result = original(tree, node, *args, **named)
    owner = next((str(req.rid) for req in switch.requests() if req.last_node is node), None)
    if owner and node is not tree.root_node and switch.strike(owner=owner, node=str(node.id)):
        original(tree, node, *args, **named)
    return result


FAULTS: dict[str, Fault] = {
    "leak": Fault(f"{TREE}.cache_finished_req", leak),
    "double_free": Fault(f"{TREE}.cache_finished_req", double_free),
    "foreign_free": Fault(f"{TREE}.cache_finished_req", foreign_free),
    "double_alloc": Fault(f"{TOKEN}.alloc", faults.double_alloc),
    "double_alloc_page": Fault(f"{PAGED}.alloc_extend", faults.double_alloc_page),
    "reserved_slot": faults.only_below(f"{TOKEN}.alloc", faults.reserved_slot),
    "stale_prefix": Fault(f"{ROWS}.write", faults.stale_prefix, below=(f"{ROWS}.write", faults.stale_prefix)),
    "row_leak": Fault(f"{ROWS}.free", row_leak),
    "row_double_free": Fault(f"{ROWS}.free", row_double_free),
    "row_freed_early": Fault(f"{ROWS}.write", faults.row_freed_early),
    "chunk_row_freed": Fault(f"{ROWS}.alloc", faults.chunk_row_freed),
    "use_after_free": Fault(f"{ROWS}.write", faults.use_after_free),
    "alias": Fault(f"{ROWS}.write", faults.alias),
    "orphan": Fault(f"{ROWS}.write", faults.orphan),
    "lock_leak": Fault(f"{TREE}.dec_lock_ref", lock_leak),
    "lock_underflow": Fault(f"{TREE}.dec_lock_ref", lock_underflow),
}


def register() -> None:
    """Called when the scheduler's module is there, before a scheduler is made and kvsan puts its probes in."""
    file = os.environ.get(VARIABLE)
    if file:
        faults.begin(OldSwitch(Path(file), FAULTS))
