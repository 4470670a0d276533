"""What stands for a fault of `faults` in releases before 0.5.22, by its name. Written beside that plugin, and read by
it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvsan_test_faults import (
    BASE_TREE,
    PAGED,
    ROWS,
    TOKEN,
    TREE,
    Fault,
    Switch,
    added_twice,
    grouped,
    lost_in_free,
    lost_page,
    only_below,
    record,
    row_double_free,
    row_leak,
    there,
)

Original = Callable[..., Any]

PYTHON_TREE = "sglang.srt.mem_cache.radix_cache:RadixCache"
REQUEST = "sglang.srt.managers.schedule_batch:Req"
EVICTIONS = (f"{TREE}._evict", f"{PYTHON_TREE}.evict")
"""Functions in which a cache gives something back; a release may have both, and uses one."""


def _ending(switch: Switch, slots: Any) -> Any:
    """The request that has ended and gives these slots back, if it is one; publications give back duplicates, too."""
    if not slots.numel():
        return None
    last = int(slots[-1])
    return next(
        (req for req in switch.requests() if req.finished() and bool((switch.slots_of(req) == last).any())), None
    )


# -- token slots, up to 0.5.18 given back by the cache itself


def leak_at_the_end(switch: Switch, original: Original, pool: Any, free_index: Any, **named: Any) -> Any:
    """A release forgets its last slot, with pages the last page."""
    req = _ending(switch, free_index)
    kept = (free_index.numel() - 1) // pool.page_size * pool.page_size
    if req is not None and switch.strike(owner=str(req.rid), slots=free_index[kept:].tolist()):
        free_index = free_index[:kept]
    return original(pool, free_index, **named)


def double_free_at_the_end(switch: Switch, original: Original, pool: Any, free_index: Any, **named: Any) -> Any:
    """A release runs twice."""
    result = original(pool, free_index, **named)
    req = _ending(switch, free_index)
    if req is not None and switch.strike(owner=str(req.rid), slots=free_index.tolist()):
        original(pool, free_index, **named)
    return result


def page_twice_at_the_end(switch: Switch, original: Original, pool: Any, free_index: Any) -> Any:
    """A page is given back again, through a slot of it that the first release did not name."""
    result = original(pool, free_index)
    other = int(free_index[-1]) + 1 if free_index.numel() else 0
    if other % pool.page_size and switch.strike(slots=[other]):
        original(pool, free_index[-1:] + 1)
    return result


def invalid_free_at_the_end(switch: Switch, original: Original, pool: Any, free_index: Any) -> Any:
    """A release gives the padding slot back along with its own."""
    import torch

    if _ending(switch, free_index) is not None and switch.strike(slots=[0]):
        free_index = torch.cat((free_index, torch.zeros(1, dtype=free_index.dtype)))
    return original(pool, free_index)


def foreign_free_at_the_end(switch: Switch, original: Original, tree: Any, req: Any, *args: Any, **named: Any) -> Any:
    """A release frees the last page of its prefix, which the tree holds, along with its own."""
    held, page = record(req).cache_protected_len, tree.page_size
    slots = switch.slots_of(req)[max(held - page, 0) : held]
    if held > 0 and switch.strike(owner=str(req.rid), slots=slots.tolist()):
        tree.token_to_kv_pool_allocator.free(slots)
    return original(tree, req, *args, **named)


def lost_page_in_free(switch: Switch, original: Original, pool: Any, free_index: Any) -> Any:
    """The allocator forgets the last page of what it is given."""
    if free_index.numel() and not grouped(pool):
        last = free_index[-1] // pool.page_size
        if switch.strike(slots=[int(last) * pool.page_size]):
            free_index = free_index[free_index // pool.page_size != last]
    return original(pool, free_index)


# -- the prefix cache


def request_lock_leak(switch: Switch, original: Original, tree: Any, req: Any, **named: Any) -> Any:
    """A release skips its unlock."""
    if isinstance(req.last_node, int) and switch.strike(node=str(req.last_node)):
        return None
    return original(tree, req, **named)


def request_lock_underflow(switch: Switch, original: Original, tree: Any, req: Any, **named: Any) -> Any:
    """What a request has locked is unlocked twice."""
    result = original(tree, req, **named)
    if isinstance(req.last_node, int) and switch.strike(owner=str(req.rid), node=str(req.last_node)):
        original(tree, req, **named)
    return result


def node_lock_leak(switch: Switch, original: Original, tree: Any, req: Any, *args: Any, **named: Any) -> Any:
    """A release skips its unlock."""
    node = req.last_node
    if node is not None and node is not tree.root_node and switch.strike(owner=str(req.rid), node=str(node.id)):
        req.last_node = None
    try:
        return original(tree, req, *args, **named)
    finally:
        req.last_node = node


def node_lock_underflow(switch: Switch, original: Original, tree: Any, req: Any, *args: Any, **named: Any) -> Any:
    """What a request has locked is unlocked twice."""
    node = req.last_node
    if node is not tree.root_node and switch.strike(owner=str(req.rid), node=str(node.id)):
        tree.dec_lock_ref(node)
    return original(tree, req, *args, **named)


def evict_locked(switch: Switch, original: Original, tree: Any, *args: Any, **named: Any) -> Any:
    """An eviction takes a slot of a node that a running request has locked."""
    for req in switch.requests():
        protected = record(req).cache_protected_len
        if protected > 2 and not req.finished():
            slot = switch.slots_of(req)[protected - 1].reshape(1)
            node = str(getattr(req.last_node, "id", req.last_node))
            if switch.strike(owner=str(req.rid), slots=slot.tolist(), node=node):
                tree.token_to_kv_pool_allocator.free(slot)
            break
    return original(tree, *args, **named)


def namespace_mixup(switch: Switch, original: Original, req: Any, *args: Any, **named: Any) -> Any:
    """A request's key domain is dropped when its prefix is looked up."""
    domain = req.extra_key
    if domain is not None and switch.strike(owner=str(req.rid), domain=domain):
        req.extra_key = None
    try:
        return original(req, *args, **named)
    finally:
        req.extra_key = domain


SINCE_0_5_19 = {
    "lock_leak": Fault(f"{TREE}._dec_req_lock", request_lock_leak),
    "lock_underflow": Fault(f"{TREE}._dec_req_lock", request_lock_underflow),
    "evict_locked": only_below(f"{TREE}._evict", evict_locked),
    "namespace_mixup": Fault(f"{REQUEST}.init_next_round_input", namespace_mixup),
}

SINCE_0_5_17 = {
    "leak": Fault(f"{TOKEN}.free", leak_at_the_end, below=(f"{TOKEN}.free", lost_in_free)),
    "leak_page": Fault(f"{PAGED}.free_segment", leak_at_the_end, below=(f"{PAGED}._release_page_ids", lost_page)),
    "double_free": Fault(f"{TOKEN}.free", double_free_at_the_end, below=(f"{TOKEN}.free", added_twice)),
    "double_free_page": Fault(f"{PAGED}.free_segment", double_free_at_the_end),
    "foreign_free": Fault(f"{PYTHON_TREE}.cache_finished_req", foreign_free_at_the_end),
    "invalid_free": Fault(f"{TOKEN}.free", invalid_free_at_the_end),
    "row_leak": Fault(f"{ROWS}.free", row_leak, below=(f"{ROWS}.free", row_leak)),
    "row_double_free": Fault(f"{ROWS}.free", row_double_free, below=(f"{ROWS}.free", row_double_free)),
    "lock_leak": Fault(f"{PYTHON_TREE}.cache_finished_req", node_lock_leak),
    "lock_underflow": Fault(f"{PYTHON_TREE}.cache_unfinished_req", node_lock_underflow),
    "evict_locked": only_below(f"{PYTHON_TREE}.evict", evict_locked),
    "namespace_mixup": Fault(f"{REQUEST}.init_next_round_input", namespace_mixup),
}

SINCE_0_5_16 = SINCE_0_5_17 | {
    "leak_page": Fault(f"{PAGED}.free", leak_at_the_end, below=(f"{PAGED}.free", lost_page_in_free)),
    "double_free_page": Fault(f"{PAGED}.free", double_free_at_the_end),
    "page_twice": Fault(f"{PAGED}.free", page_twice_at_the_end),
}


def earlier() -> dict[str, Fault]:
    """What stands for faults of the present release in the installed one."""
    if there(f"{TREE}.unlock"):
        return {}
    if there(f"{BASE_TREE}.free_kv_row"):
        return SINCE_0_5_19
    return SINCE_0_5_17 if there(f"{PAGED}.free_segment") else SINCE_0_5_16
