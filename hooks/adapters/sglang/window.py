"""The sliding window: a second pool of slots that only some layers use, found through a map from token slots.

SGLang keeps two allocators under one: the token slots' and the window's. What is handed out of the window belongs to
whoever holds the token slot that maps it, so that its owner follows the token slot's (`Follower`). A token slot whose
window slot was given back is a tombstone: its entry is 0, the padding slot.

Where the map is on a device, it is ahead of what the shadow knows. So the shadow has a copy of it, which is changed
wherever the engine changes its own. What is given back is read from the engine's (`Window.look_up`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kvsan.events import CacheInsert, Give, Own

from ...specification import hookimpl
from . import kv
from .batches import batch_name
from .watch import KV, NONE, WINDOW, Doing, Slots, Watch, all_inside

Reading = Generator[None, Any, None]

MAP = "full_to_swa"
ALLOCATOR = "SWATokenToKVPoolAllocator"


class Window:
    """What the adapter knows of the window: the allocator that has both pools, and which tree node holds which slot."""

    def __init__(self, allocator: Any) -> None:
        self.allocator = allocator
        self.inner = allocator.swa_attn_allocator
        self.page = int(allocator.page_size)
        self.size = (int(self.inner.size) // self.page + 1) * self.page
        self.node_of: Slots = np.zeros(self.size, np.int64)
        """For every window slot the number in `Watch.nodes` of the tree node that holds it; 0 is none."""
        self.pending: list[tuple[Slots, str | None]] = []
        """What was given back in the free group that is open, and by whom."""
        self.map: Slots = np.zeros(allocator.full_to_swa_index_mapping.numel() - 1, np.int64)
        """For every token slot the engine's entry, as far as the shadow is."""

    def look_up(self, ids: Any) -> Any:
        """The engine's entries for token slots now, where its map is; 0 or less for ids that no token slot has, with
        which a device must not be asked."""
        table = self.allocator.full_to_swa_index_mapping  # the last entry is -1
        return table[ids.clamp(0, table.numel() - 1)]

    def remember(self, keys: Slots, values: Slots | int) -> None:
        """The engine has these entries for token slots."""
        if all_inside(keys, self.map.size):
            self.map[keys] = values
            return
        inside = (keys >= 0) & (keys < self.map.size)
        self.map[keys[inside]] = values if isinstance(values, int) else values[inside]

    def entries(self, keys: Slots) -> Slots:
        """The map's entries for token slots, as far as the shadow is; 0 for ids that no token slot has."""
        if all_inside(keys, self.map.size):
            return self.map[keys]
        inside = (keys >= 0) & (keys < self.map.size)
        return np.where(inside, self.map[np.where(inside, keys, 0)], 0)

    def mapped(self, keys: Slots) -> Slots:
        """The window slots of token slots; those of tombstones are left out."""
        entries = self.entries(keys)
        return entries[(entries > 0) & (entries < self.size)]

    def nodes_at(self, slots: Slots) -> Slots:
        """The numbers of the nodes that hold these window slots; 0 for none, and for ids that no window slot has."""
        inside = (slots >= 0) & (slots < self.size)
        return np.where(inside, self.node_of[np.where(inside, slots, 0)], 0)


def watched(allocator: Any) -> Window | None:
    """The window of a scheduler's allocator, if it has one."""
    return Window(allocator) if type(allocator).__name__ == ALLOCATOR else None


def obstacle(window: Window) -> str | None:
    """Why the window's slots cannot be followed."""
    if window.allocator.swa_req_ring:
        return "the window's slots are a ring that every row has for itself"
    if int(window.inner.available_size()) != int(window.inner.size) // window.page * window.page:
        return "window slots were handed out before the scheduler was ready"
    return None


def declare(watch: Watch, window: Window) -> None:
    """The window becomes a pool of its own, whose owners follow the token slots'. On a device, graphs and kernels write
    unseen, so that nobody asks whether they did."""
    seen = watch.san.data and watch.readback is None
    watch.san.pool(WINDOW, kind="kv", size=window.size, page=window.page, reserved=np.arange(window.page), init=seen)
    watch.san.add_plugin(Follower(watch, window), "SGLang's sliding window")


class Follower:
    """Whoever gets token slots gets the window slots that they map."""

    def __init__(self, watch: Watch, window: Window) -> None:
        self._watch, self._window = watch, window

    @hookimpl
    def kvsan_own(self, event: Own) -> None:
        """Slots of a batch are named."""
        slots = self._private(event.pool, event.slots)
        if slots.size:
            self._watch.san.own(WINDOW, slots, owner=event.owner)

    @hookimpl
    def kvsan_give(self, event: Give) -> None:
        """A session takes over; what the tree holds stays the tree's."""
        slots = self._private(event.pool, event.slots)
        if slots.size:
            self._watch.san.give(WINDOW, slots, owner=event.owner, to=event.to)

    @hookimpl
    def kvsan_cache_insert(self, event: CacheInsert) -> None:
        """The tree takes both halves over."""
        slots = self._private(event.pool, event.slots)
        if slots.size:
            insert(self._watch, self._window, slots, event.node, event.owner)

    def _private(self, pool: str, slots: Slots) -> Slots:
        if pool != KV:
            return NONE
        mapped: Slots = self._window.mapped(slots)
        private: Slots = mapped[self._window.node_of[mapped] == 0]
        return private


def insert(watch: Watch, window: Window, slots: Slots, name: str, owner: str | None) -> None:
    """The node takes these window slots over."""
    window.node_of[slots] = watch.node_number(name)
    watch.node_slots[name] = watch.node_slots.get(name, 0) + int(slots.size)
    watch.san.insert(WINDOW, slots, node=name, owner=owner)


# -- the map


def set_mapping(watch: Watch, allocator: Any, full_indices: Any, swa_indices: Any) -> Reading:
    """`set_full_to_swa_mapping`: after an alloc, and where the tree gives a tombstone a window slot again."""
    yield
    if _ours(watch, allocator):
        _set(watch, full_indices)


def alloc_decode(watch: Watch, allocator: Any, *args: Any, **kwargs: Any) -> Reading:
    """`alloc_decode` writes the map itself."""
    result = yield
    if _ours(watch, allocator) and result is not None:
        _set(watch, result)


def _set(watch: Watch, keys: Any) -> None:
    """What the map has now counts: an entry whose write something swallowed is the old one."""
    if keys.numel():
        entries = watch.take(watch.window.look_up(keys))
        watch.then(partial(_mapped, watch, watch.window, watch.actor()), watch.keep(keys), entries)


def _mapped(watch: Watch, window: Window, owner: str | None, keys: Slots, values: Slots) -> None:
    window.remember(keys, values)
    watch.san.map_set(map=MAP, key=keys, val=values)
    numbers = watch.nodes_at(keys)
    if not numbers.any():
        return
    for number in np.unique(numbers[numbers != 0]).tolist():
        slots = values[(numbers == number) & (values > 0)]
        slots = slots[window.nodes_at(slots) == 0]
        if slots.size:
            insert(watch, window, slots, watch.nodes[number], owner)


def clear_mapping(watch: Watch, allocator: Any, full_indices: Any) -> Reading:
    """`clear_full_to_swa_mapping`: the token slots are tombstones from here on."""
    yield
    if _ours(watch, allocator) and full_indices.numel():
        watch.then(partial(_unmapped, watch, watch.window), watch.keep(full_indices))


def clear_pages(watch: Watch, allocator: Any, full_page_representatives: Any) -> Reading:
    """`_free_swa_pages_cuda`: a kernel that looks pages up also makes them tombstones."""
    yield
    if _ours(watch, allocator) and full_page_representatives.numel():
        pages = partial(_unmapped_pages, watch, watch.window)
        watch.then(pages, watch.keep(full_page_representatives))


def _unmapped_pages(watch: Watch, window: Window, keys: Slots) -> None:
    _unmapped(watch, window, kv.whole(keys // window.page, window.page))


def _unmapped(watch: Watch, window: Window, keys: Slots) -> None:
    window.remember(keys, 0)
    watch.san.map_clear(map=MAP, key=keys)


# -- giving back


def free_segment(watch: Watch, allocator: Any, free_index: Any, start_pos: int) -> Reading:
    """`_free_swa_pages`: the window slots of a piece of a row, page by page, found by each page's first token."""
    if not _ours(watch, allocator):
        yield
        return
    yield from _give_back(watch, watch.window, free_index[:: watch.window.page], _pages_at)


def free(watch: Watch, allocator: Any, free_index: Any) -> Reading:
    """`free_swa`: the window slots of whatever pages these token slots stand on; at page 1 it is a segment."""
    if not _ours(watch, allocator) or watch.window.page == 1:
        yield
        return
    import torch

    page = watch.window.page
    offsets = torch.arange(page, dtype=free_index.dtype, device=free_index.device)
    yield from _give_back(watch, watch.window, (free_index // page)[:, None] * page + offsets, _slots_at)


def _pages_at(window: Window, entries: Slots) -> Slots:
    return kv.whole(np.maximum(entries, 0) // window.page, window.page)


def _slots_at(window: Window, entries: Slots) -> Slots:
    return np.unique(entries[(entries > 0) & (entries < window.size)])


def _ours(watch: Watch, allocator: Any) -> bool:
    return watch.slots and watch.window is not None and allocator is watch.window.allocator


def _give_back(watch: Watch, window: Window, keys: Any, slots_of: Callable[[Window, Slots], Slots]) -> Reading:
    entries = watch.take(window.look_up(keys))
    giver = kv.Giver.here(watch, watch.group if window.allocator.free_group is not None else None)
    change = kv.Change.begun(window.inner)
    yield
    change.over(window.inner)
    watch.then(partial(_given_back, watch, window, giver, change, slots_of), entries)


def _given_back(
    watch: Watch,
    window: Window,
    giver: kv.Giver,
    change: kv.Change,
    slots_of: Callable[[Window, Slots], Slots],
    entries: Slots,
) -> None:
    slots = slots_of(window, entries)
    if not slots.size:
        return
    pages = np.unique(slots // window.page)
    if giver.group is None and change.came != pages.size * window.page:
        kv.compare(watch, change, pages, window.page, partial(_tell, watch, window, giver, slots))
    else:
        _tell(watch, window, giver, slots, NONE, NONE)


def _tell(watch: Watch, window: Window, giver: kv.Giver, slots: Slots, again: Slots, lost: Slots) -> None:
    group = giver.group
    numbers = window.nodes_at(slots)
    if again.size:
        watch.san.free(WINDOW, again, owner="eviction" if giver.evicting else giver.owner)
    stays = np.isin(slots // window.page, lost // window.page)
    for number in np.unique(numbers).tolist():
        its = numbers == number
        by = giver.owner
        if giver.evicting:
            by = f"tree:{watch.nodes[number]}" if number else "eviction"
        told = slots[its] if giver.evicting else slots[its & ~stays]  # what a request lost, it still holds
        if told.size:
            watch.san.free(WINDOW, told, owner=by, group=group.name if group is not None else None)
            if group is not None:
                group.pending = True
        if group is not None:
            window.pending.append((slots[its], by))
        elif giver.evicting:
            kv.lose(watch, slots[its & stays], f"evicted from node {watch.nodes[number] or '?'}", WINDOW)
    inside = slots[numbers != 0]
    window.node_of[inside] = 0
    kv.leave(watch, numbers)


def free_group_end(watch: Watch, allocator: Any) -> Reading:
    """What is pending becomes available; that both pools' pending slots do is told by the token slots' own group."""
    if not _ours(watch, allocator):
        yield
        return
    change = kv.Change.begun(watch.window.inner)
    yield
    change.over(watch.window.inner)
    watch.then(partial(_group_over, watch, watch.window, change))


def _group_over(watch: Watch, window: Window, change: kv.Change) -> None:
    pending, window.pending = window.pending, []
    slots = np.concatenate([slots for slots, _ in pending]) if pending else NONE
    pages = np.unique(slots // window.page)
    if change.came != pages.size * window.page:
        kv.compare(watch, change, pages, window.page, partial(kv.settle, watch, WINDOW, pending, window.page))


def clear(watch: Watch, allocator: Any) -> Reading:
    """Everything is free again, and the map is empty."""
    yield
    if _ours(watch, allocator):
        watch.san.reset(WINDOW)
        watch.then(partial(_cleared, watch, watch.window))


def _cleared(watch: Watch, window: Window) -> None:
    window.node_of[:] = 0
    window.pending = []
    keys = np.flatnonzero(window.map)
    if keys.size:
        _unmapped(watch, window, keys)


# -- who acts


def slide(watch: Watch, tree: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """`evict_sliding_windows`: a request gives back the window slots that no further token of it sees."""
    if tree is not watch.tree:
        yield
        return
    with watch.within(Doing("slide", owner=watch.owner_of(req))):
        yield


def apply_action(watch: Watch, tree: Any, action: Any) -> Reading:
    """`_apply_cache_action`: a node that was a tombstone goes on with the request's token slots, and the cache gives
    its own old ones back. Or the request's are given back, which is the request's doing; the action does not say."""
    if tree is watch.tree and type(action).__name__ == "FreeDeviceKVFullOnly":
        with watch.within(Doing("replace")):
            yield
    else:
        yield


# -- what attention reads and writes


def set_kv_buffer(watch: Watch, pool: Any, layer: Any, loc_info: Any, *args: Any, **kwargs: Any) -> Reading:
    """`set_kv_buffer`: a layer's new keys and values; of a window layer, those in the window's pool."""
    yield
    if not _reads(watch, pool) or not pool.layers_mapping[layer.layer_id][1]:
        return
    doing, slots = watch.current("run"), getattr(loc_info, "swa_loc", None)
    if slots is not None:
        batch = batch_name(doing.batch) if doing is not None and doing.batch is not None else None
        watch.then(partial(watch.san.write, WINDOW, batch=batch, agent=watch.stream()), watch.keep(slots))


def attend(
    watch: Watch,
    backend: Any,
    query: Any,
    output: Any,
    k_cache: Any,
    v_cache: Any,
    req_to_token: Any,
    req_pool_indices: Any,
    seq_lens: Any,
    *args: Any,
    **kwargs: Any,
) -> Reading:
    """Attention of the backend in plain torch: the ids with which it really indexes the window's keys."""
    if not _reads(watch, backend.token_to_kv_pool) or not _is_window_buffer(watch, k_cache):
        yield
        return
    from .tap import Tap

    with Tap(k_cache) as tap:
        yield
    doing = watch.current("run")
    batch = batch_name(doing.batch) if doing is not None and doing.batch is not None else None
    attention = Attention(batch, watch.stream(), dict(watch.owner_of_row))
    known = len(tap.ids) == req_pool_indices.numel()
    for number, ids in enumerate(tap.ids):
        taken = [watch.take(ids)]
        if known:
            row = req_pool_indices[number : number + 1]
            cells = watch.rows.req_to_token[:, : ids.numel()].index_select(0, row)
            taken += [watch.take(row), watch.take(cells)]
        watch.then(partial(_read, watch, watch.window, attention), *taken)


@dataclass(frozen=True, slots=True)
class Attention:
    """The batch that reads, its stream, and whose the rows are."""

    batch: str | None
    agent: str
    owner_of_row: dict[int, str]


def _read(
    watch: Watch, window: Window, attention: Attention, read: Slots, row: Slots = NONE, tokens: Slots = NONE
) -> None:
    """What was read and, where they are known, the row and its token slots."""
    owner = note = None
    if row.size:
        owner, note = attention.owner_of_row.get(int(row[0])), _wrong_space(window, read, tokens)
    watch.san.read(WINDOW, np.unique(read), batch=attention.batch, owner=owner, agent=attention.agent, note=note)


def _wrong_space(window: Window, read: Slots, tokens: Slots) -> str | None:
    """What to say of a read whose ids are the row's token slots where they should be those slots' window slots."""
    if not np.array_equal(read, tokens):
        return None
    wrong = int(np.count_nonzero(window.entries(tokens) != read))
    if not wrong:
        return None
    return (
        f"the ids are token slots of the pool {KV!r}, which address other slots of {WINDOW!r}: for {wrong} of "
        f"{read.size} the map {MAP!r} names another slot, or none any more; translate them first"
    )


def _reads(watch: Watch, pool: Any) -> bool:
    return watch.slots and watch.san.data and watch.window is not None and pool is watch.window.allocator.get_kvcache()


def _is_window_buffer(watch: Watch, buffer: Any) -> bool:
    buffers = watch.window.allocator.get_kvcache().swa_kv_pool.k_buffer
    return any(each.data_ptr() == buffer.data_ptr() for each in buffers)
