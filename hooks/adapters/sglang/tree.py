"""Readers of the prefix cache. Its core may hide its nodes: what a node holds is taken from the indices that the engine
computes anyway when a request publishes its slots (`path_device_indices`) or takes over a match."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

from .rows import tell_record
from .watch import KV, Doing, Slots, Watch, counts

Reading = Generator[None, Any, None]


def checkpoint(watch: Watch, tree: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """A request publishes what it has computed; its lock moves to the node where that ends."""
    if tree is not watch.tree or not watch.record(req).holds_kv:
        yield
        return
    owner = watch.owner_of(req)
    with watch.within(Doing("publish", owner=owner, domain=domain(req))):
        yield
    tell_record(watch, watch.record(req), owner)


def insert(watch: Watch, tree: Any, params: Any) -> Reading:
    """The first insert of a publication brings the slots; a second one only splits what it made."""
    doing = watch.current("publish")
    if doing is not None and watch.slots and doing.values is None and params.value is not None:
        doing.values = watch.keep(params.value)
    yield


def path_device_indices(watch: Watch, tree: Any, node: Any) -> Reading:
    """What the tree has on the way to a node. In a publication: where that is what the request brought, the tree took
    it over; where it is something else, the request goes on with the tree's."""
    path = yield
    doing = watch.current("publish")
    if tree is not watch.tree or not watch.slots or doing is None or doing.values is None or doing.owner is None:
        return
    brought, doing.values = doing.values, None
    published = partial(_published, watch, doing.owner, node_name(node), doing.domain)
    watch.then(published, watch.keep(path), brought)


def _published(watch: Watch, owner: str, name: str, ns: str | None, slots: Slots, brought: Slots) -> None:
    if slots.size > brought.size:
        return
    unshared = ~watch.among(slots, watch.used_by(owner))
    mine = slots[(slots == brought[: slots.size]) & unshared]
    if mine.size:
        for old, count in counts(watch.nodes_at(mine)):
            if watch.nodes[old]:
                watch.node_slots[watch.nodes[old]] -= count
        watch.add_to_node(mine, name)
        watch.san.insert(KV, mine, node=name, owner=owner, ns=ns)
    attach(watch, slots[unshared], owner, name)


def prefix_device_indices(watch: Watch, tree: Any, req: Any) -> Reading:
    """A request that has no row yet takes over the slots that it matched."""
    result = yield
    if tree is watch.tree and watch.slots and len(result):
        matched(watch, req, result)


def matched(watch: Watch, req: Any, indices: Any) -> None:
    """The request goes on with these slots of the tree."""
    of_node = partial(_matched, watch, str(req.rid), node_name(req.last_node), domain(req))
    watch.then(of_node, watch.keep(indices))


def _matched(watch: Watch, owner: str, last_node: str, ns: str | None, slots: Slots) -> None:
    """Which node it ended on is asked of the slots: the handle may be that of a node which a lookup has just split off,
    and which was never inserted."""
    name = watch.nodes[int(watch.nodes_at(slots[-1:])[0])] or last_node
    watch.san.match(node=name, ns=ns, owner=owner)
    attach_new(watch, owner, name, slots)


def attach(watch: Watch, slots: Slots, owner: str, name: str) -> None:
    """The owner uses these slots of the tree; of those that no node is known to hold, the node of that name does."""
    if not slots.size:
        return
    numbers = watch.nodes_at(slots)
    for number, count in counts(numbers):
        some = slots[numbers == number] if count < slots.size else slots
        watch.san.attach(KV, some, node=watch.nodes[number] or name, owner=owner)
    watch.shared.setdefault(owner, []).append(slots)


def attach_new(watch: Watch, owner: str, name: str, slots: Slots) -> None:
    """As `attach`, but those that the owner uses already are not told again."""
    attach(watch, slots[~watch.among(slots, watch.used_by(owner))], owner, name)


def domain(req: Any) -> str | None:
    """The key domain that a request matches and publishes in: adapter or other extra key, and salt."""
    extra, salt = getattr(req, "extra_key", None), getattr(req, "cache_salt", None)
    return None if extra is None and salt is None else f"{extra or ''}/{salt or ''}"


def node_name(node: Any) -> str:
    """What a node handle is called: the default core's are numbers, the older cache's are objects with an id."""
    return f"{node if isinstance(node, int) else getattr(node, 'id', node)}"


# -- eviction


def evict(watch: Watch, tree: Any, *args: Any, **kwargs: Any) -> Reading:
    """What is freed inside is given back by the cache, on nobody's behalf."""
    if tree is not watch.tree:
        yield
        return
    with watch.within(Doing("evict")):
        yield


def reset(watch: Watch, tree: Any) -> Reading:
    """The tree is emptied; the allocator's `clear` follows."""
    yield


# -- locks


def inc_lock_ref(watch: Watch, tree: Any, node: Any, *args: Any, **kwargs: Any) -> Reading:
    """One more lock on a node and what is above it."""
    yield
    if tree is watch.tree and not tree.disable:
        watch.then(partial(_locked, watch, node_name(node), watch.actor()))


def _locked(watch: Watch, name: str, owner: str | None) -> None:
    watch.node_locks[name] = watch.node_locks.get(name, 0) + 1
    watch.san.lock(node=name, owner=owner)


def dec_lock_ref(watch: Watch, tree: Any, node: Any, *args: Any, **kwargs: Any) -> Reading:
    """One lock less."""
    yield
    if tree is watch.tree and not tree.disable:
        watch.then(partial(_unlocked, watch, node_name(node), watch.actor()))


def _unlocked(watch: Watch, name: str, owner: str | None) -> None:
    left = watch.node_locks.get(name, 0) - 1
    watch.san.unlock(node=name, owner=owner)
    if left > 0:
        watch.node_locks[name] = left
        return
    watch.node_locks.pop(name, None)
    if watch.node_slots.get(name, 0) <= 0:  # nothing more is known of it: it must not be remembered for ever
        watch.san.evict(node=name)
        watch.forget_node(name)


def admit(watch: Watch, adder: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """A request is admitted to the next batch, and locks what it matched."""
    with watch.within(Doing("admit", owner=str(req.rid))):
        yield


def consider(watch: Watch, adder: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """A request is looked at for the next batch; what it matched is locked meanwhile."""
    with watch.within(Doing("consider", owner=str(req.rid))):
        yield
