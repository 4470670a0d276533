"""The host tier: copies of what the prefix cache holds, written out and loaded back by streams of their own.

A copy uses its slots from the call that submits it until the engine has waited for its end. Copies on the host belong
to the cache as a whole: which node each stands for only the cache's core knows.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

from .tree import domain, node_name
from .watch import HOST, KV, Doing, Slots, Watch

Reading = Generator[None, Any, None]

TREE = "UnifiedRadixCache"
OWNER = "tree:copies on the host"


class Host:
    """What the adapter knows of the host tier: the pool of the copies, and the copies on their way."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.pool = tree.cache_controller.mem_pool_host.get_entry().host_pool
        self.device = tree.token_to_kv_pool_allocator.get_kvcache()
        self.under_way: dict[int, tuple[Any, list[str]]] = {}
        """By the id of the event that ends it: that event, and the names of its transfers."""
        self.copies = 0

    @property
    def busy(self) -> bool:
        """Is anything on its way, or queued for it?"""
        queued = self.tree.cache_controller.has_inflight_device_transfers()
        return bool(queued or self.tree.ongoing_write_through or self.tree.ongoing_load_back)


def watched(tree: Any) -> Host | None:
    """The host tier of a scheduler's prefix cache, if it has one."""
    pools = getattr(getattr(tree, "cache_controller", None), "mem_pool_host", None)
    return Host(tree) if hasattr(pools, "get_entry") and type(tree).__name__ == TREE else None


def obstacle(watch: Watch, host: Host) -> str | None:
    """Why the host tier cannot be followed."""
    controller = host.tree.cache_controller
    if getattr(controller, "enable_storage", False) or host.tree.buffer_pipeline is not None:
        return "what a storage behind the host tier holds is not followed yet"
    if watch.window is not None or watch.states is not None:
        return "window slots and recurrent states on the host are not followed yet"
    if host.tree.sidecar_pool_specs:
        return "pools beside the token slots that go to the host are not followed yet"
    if watch.san.data:
        return "readers wait for a load layer by layer, which level full does not follow yet; use level slots"
    if int(host.pool.available_size()) != int(host.pool.logical_size):
        return "copies were on the host before the scheduler was ready"
    return None


def declare(watch: Watch, host: Host) -> None:
    """The copies become a pool of their own."""
    watch.san.pool(HOST, kind="host", size=int(host.pool.logical_size), page=int(host.pool.logical_page_size))


# -- the host's slots


def alloc(watch: Watch, pool: Any, need_size: int) -> Reading:
    """`alloc(n)` of the host pool."""
    result = yield
    if _ours(watch, pool) and result is not None and result.numel():
        watch.then(partial(watch.san.alloc, HOST, owner=OWNER), watch.take(result))


def free(watch: Watch, pool: Any, indices: Any) -> Reading:
    """`free(slots)` of the host pool."""
    if not _ours(watch, pool) or not indices.numel():
        yield
        return
    taken = watch.keep(indices)
    yield
    watch.then(partial(watch.san.free, HOST, owner=OWNER), taken)


def clear(watch: Watch, pool: Any) -> Reading:
    """Every copy is gone."""
    yield
    if _ours(watch, pool):
        watch.san.reset(HOST)


def _ours(watch: Watch, pool: Any) -> bool:
    return watch.slots and watch.host is not None and pool is watch.host.pool


# -- on whose behalf


def backup(watch: Watch, tree: Any, action: Any, *args: Any, **kwargs: Any) -> Reading:
    """`_execute_and_commit_kv_backup`: the cache's own doing, whoever publishes; it keeps the node locked until the
    copy is there."""
    if tree is not watch.tree:
        yield
        return
    with watch.within(Doing("backup")):
        yield


def load_back(watch: Watch, tree: Any, node_id: Any, mem_quota: Any = None, req: Any = None) -> Reading:
    """`load_back`: the cache's own doing, for a request that matched what is on the host."""
    if tree is not watch.tree:
        yield
        return
    with watch.within(Doing("load", domain=domain(req) if req is not None else None)):
        yield


def load(
    watch: Watch, controller: Any, host_indices: Any, priority: Any = None, node_id: Any = -1, *args: Any, **named: Any
) -> Reading:
    """`load`: token slots for what comes back; they are the node's."""
    result = yield
    host, doing = watch.host, watch.current("load")
    if host is None or not watch.slots or controller is not host.tree.cache_controller or result is None:
        return
    if not result.numel() or named.get("device_indices") is not None:
        return
    ns = doing.domain if doing is not None else None
    watch.then(partial(_loaded, watch, node_name(node_id), ns), watch.take(result))


def _loaded(watch: Watch, name: str, ns: str | None, slots: Slots) -> None:
    watch.add_to_node(slots, name)
    watch.san.insert(KV, slots, node=name, ns=ns)


# -- the copies


def write_out(watch: Watch, engine: Any, transfers: Any) -> Reading:
    """`submit_device_to_host`: the stream reads token slots and writes the host's."""
    names = _begin(watch, engine, transfers, reads=KV, writes=HOST, stream=engine.device_to_host_stream)
    completion = yield
    _expect(watch, completion, names)


def bring_back(watch: Watch, engine: Any, transfers: Any, **named: Any) -> Reading:
    """`submit_host_to_device`: the stream reads the host's slots and writes token slots."""
    names = _begin(watch, engine, transfers, reads=HOST, writes=KV, stream=engine.host_to_device_stream)
    completion = yield
    _expect(watch, completion, names)


def _begin(watch: Watch, engine: Any, transfers: Any, *, reads: str, writes: str, stream: Any) -> list[str]:
    host = watch.host
    if host is None or not watch.slots or engine is not host.tree.cache_controller.l2_transfer_engine:
        return []
    names: list[str] = []
    agent = watch.stream_name(stream)
    for each in transfers:
        if each.device_pool is not host.device or not each.device_indices.numel():
            continue
        host.copies += 1
        indices = {KV: each.device_indices, HOST: each.host_indices}
        for pool, access in ((reads, "read"), (writes, "write")):
            name = f"copy {host.copies} {reads} to {writes}, {access}"
            begun = partial(watch.san.xfer_begin, pool, xfer=name, access=access, agent=agent)
            watch.then(begun, watch.take(indices[pool]))
            names.append(name)
    return names


def _expect(watch: Watch, completion: Any, names: list[str]) -> None:
    if names:
        watch.host.under_way[id(completion.finish_event)] = (completion.finish_event, names)


def ended(watch: Watch, event: Any) -> None:
    """The host has waited for this event: the copies that it ends are over."""
    if watch.host is not None:
        _, names = watch.host.under_way.pop(id(event), (None, ()))
        for name in names:
            watch.san.xfer_end(xfer=name)
