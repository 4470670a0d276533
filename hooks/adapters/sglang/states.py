"""Recurrent states: one slot for each request, further ones that keep a past state of it for the prefix cache, and
those that the cache has taken over.

Slots are taken for a whole group of requests at once, and named when a request's record gets them. What the device does
with them is told where the engine copies or clears them by slot; what the model's layers read and write is not seen.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import numpy as np

from . import kv
from .tree import node_name
from .watch import NONE, STATES, Slots, Watch

Reading = Generator[None, Any, None]

ROWS_WITH_STATES = "HybridReqToTokenPool"
ALLOCATOR = "MambaSlotAllocator"


class States:
    """What the adapter knows of the states: their allocator, and which tree node holds which."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.allocator = rows.mamba_allocator
        self.size = int(self.allocator.size) + 1
        self.node_of: Slots = np.zeros(self.size, np.int64)
        """For every slot the number in `Watch.nodes` of the tree node that holds it; 0 is none."""

    def forget_nodes(self) -> None:
        """The tree is empty."""
        self.node_of[:] = 0


def watched(rows: Any) -> States | None:
    """The states of a scheduler's row pool, if it has any."""
    return States(rows) if type(rows).__name__ == ROWS_WITH_STATES else None


def obstacle(states: States) -> str | None:
    """Why the states cannot be followed."""
    if type(states.allocator).__name__ != ALLOCATOR:
        return f"the states of a {type(states.allocator).__name__} are not followed yet"
    if states.rows.mamba_ckpt_pool is not None:
        return "the compressed states that the cache keeps are not followed yet"
    if int(states.allocator.available_size()) != int(states.allocator.size):
        return "states were handed out before the scheduler was ready"
    return None


def declare(watch: Watch, states: States) -> None:
    """The states become a pool of their own; what layers write is not seen, so that nobody asks whether they did."""
    watch.san.pool(STATES, kind="state", size=states.size, reserved=[0], init=False)


def alloc(watch: Watch, allocator: Any, need_size: int) -> Reading:
    """`_do_alloc`: slots for one request, or for all of a group that will draw from them."""
    result = yield
    if _ours(watch, allocator) and result is not None and result.numel():
        watch.then(partial(watch.san.alloc, STATES), watch.take(result))


def free(watch: Watch, allocator: Any, free_index: Any) -> Reading:
    """`free(slots)`: by a request, by the cache, or of what a group did not need."""
    if not _ours(watch, allocator) or not free_index.numel():
        yield
        return
    taken = watch.keep(free_index)  # it may be a view of the places of a buffer, which get other slots
    giver = kv.Giver.here(watch, None)
    change = kv.Change.begun(allocator)
    yield
    change.over(allocator, free_index.numel())
    watch.then(partial(_given_back, watch, giver, change), taken)


def _given_back(watch: Watch, giver: kv.Giver, change: kv.Change, slots: Slots) -> None:
    if change.came != slots.size:
        kv.compare(watch, change, slots, 1, partial(_tell, watch, giver, slots))
    else:
        _tell(watch, giver, slots, NONE, NONE)


def _tell(watch: Watch, giver: kv.Giver, slots: Slots, again: Slots, lost: Slots) -> None:
    states = watch.states
    inside = np.where((slots >= 0) & (slots < states.size), slots, 0)
    numbers = states.node_of[inside]
    for number in np.unique(numbers).tolist():
        its, by = slots[numbers == number], giver.owner
        if giver.evicting:
            by = f"tree:{watch.nodes[number]}" if number else "eviction"
        told = its if giver.evicting else its[~np.isin(its, lost)]
        if told.size:
            watch.san.free(STATES, told, owner=by)
        if giver.evicting:
            kv.lose(watch, its[np.isin(its, lost)], f"evicted from node {watch.nodes[number] or '?'}", STATES)
    if again.size:
        watch.san.free(STATES, again, owner=giver.owner)
    states.node_of[inside] = 0
    kv.leave(watch, numbers)


def clear(watch: Watch, allocator: Any) -> Reading:
    """Every slot is free again."""
    yield
    if _ours(watch, allocator):
        watch.san.reset(STATES)
        watch.then(watch.states.forget_nodes)


def _ours(watch: Watch, allocator: Any) -> bool:
    return watch.slots and watch.states is not None and allocator is watch.states.allocator


# -- whose they are


def held(watch: Watch, record: Any) -> Any | None:
    """What `then` takes of the states that a record holds; None if it holds none."""
    if watch.states is None or not watch.slots:
        return None
    return _taken(watch, _tensors(record))


def _tensors(record: Any) -> list[Any]:
    """The request's own state, and the past ones in its buffer: which of its places have one, the host knows."""
    tensors = [] if record.mamba_pool_idx is None else [record.mamba_pool_idx.reshape(1)]
    buffer = record.mamba_ping_pong_track_buffer
    if buffer is not None:
        empty = record.mamba_ping_pong_empty
        tensors += [buffer[place : place + 1] for place in range(len(empty)) if not empty[place]]
    return tensors


def _taken(watch: Watch, tensors: list[Any]) -> Any | None:
    """All in one: each copy from a device has its price."""
    import torch

    return watch.take(torch.cat(tensors)) if tensors else None


def _own(watch: Watch, reqs: Sequence[Any]) -> None:
    """What these requests hold is theirs."""
    if not watch.slots:
        return
    tensors: list[Any] = []
    owners: list[tuple[str, int]] = []
    for req in reqs:
        its = _tensors(req.kv)
        tensors += its
        owners.append((watch.owner_of(req), len(its)))
    taken = _taken(watch, tensors)
    if taken is not None:
        watch.then(partial(_owned, watch, owners), taken)


def _owned(watch: Watch, owners: list[tuple[str, int]], slots: Slots) -> None:
    """So many of these slots are the first owner's, so many the next one's."""
    begin = 0
    for owner, count in owners:
        if count:
            watch.san.own(STATES, slots[begin : begin + count], owner=owner)
        begin += count


def bind(watch: Watch, pool: Any, reqs: Any) -> Reading:
    """`alloc(reqs)`: each request that has none gets a state, and a buffer for its past."""
    result = yield
    if pool is watch.rows and watch.states is not None and result is not None:
        _own(watch, reqs)


def set_slot(watch: Watch, pool: Any, req: Any, idx: int, value: Any) -> Reading:
    """`set_mamba_ping_pong_slot`: a place of a request's buffer gets another slot, or none."""
    yield
    if pool is watch.rows and watch.states is not None:
        _own(watch, [req])


def match(watch: Watch, part: Any, params: Any, result: Any) -> Reading:
    """A match takes a slot, into which the cached state will be copied when the forward begins."""
    yield
    if part.cache is watch.tree and watch.states is not None and params.cow_mamba and params.req is not None:
        _own(watch, [params.req])


# -- what the cache keeps


def prepare(watch: Watch, part: Any, req: Any, insert_params: Any, *args: Any, **kwargs: Any) -> Reading:
    """A publication brings a state: one of the request's, or a copy in a slot of its own."""
    yield
    value = insert_params.mamba_value
    if part.cache is watch.tree and watch.slots and watch.states is not None and value is not None:
        watch.then(partial(watch.san.own, STATES, owner=watch.owner_of(req)), watch.take(value))


def cleanup(
    watch: Watch, part: Any, req: Any, is_finished: bool, insert_result: Any = None, insert_params: Any = None
) -> Reading:
    """Where the node had no state yet, it has taken this one over; else the request gives it back (in the call)."""
    value = None if insert_params is None else insert_params.mamba_value
    taken = insert_result is not None and not insert_result.mamba_exist and value is not None
    if taken and part.cache is watch.tree and watch.slots and watch.states is not None:
        name = node_name(insert_result.last_device_node)
        watch.then(partial(_inserted, watch, name, watch.owner_of(req), _domain(watch)), watch.take(value))
    yield


def _inserted(watch: Watch, name: str, owner: str, ns: str | None, slots: Slots) -> None:
    watch.states.node_of[slots] = watch.node_number(name)
    watch.node_slots[name] = watch.node_slots.get(name, 0) + int(slots.size)
    watch.san.insert(STATES, slots, node=name, owner=owner, ns=ns)


def _domain(watch: Watch) -> str | None:
    """The key domain of the publication that is going on."""
    doing = watch.current("publish")
    return doing.domain if doing is not None else None


# -- what the device does with them


def copy(watch: Watch, pool: Any, src_indices: Any, dst_indices: Any) -> Reading:
    """`copy_from`: a cached state into a request's slot, or a request's into one for the cache."""
    yield
    if _data(watch, pool):
        agent = watch.stream()
        watch.then(partial(watch.san.read, STATES, agent=agent), watch.take(src_indices))
        watch.then(partial(watch.san.write, STATES, agent=agent), watch.take(dst_indices))


def clear_slots(watch: Watch, pool: Any, indices: Any) -> Reading:
    """`clear_slots`: a fresh request's state begins at nothing."""
    yield
    if _data(watch, pool):
        watch.then(partial(watch.san.write, STATES, agent=watch.stream()), watch.take(indices))


def _data(watch: Watch, pool: Any) -> bool:
    return watch.slots and watch.san.data and watch.states is not None and pool is watch.states.rows.mamba_pool
