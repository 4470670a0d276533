"""SGLang's allocator of a sliding window, its map and its attention in plain torch under the adapter's probes: each
fault once, and the same use without it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from adapters.device import on_host
from kvsan.hooks.adapters.sglang import window
from kvsan.hooks.adapters.sglang.watch import KV, ROWS, WINDOW, Doing, Slots, Watch
from sglang.kernels.ops.memory import allocator as kernels
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from .interpreted import interpret
from .test_pools import request_
from .watching import Way, begin, kinds, write_row
from .watching import end as ended
from .watching import settle as settle_ids

SIZE, SIZE_SWA, PAGE = 128, 96, 16


@pytest.fixture(params=[1, PAGE])
def watch(request: pytest.FixtureRequest, way: Way, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A watch over rows, 128 token slots and 96 window slots, which attention reads too (level full). Slot ids that are
    late come when a test settles (`kinds`)."""
    page = request.param
    pool = SWAKVPool(
        size=SIZE, size_swa=SIZE_SWA, page_size=page, dtype=torch.float32, head_num=1, head_dim=4,
        swa_attention_layer_ids=[0], full_attention_layer_ids=[1], device=way.device,
    )  # fmt: skip
    allocator = SWATokenToKVPoolAllocator(SIZE, SIZE_SWA, page, torch.float32, way.device, pool, need_sort=False)
    watch = begin(ReqToTokenPool(4, SIZE, way.device, False), allocator.full_attn_allocator, way, level="full")
    watch.window = window.watched(allocator)
    window.declare(watch, watch.window)
    watch.tree = SimpleNamespace(tree_components=())
    assert window.obstacle(watch.window) is None
    if way.device != "cpu":
        on_a_gpu(monkeypatch)
    yield watch
    ended(watch)


class Row:
    """A request that prefills and decodes as the scheduler would have it."""

    def __init__(self, watch: Watch, rid: str) -> None:
        self.watch, self.rid, self.length = watch, rid, 0
        self.allocator = watch.window.allocator
        self.req = request_(rid)
        watch.san.req_start(owner=rid)
        watch.rows.alloc([self.req])

    @property
    def slots(self) -> torch.Tensor:
        """The token slots of the row."""
        return self.watch.rows.req_to_token[self.req.kv.req_pool_idx, : self.length].to(torch.int64)

    @property
    def window_slots(self) -> torch.Tensor:
        """The window slots that they map."""
        return self.allocator.full_to_swa_index_mapping[self.slots]

    def numbers(self, *numbers: int) -> torch.Tensor:
        """Where the slots are."""
        return torch.tensor(numbers, device=self.allocator.device)

    def extend(self, count: int) -> None:
        """Prefills `count` tokens."""
        before, after = torch.tensor([self.length]), torch.tensor([self.length + count])
        if self.allocator.page_size == 1:
            slots = self.allocator.alloc(count)
        else:
            last = self.slots[-1:] if self.length else self.numbers(-1)
            slots = self.allocator.alloc_extend(
                self.numbers(self.length), before, self.numbers(self.length + count), after, last, count
            )
        prefix = self.slots if self.length else None
        write_row(self.watch, self.req.kv.req_pool_idx, self.length, self.length + count, prefix, slots)
        self._computed(slots, count)

    def decode(self) -> None:
        """Decodes one token."""
        after = torch.tensor([self.length + 1])
        if self.allocator.page_size == 1:
            slots = self.allocator.alloc(1)
        else:
            slots = self.allocator.alloc_decode(self.numbers(self.length + 1), after, self.slots[-1:])
        where = (self.numbers(self.req.kv.req_pool_idx), self.numbers(self.length))
        batch = SimpleNamespace(req_pool_indices_cpu=on_host(where[0]), seq_lens_cpu=on_host(where[1]))
        with self.watch.within(Doing("decode", batch=batch)):
            self.watch.rows.write(where, slots.to(torch.int32))
        self._computed(slots, 1)

    def _computed(self, slots: torch.Tensor, count: int) -> None:
        self.length += count
        keys = torch.zeros(count, 1, 4, device=slots.device)
        locations = SimpleNamespace(loc=slots, swa_loc=self.allocator.translate_loc_from_full_to_swa(slots))
        window_pool = self.allocator.get_kvcache()
        window_pool.set_kv_buffer(SimpleNamespace(layer_id=0), _write_loc(locations), keys, keys)

    def slide(self, begin: int, end: int) -> None:
        """The window has moved past these tokens."""
        with self.watch.within(Doing("slide", owner=self.rid)):
            self.allocator.free_swa_segment(self.slots[begin:end], start_pos=begin)

    def attend(self, *, translated: bool) -> None:
        """One decode step of the window layer reads the whole row, as SGLang's backend in plain torch does."""
        pool = self.allocator.get_kvcache()
        backend = object.__new__(TorchNativeAttnBackend)
        backend.token_to_kv_pool = pool
        table = self.watch.rows.req_to_token
        if translated:
            table = pool.translate_loc_from_full_to_swa(table.to(torch.int64))
        query = torch.zeros(1, 1, 4, device=table.device)
        backend._run_sdpa_forward_decode(
            query, torch.empty_like(query), pool.get_key_buffer(0), pool.get_value_buffer(0), table,
            self.numbers(self.req.kv.req_pool_idx), self.numbers(self.length),
        )  # fmt: skip

    def finish(self, dead: int = 0) -> None:
        """Gives everything back; of the first `dead` tokens only the token slots are left."""
        with self.watch.within(Doing("release", owner=self.rid)):
            if dead:
                self.allocator.free_full_segment(self.slots[:dead], start_pos=0)
            self.allocator.free_segment(self.slots[dead:], start_pos=dead)
            self.watch.rows.free(self.req)
        self.watch.san.req_end(owner=self.rid)


def _write_loc(locations: Any) -> Any:
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    return KVWriteLoc(locations.loc, locations.swa_loc)


def settle(watch: Watch) -> None:
    """Nothing is left, the allocators' own totals agree, and the shadow's map is the engine's."""
    allocator = watch.window.allocator
    watch.san.idle()
    watch.san.count(KV, available=allocator.full_available_size(), total=SIZE)
    watch.san.count(WINDOW, available=allocator.swa_available_size(), total=SIZE_SWA)
    settle_ids(watch)
    assert watch.window.map.tolist() == allocator.full_to_swa_index_mapping[:-1].tolist()


def test_a_window_that_moves_on(watch: Watch) -> None:
    one, two = Row(watch, "a"), Row(watch, "b")
    one.extend(40)
    two.extend(20)
    for _ in range(10):
        one.decode()
        two.decode()
    one.slide(0, 32)
    one.decode()
    one.attend(translated=True)
    two.attend(translated=True)
    one.finish(dead=32)
    two.finish()
    settle(watch)
    assert kinds(watch) == []


def test_pending_window_slots(watch: Watch) -> None:
    row = Row(watch, "a")
    row.extend(48)
    watch.window.allocator.free_group_begin()
    row.slide(0, 32)
    watch.san.count(WINDOW, available=watch.window.allocator.swa_available_size())
    row.finish(dead=32)
    watch.window.allocator.free_group_end()
    settle(watch)
    assert kinds(watch) == []


def test_a_flush_makes_both_pools_free(watch: Watch) -> None:
    row = Row(watch, "a")
    row.extend(40)
    watch.rows.clear()
    watch.window.allocator.clear()
    watch.san.req_end(owner="a")
    settle(watch)
    assert kinds(watch) == []


def test_token_slots_used_as_window_slots(watch: Watch) -> None:
    """The ids that attention indexes the window with are the row's token slots: nothing translated them."""
    row = Row(watch, "a")
    row.extend(64)
    row.slide(0, 48)
    row.attend(translated=False)
    assert kinds(watch) == ["use_after_free"]
    finding = watch.san.findings[0]
    assert (finding.pool, finding.owner) == (WINDOW, "a")
    assert set(finding.slots) == set(row.slots[:48].tolist())
    assert "token slots of the pool 'kv'" in finding.extra["note"]
    assert "for 48 of 64" in finding.extra["note"]
    assert finding.earlier is not None and finding.earlier.what == "freed"


def test_translated_ids_of_the_same_row(watch: Watch) -> None:
    row = Row(watch, "a")
    row.extend(64)
    row.slide(0, 48)
    row.attend(translated=True)
    assert kinds(watch) == []


def test_token_slots_beyond_the_window_pool(watch: Watch) -> None:
    """The window's pool is the smaller one: an id that it does not have is no slot of anybody's."""
    for name in "ab":
        row = Row(watch, name)
        row.extend(64)
        row.slide(0, 32)
    assert int(row.slots.max()) > SIZE_SWA + watch.page
    with pytest.raises(IndexError):
        row.attend(translated=False)


def test_window_slots_that_stay_behind(watch: Watch) -> None:
    """A release gives the token slots back alone: their window slots are found by nobody any more."""
    row = Row(watch, "a")
    row.extend(32)
    kept = row.window_slots
    with watch.within(Doing("release", owner="a")):
        watch.window.allocator.full_attn_allocator.free_segment(row.slots, start_pos=0)
        watch.rows.free(row.req)
    watch.san.req_end(owner="a")
    assert kinds(watch) == ["leak"]
    assert (watch.san.findings[0].pool, set(watch.san.findings[0].slots)) == (WINDOW, set(kept.tolist()))


def test_a_tombstone_whose_window_slot_is_given_back_again(watch: Watch) -> None:
    """Its entry is the padding slot, which would go into the free list."""
    row = Row(watch, "a")
    row.extend(32)
    row.slide(0, 16)
    row.slide(0, 16)
    assert kinds(watch) == ["invalid_free"]
    assert watch.san.findings[0].pool == WINDOW


def test_an_entry_that_somebody_changed(watch: Watch) -> None:
    """The window slots that another request's token slots map are given back in place of its own."""
    one, two = Row(watch, "a"), Row(watch, "b")
    one.extend(32)
    two.extend(32)
    allocator = watch.window.allocator
    allocator.full_to_swa_index_mapping[one.slots[: watch.page]] = two.window_slots[: watch.page]
    others = set(two.window_slots[: watch.page].tolist())
    one.slide(0, watch.page)
    assert kinds(watch) == ["free_not_owner"]
    found = watch.san.findings[0]
    assert (found.pool, found.owner, found.holder, set(found.slots)) == (WINDOW, "a", "b", others)


def test_any_tokens_of_a_page_stand_for_it(watch: Watch) -> None:
    """`free` gives back whole pages, wherever on them its slots are."""
    row = Row(watch, "a")
    row.extend(48)
    some = row.slots[:32] if watch.page == 1 else row.slots[[3, 4, 20]]
    with watch.within(Doing("slide", owner="a")):
        watch.window.allocator.free_swa(some)
    row.finish(dead=32)
    settle(watch)
    assert kinds(watch) == []


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel looks the pages of a piece of a row up, and makes tombstones of them: SGLang's own, in Triton's
    interpreter."""
    interpret(monkeypatch, kernels, "get_and_clear_swa_pages_kernel")
    monkeypatch.setattr(
        SWATokenToKVPoolAllocator,
        "_free_swa_pages_none_cuda",
        lambda self, firsts: self._free_swa_pages_cuda(firsts),
    )


def test_a_kernel_that_makes_tombstones(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they mapped is another request's when the tree takes the row over."""
    on_a_gpu(monkeypatch)
    one, two = Row(watch, "a"), Row(watch, "b")
    one.extend(48)
    slots = one.slots.clone()
    one.slide(0, 32)
    two.extend(64)
    publish(one, "7")
    end(one)
    two.finish()
    with watch.within(Doing("evict")):
        watch.window.allocator.free_full_segment(slots[:32], start_pos=0)
        watch.window.allocator.free_segment(slots[32:], start_pos=32)
    settle(watch)
    assert kinds(watch) == []


def test_writes_that_nobody_tells(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device a replayed graph writes without a call; so what is sent is not asked whether it was written."""
    monkeypatch.setattr(Row, "_computed", lambda row, slots, count: setattr(row, "length", row.length + count))
    row = Row(watch, "a")
    row.extend(32)
    sent = partial(watch.san.xfer_begin, WINDOW, xfer="send of a", access="read", owner="a", agent="nic")
    watch.then(sent, watch.take(row.window_slots))
    assert kinds(watch) == ([] if watch.readback is not None else ["uninit_read"])


def test_ids_that_no_token_slot_has(watch: Watch) -> None:
    """A device must not be asked for their entries: it would end the engine."""
    ids = Row(watch, "a").numbers(-7, 0, SIZE + watch.page - 1, SIZE + watch.page, 10**12)
    assert watch.window.look_up(ids).tolist() == [0, 0, 0, -1, -1]
    assert watch.window.look_up(ids[:2].to(torch.int32)).tolist() == [0, 0]


def test_a_free_list_that_lost_window_slots(watch: Watch, monkeypatch: Any) -> None:
    row = Row(watch, "a")
    row.extend(32)
    lost = set(row.window_slots[-watch.page :].tolist())
    inner = watch.window.inner
    if watch.page == 1:
        release = type(inner).free.__wrapped__
        monkeypatch.setattr(type(inner), "free", lambda self, ids: release(self, ids[:-1] if self is inner else ids))
    else:
        release = type(inner)._release_page_ids
        monkeypatch.setattr(
            type(inner),
            "_release_page_ids",
            lambda self, *pages: release(self, *[each[:-1] for each in pages] if self is inner else pages),
        )
    row.finish()
    assert kinds(watch) == ["leak"]
    assert (watch.san.findings[0].pool, set(watch.san.findings[0].slots)) == (WINDOW, lost)


# -- what the tree holds


def publish(row: Row, node: str) -> None:
    """The tree takes the row's slots over."""
    row.watch.then(partial(_published, row.watch, node, row.rid), row.watch.keep(row.slots))


def _published(watch: Watch, node: str, owner: str, slots: Slots) -> None:
    watch.hold(slots, watch.node_number(node))
    watch.node_slots[node] = slots.size
    watch.san.insert(KV, slots, node=node, owner=owner)


def end(row: Row) -> None:
    """The request ends; what it had is the tree's."""
    row.watch.rows.free(row.req)
    row.watch.san.req_end(owner=row.rid)


def test_an_eviction_gives_both_halves_back(watch: Watch) -> None:
    row = Row(watch, "a")
    row.extend(48)
    slots = row.slots.clone()
    publish(row, "7")
    end(row)
    with watch.within(Doing("evict")):
        watch.window.allocator.free_swa_segment(slots[:32], start_pos=0)  # the node becomes a tombstone first
    settle_ids(watch)
    assert "7" in watch.node_numbers
    with watch.within(Doing("evict")):
        watch.window.allocator.full_attn_allocator.free_segment(slots, start_pos=0)
        watch.window.allocator.free_swa_segment(slots[32:], start_pos=0)
    settle(watch)
    assert watch.node_numbers == {}
    assert kinds(watch) == []


def test_a_request_that_gives_the_trees_window_slots_back(watch: Watch) -> None:
    row, other = Row(watch, "a"), Row(watch, "b")
    row.extend(32)
    slots = row.slots.clone()
    publish(row, "7")
    end(row)
    with watch.within(Doing("slide", owner=other.rid)):
        watch.window.allocator.free_swa_segment(slots[:16], start_pos=0)
    assert kinds(watch) == ["free_not_owner"]
    finding = watch.san.findings[0]
    assert (finding.pool, finding.owner, finding.holder) == (WINDOW, "b", "tree:7")


def test_a_tombstone_gets_the_window_slots_of_a_request(watch: Watch) -> None:
    """As the tree does when the node is in use: it keeps its token slots, and takes the request's window slots."""
    row, other = Row(watch, "a"), Row(watch, "b")
    row.extend(32)
    kept = row.slots.clone()
    publish(row, "7")
    end(row)
    allocator = watch.window.allocator
    with watch.within(Doing("evict")):
        allocator.free_swa_segment(kept, start_pos=0)
    other.extend(32)
    incoming = other.slots.clone()
    with watch.within(Doing("publish", owner="b")):
        values = allocator.translate_loc_from_full_to_swa(incoming)
        allocator.clear_full_to_swa_mapping(incoming)
        allocator.set_full_to_swa_mapping(kept, values)
        allocator.free_full_segment(incoming, start_pos=0)
    end(other)
    watch.san.idle()
    assert kinds(watch) == []
    with watch.within(Doing("evict")):
        allocator.free_segment(kept, start_pos=0)
    settle(watch)
    assert kinds(watch) == []


def test_a_tombstone_that_goes_on_with_a_requests_token_slots(watch: Watch) -> None:
    """In a group, as at the end of a batch: the node's own token slots are pending like any other."""
    from sglang.srt.mem_cache.unified_cache.cache_action import FreeDeviceKVFullOnly

    row = Row(watch, "a")
    row.extend(32)
    old = row.slots.clone()
    publish(row, "7")
    end(row)
    allocator = watch.window.allocator
    with watch.within(Doing("evict")):
        allocator.free_swa_segment(old, start_pos=0)
    tree = tree_over(watch)
    allocator.free_group_begin()
    with watch.within(Doing("publish", owner="b")):
        tree._apply_cache_action(FreeDeviceKVFullOnly([old]))
    allocator.free_group_end()
    settle(watch)
    assert kinds(watch) == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_request_whose_window_has_moved_on_publishes_what_is_there_already(times: int, watch: Watch) -> None:
    """The action is the same, but what is given back is the request's, and it is to blame if it does so twice."""
    from sglang.srt.mem_cache.unified_cache.cache_action import FreeDeviceKVFullOnly

    row = Row(watch, "b")
    row.extend(32)
    own = row.slots.clone()
    row.slide(0, 32)
    tree = tree_over(watch)
    for _ in range(times):
        with watch.within(Doing("publish", owner="b")):
            tree._apply_cache_action(FreeDeviceKVFullOnly([own]))
    end(row)
    if times == 1:
        settle(watch)
        assert kinds(watch) == []
        return
    assert kinds(watch) == ["double_free"]
    found = watch.san.findings[0]
    assert (found.pool, found.owner, set(found.slots)) == (KV, "b", set(own.tolist()))


def tree_over(watch: Watch) -> Any:
    """As much of the prefix cache as an action asks for."""
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    tree = object.__new__(UnifiedRadixCache)
    tree.token_to_kv_pool_allocator = watch.window.allocator
    watch.tree = tree
    return tree


def test_rows_are_watched_too(watch: Watch) -> None:
    row = Row(watch, "a")
    row.extend(16)
    watch.san.req_end(owner="a")
    assert "leak" in kinds(watch)
    assert {finding.pool for finding in watch.san.findings} <= {ROWS, KV, WINDOW}


def test_what_waits_when_the_watch_ends_is_taken_in_with_the_window(watch: Watch) -> None:
    """Else what the cache has taken over would be a request's leak."""
    row = Row(watch, "a")
    row.extend(PAGE)
    settle_ids(watch)
    watch.then(partial(watch.san.insert, KV, node="node:1", owner="a"), watch.take(row.slots))
    watch.rows.free(row.req)
    watch.san.req_end(owner="a")
    watch.give_up("something that is not followed begins")
    assert kinds(watch) == []
    watch.blind = False
