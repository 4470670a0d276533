"""Readers of the prefix cache: both cores of `UnifiedRadixCache`, and up to 0.5.18 `RadixCache`. What an insert takes
over is what it is given beyond the `prefix_len` tokens that the cache had already; what a request goes on with is what
it then matches."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

from .. import tree as present
from ..rows import tell_record
from ..watch import KV, Doing, Slots, Watch

Reading = Generator[None, Any, None]


def publish(watch: Watch, tree: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """`cache_finished_req` (from 0.5.21 on `insert_req`): a request that ends publishes what it has computed."""
    if tree is not watch.tree or not watch.record(req).holds_kv:
        yield
        return
    with watch.within(Doing("publish", owner=watch.owner_of(req), domain=present.domain(req))):
        yield


def publish_unfinished(watch: Watch, tree: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """`cache_unfinished_req`: a request publishes, goes on with what the cache has, and moves its lock there."""
    yield from publish(watch, tree, req)
    if tree is watch.tree and watch.record(req).holds_kv:
        tell_record(watch, watch.record(req), watch.owner_of(req))


def insert(watch: Watch, tree: Any, params: Any) -> Reading:
    """`insert(params)`: in a publication, what the cache did not have is now its own, under the node where it ends."""
    doing = watch.current("publish")
    if tree is not watch.tree or tree.disable or not watch.slots or doing is None:
        yield
        return
    brought = watch.keep(params.value)
    result = yield
    name = present.node_name(result.last_device_node)
    watch.then(partial(_inserted, watch, doing, name, int(result.prefix_len)), brought)


def _inserted(watch: Watch, doing: Doing, name: str, known: int, brought: Slots) -> None:
    slots = brought[known:]
    if slots.size:
        watch.add_to_node(slots, name)
        watch.san.insert(KV, slots, node=name, owner=doing.owner, ns=doing.domain)


def match_prefix(watch: Watch, tree: Any, params: Any) -> Reading:
    """`match_prefix(params)`: in a publication, what the request goes on with."""
    result = yield
    doing = watch.current("publish")
    if tree is watch.tree and watch.slots and doing is not None and doing.owner is not None:
        goes_on = partial(present.attach_new, watch, doing.owner, present.node_name(result.last_device_node))
        watch.then(goes_on, watch.keep(result.device_indices))


def consider(watch: Watch, adder: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """`add_one_req`: a request is looked at for the next batch; admitted, it takes over the slots that it matched. What
    a later turn of a session starts from is in its row already."""
    owner = str(req.rid)
    with watch.within(Doing("consider", owner=owner)):
        yield
    admitted = bool(adder.can_run_list) and adder.can_run_list[-1] is req
    if admitted and watch.slots and len(req.prefix_indices) and watch.owner_of(req) == owner:
        present.matched(watch, req, req.prefix_indices)


def inc_lock_ref(watch: Watch, tree: Any, node: Any, *args: Any, **kwargs: Any) -> Reading:
    """One more lock on a node and what is above it; a later turn of a session comes with a node that is none."""
    if isinstance(node, int):
        yield from present.inc_lock_ref(watch, tree, node)
    else:
        yield


def dec_lock_ref(watch: Watch, tree: Any, node: Any, *args: Any, **kwargs: Any) -> Reading:
    """One lock less."""
    if isinstance(node, int):
        yield from present.dec_lock_ref(watch, tree, node)
    else:
        yield
