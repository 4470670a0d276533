"""Readers of the token slot allocators: what is handed out, given back, and given back later (free groups).

What the engine asked for is compared with what the allocator has afterwards. Where they differ, something between the
two lost slots or gave them back again, and the free list says which; that comparison costs two lengths a call, and the
free list is read only after they disagreed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .watch import KV, NONE, Group, Slots, Watch, counts

Reading = Generator[None, Any, None]


def alloc(watch: Watch, allocator: Any, *args: Any, **kwargs: Any) -> Reading:
    """`alloc`, `alloc_extend`, `alloc_decode`: the result is slot ids, or None when the pool is exhausted."""
    result = yield
    pool = watch.pool_of(allocator)
    if pool is not None and result is not None and result.numel():
        watch.then(partial(watch.san.alloc, pool), watch.take(result))


def free(watch: Watch, allocator: Any, free_index: Any) -> Reading:
    """`free(free_index)`: with pages the ids may repeat a page; one page is then given back once."""
    if not _counts(watch, allocator):
        yield
        return
    yield from _give_back(watch, allocator, free_index, np.unique if watch.page > 1 else _same)


def free_segment(watch: Watch, allocator: Any, free_index: Any, *, start_pos: int) -> Reading:
    """`free_segment(free_index, start_pos=)`: a piece of a row that starts on a page, each page once."""
    if not _counts(watch, allocator):
        yield
        return
    yield from _give_back(watch, allocator, free_index, _same)


def free_page_ids(watch: Watch, allocator: Any, page_ids: Any) -> Reading:
    """`free_page_ids(page_ids)`: whole pages, each once."""
    if not _counts(watch, allocator):
        yield
        return
    yield from _give_back(watch, allocator, page_ids, partial(whole, page=watch.page))


def _counts(watch: Watch, allocator: Any) -> bool:
    """Is this a call from outside of the watched allocator? It calls its own methods too."""
    return allocator is watch.kv and watch.slots and not watch.freeing


def _same(ids: Slots) -> Slots:
    return ids


@dataclass(slots=True)
class Change:
    """What a call did to an allocator: how many slots came to be available, and its free lists before and after."""

    came: int
    before: tuple[Any, ...]
    after: tuple[Any, ...] = ()

    @classmethod
    def begun(cls, allocator: Any) -> Change:
        """To be called before the call."""
        return cls(-allocator.available_size(), free_lists(allocator))

    def over(self, allocator: Any, asked: int | None = None) -> None:
        """To be called after it; `asked` is how many were to come, where that is known. If they did, nobody will want
        the lists, which are large and would be kept until the ids are there."""
        self.came += allocator.available_size()
        if self.came == asked:
            self.before = ()
        else:
            self.after = free_lists(allocator)


@dataclass(frozen=True, slots=True)
class Giver:
    """Who gives slots back, in which group. `replacing`: it is the cache, if the tree holds them."""

    owner: str | None
    evicting: bool
    group: Group | None
    replacing: bool = False

    @classmethod
    def here(cls, watch: Watch, group: Group | None) -> Giver:
        """Whoever the engine acts for."""
        what = watch.doing[-1].what if watch.doing else None
        return cls(watch.actor(), what == "evict", group, what == "replace")


def _give_back(watch: Watch, allocator: Any, ids: Any, slots_of: Callable[[Slots], Slots]) -> Reading:
    if not ids.numel():
        yield
        return
    taken = watch.keep(ids)  # the caller may overwrite what these ids are a view of
    giver = Giver.here(watch, watch.group)
    change = Change.begun(allocator)
    watch.freeing += 1
    try:
        yield
    finally:
        watch.freeing -= 1
    change.over(allocator, ids.numel() if watch.page == 1 else None)
    watch.then(partial(_given_back, watch, giver, change, slots_of), taken)


def _given_back(watch: Watch, giver: Giver, change: Change, slots_of: Callable[[Slots], Slots], ids: Slots) -> None:
    slots = slots_of(ids)
    if giver.replacing and watch.nodes_at(slots).any():
        giver = Giver(None, True, giver.group)
    if giver.group is None:
        pages = np.unique(slots // watch.page) if watch.page > 1 else slots
        if change.came != pages.size * watch.page:
            compare(watch, change, pages, watch.page, partial(_tell, watch, giver, slots))
            return
    _tell(watch, giver, slots, NONE, NONE)


def _tell(watch: Watch, giver: Giver, slots: Slots, again: Slots, lost: Slots) -> None:
    owner, evicting, group = giver.owner, giver.evicting, giver.group
    told = slots[~np.isin(slots // watch.page, lost // watch.page)] if lost.size and not evicting else slots
    nodes = watch.nodes_at(lost) if lost.size and evicting else NONE
    names = {number: watch.nodes[number] or "?" for number, _ in counts(nodes)}
    if evicting:
        evict(watch, told)
    elif told.size:
        _end_shares_in(watch, told, owner)
        watch.san.free(KV, told, owner=owner, group=group.name if group is not None else None)
    if group is not None:
        group.pending = True
        group.given.append((told, None if evicting else owner))
    for number, name in names.items():
        lose(watch, lost[nodes == number], f"evicted from node {name}")
    if again.size:
        watch.san.free(KV, again, owner="eviction" if evicting else owner)


def _end_shares_in(watch: Watch, slots: Slots, owner: str | None) -> None:
    """A free of slots that the owner shares would only end its share, but the allocator takes what it is given. So the
    share ends first, and the free is judged as what it is: one of slots that the tree holds."""
    numbers = watch.nodes_at(slots)
    if owner is None or not numbers.any():
        return
    held = slots[numbers != 0]
    mine = held[watch.among(held, watch.used_by(owner))]
    if mine.size:
        watch.san.free(KV, mine, owner=owner)
    for number, count in counts(numbers[numbers != 0]):
        watch.node_slots[watch.nodes[number]] -= count
    watch.hold(held, 0)


def evict(watch: Watch, slots: Slots) -> None:
    """The cache gives slots back."""
    numbers = watch.nodes_at(slots)
    watch.san.evict(KV, slots)
    watch.hold(slots, 0)
    leave(watch, numbers)


def leave(watch: Watch, numbers: Slots) -> None:
    """Nodes of these numbers (0: none) have one slot less for each time they stand here; who holds nothing more and is
    not locked goes."""
    for number, count in counts(numbers):
        name = watch.nodes[number]
        if not name:
            continue
        left = watch.node_slots[name] = watch.node_slots.get(name, 0) - count
        if left <= 0 and not watch.node_locks.get(name):
            watch.san.evict(node=name)
            watch.forget_node(name)


def free_group_begin(watch: Watch, allocator: Any) -> Reading:
    """From here on what is freed is pending."""
    yield
    if allocator is watch.kv and watch.slots and watch.group is None:
        watch.groups += 1
        watch.group = Group(f"group {watch.groups}")


def free_group_end(watch: Watch, allocator: Any) -> Reading:
    """What is pending becomes available; the allocator calls its own `free` for that."""
    if not _counts(watch, allocator) or watch.group is None:
        yield
        return
    change = Change.begun(allocator)
    watch.freeing += 1
    try:
        yield
    finally:
        watch.freeing -= 1
    change.over(allocator)
    group, watch.group = watch.group, None
    watch.then(partial(_group_over, watch, group, change))


def _group_over(watch: Watch, group: Group, change: Change) -> None:
    if group.pending:
        watch.san.flush(group=group.name)
    pending = np.concatenate([slots for slots, _ in group.given]) if group.given else NONE
    pages = np.unique(pending // watch.page) if watch.page > 1 else pending
    if change.came != pages.size * watch.page:
        compare(watch, change, pages, watch.page, partial(settle, watch, KV, group.given, watch.page))


def settle(
    watch: Watch, pool: str, given: list[tuple[Slots, str | None]], page: int, again: Slots, lost: Slots
) -> None:
    """Of slots that were given back together, some were lost, and others came back twice."""
    for slots, owner in given:
        lose(watch, slots[np.isin(slots // page, lost // page)], owner, pool)
        mine = again[np.isin(again // page, slots // page)]
        if mine.size:
            watch.san.free(pool, mine, owner=owner)
            again = np.setdiff1d(again, mine)
    if again.size:
        watch.san.free(pool, again)


def clear(watch: Watch, allocator: Any) -> Reading:
    """Everything is free again."""
    yield
    if allocator is watch.kv and watch.slots:
        watch.group = None
        watch.san.reset(KV)
        watch.then(watch.forget_nodes)


# -- where the free list and what was asked for disagree


def free_lists(allocator: Any) -> tuple[Any, ...]:
    """The allocator's free list now; allocators make a new tensor for every change, so that these stay as they are."""
    slots = getattr(allocator, "free_slots", None)  # of states
    if slots is not None:
        return (slots,)
    staged = getattr(allocator, "staged_pages", None)
    if staged is None:
        return (allocator.free_pages, allocator.release_pages)
    return (allocator.free_pages, *staged)


def compare(watch: Watch, change: Change, pages: Slots, page: int, do: Callable[[Slots, Slots], None]) -> None:
    """Does `do(again, lost)`: slots that came back though nobody asked, and slots that were to come back and did not.
    The pages are those that were to come back."""

    def lists_there(*lists: Slots) -> None:
        was = Counter(number for each in lists[: len(change.before)] for number in each.tolist())
        now = Counter(number for each in lists[len(change.before) :] for number in each.tolist())
        came, asked = now - was, Counter(pages.tolist())
        again = np.array(sorted((came - asked).elements()), np.int64)
        lost = np.array(sorted((asked - came).elements()), np.int64)
        do(whole(again, page), whole(lost, page))

    watch.then(lists_there, *map(watch.take, (*change.before, *change.after)))


def whole(pages: Slots, page: int) -> Slots:
    return pages if page == 1 else (pages[:, None] * page + np.arange(page)).reshape(-1)


def lose(watch: Watch, slots: Slots, owner: str | None, pool: str = KV) -> None:
    """The engine let go of slots that its allocator did not get: nobody will ever give them back."""
    if slots.size:
        name = owner or "nobody"
        if name in watch.living:  # it goes on, and its end is not now
            name = f"{name}, given back"
        watch.san.alloc(pool, slots, owner=name)
        watch.san.req_end(owner=name)
