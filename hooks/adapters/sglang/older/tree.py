"""Readers of the prefix cache in Python (`RadixCache`), whose nodes can be seen: inserts, splits, matches, locks."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

from .. import tree as present
from ..watch import KV, Doing, Slots, Watch
from .watch import OlderWatch, Publication

Reading = Generator[None, Any, None]


def publication(req: Any) -> Publication:
    """What a request does while it publishes."""
    return Publication("publish", owner=str(req.rid), domain=present.domain(req))


def publish(watch: OlderWatch, tree: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """`cache_unfinished_req`, `cache_finished_req`: a request publishes what it has computed, gives back what the cache
    had already, and moves its lock."""
    if tree is not watch.tree:
        yield
        return
    with watch.within(publication(req)):
        yield


def insert(watch: OlderWatch, tree: Any, *args: Any, **kwargs: Any) -> Reading:
    """`insert(key, value)`, from 0.5.9 on `insert(params)`: the result says how many tokens the cache had; a new leaf
    takes the rest over."""
    doing = watch.current("publish")
    if tree is not watch.tree or tree.disable or not isinstance(doing, Publication):
        yield
        return
    key, value = _key_and_value(*args, **kwargs)
    result = yield
    matched: Any = getattr(result, "prefix_len", result)
    doing.matched = int(matched)
    if watch.slots and value.numel() > doing.matched:
        leaf = _leaf(tree, key)
        names = present.node_name(leaf), present.node_name(leaf.parent)
        watch.then(partial(_inserted, watch, doing, *names), watch.take(value[doing.matched :]))


def _inserted(watch: Watch, doing: Doing, name: str, parent: str, slots: Slots) -> None:
    watch.add_to_node(slots, name)
    known = parent if parent in watch.node_numbers else None
    watch.san.insert(KV, slots, node=name, parent=known, owner=doing.owner, ns=doing.domain)


def _key_and_value(key: Any = None, value: Any = None, *rest: Any, params: Any = None, **named: Any) -> tuple[Any, Any]:
    params = params or key
    return (params.key, params.value) if hasattr(params, "value") else (key, value)


def _leaf(tree: Any, key: Any) -> Any:
    """The node where a key that was just inserted ends. Up to 0.5.10 the tree says by what a node finds its children;
    then keys do."""
    child_key = getattr(tree, "get_child_key_fn", None) or (lambda key: key.child_key(tree.page_size))
    node = tree.root_node
    while len(key):
        node = node.children.get(child_key(key))
        if node is None:
            raise LookupError("what was inserted into the prefix cache is not found in it")
        key = key[len(node.key) :]
    return node


def split(watch: OlderWatch, tree: Any, key: Any, child: Any, split_len: int) -> Reading:
    """`_split_node(key, node, length)`: a new node takes the first slots over and stands above the old one."""
    above = yield
    if tree is watch.tree and watch.slots:
        names = present.node_name(child), present.node_name(above)
        watch.then(partial(_split, watch, *names), watch.keep(above.value))


def _split(watch: Watch, old: str, new: str, slots: Slots) -> None:
    watch.add_to_node(slots, new)
    watch.node_slots[old] = watch.node_slots.get(old, 0) - int(slots.size)
    watch.san.split(node=old, child=new, slots=slots, pool=KV)


def match_prefix(watch: OlderWatch, tree: Any, *args: Any, **kwargs: Any) -> Reading:
    """What the cache has for a key. In a publication: what the request goes on with."""
    result = yield
    doing = watch.current("publish")
    if tree is watch.tree and watch.slots and doing is not None and doing.owner is not None:
        watch.then(partial(present.attach_new, watch, doing.owner, "?"), watch.keep(result.device_indices))


def consider(watch: OlderWatch, adder: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """`add_one_req`: a request is looked at for the next batch; admitted, it takes over the slots that it matched."""
    owner = str(req.rid)
    with watch.within(Doing("consider", owner=owner)):
        yield
    admitted = bool(adder.can_run_list) and adder.can_run_list[-1] is req
    if admitted and watch.slots and len(req.prefix_indices):
        watch.san.match(node=present.node_name(req.last_node), ns=present.domain(req), owner=owner)
        watch.then(partial(present.attach_new, watch, owner, "?"), watch.keep(req.prefix_indices))


def inc_lock_ref(watch: OlderWatch, tree: Any, node: Any, *args: Any, **kwargs: Any) -> Reading:
    """One more lock on a node and what is above it; the root has none."""
    if tree is watch.tree and node is tree.root_node:
        yield
        return
    yield from present.inc_lock_ref(watch, tree, node)


def dec_lock_ref(watch: OlderWatch, tree: Any, node: Any, *args: Any, **kwargs: Any) -> Reading:
    """One lock less."""
    if tree is watch.tree and node is tree.root_node:
        yield
        return
    yield from present.dec_lock_ref(watch, tree, node)
