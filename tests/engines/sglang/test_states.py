"""SGLang's recurrent states under the adapter's probes: its own row pool, slot allocator and prefix cache, on a CPU and
without a server; each fault once, and the same use without it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kvsan.hooks.adapters.sglang import requests, states
from kvsan.hooks.adapters.sglang.watch import KV, STATES, Doing, Watch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req
from sglang.srt.mem_cache.allocator import mamba
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool, MambaPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams

from .watching import Way, begin, end, kinds, write_row

TOKENS = 64


LAZY = "with a buffer that is filled when it must be"


@pytest.fixture(params=["one state", "with a buffer of past states", LAZY])
def watch(request: pytest.FixtureRequest, way: Way, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A watch over SGLang's pools and prefix cache for a model with recurrent states (level full)."""
    buffered, lazy = request.param != "one state", request.param == LAZY
    configure()
    monkeypatch.setattr(MambaPool, "_should_fuse_slot_ops", lambda self: False)  # else a kernel copies, on a device
    shape = Mamba2StateShape.create(
        tp_world_size=1, intermediate_size=32, n_groups=1, num_heads=2, head_dim=16, state_size=16, conv_kernel=4
    )
    rows = HybridReqToTokenPool(
        size=8, mamba_size=20, mamba_spec_state_size=8, max_context_len=256, device=way.device,
        enable_memory_saver=False,
        cache_params=Mamba2CacheParams(shape=shape, layers=[0]), mamba_layer_ids=[0],
        enable_mamba_extra_buffer=buffered, enable_mamba_extra_buffer_lazy=lazy,
    )  # fmt: skip
    allocator = TokenToKVPoolAllocator(512, torch.float32, way.device, None, False)
    parts = (ComponentType.FULL, ComponentType.MAMBA)
    parameters = CacheInitParams(False, rows, allocator, 1, tree_components=parts, enable_mamba_extra_buffer=buffered)
    tree = UnifiedRadixCache(parameters)
    watch = begin(rows, allocator, way, level="full")
    watch.tree = tree
    watch.states = states.watched(rows)
    assert states.obstacle(watch.states) is None
    states.declare(watch, watch.states)
    yield watch
    end(watch)


def configure() -> None:
    """The settings that SGLang's memory code asks for."""
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    arguments = ServerArgs(model_path="dummy", device="cpu")
    arguments._mamba_cache_chunk_size = TOKENS
    set_global_server_args_for_scheduler(arguments)


def request_(watch: Watch, rid: str, start: int = 0) -> Any:
    """A request of 64 tokens that begins at `start`, before it has a row."""
    req = Req(rid, "", array("q", range(start, start + TOKENS)), SamplingParams(temperature=0, max_new_tokens=1))
    req.full_untruncated_fill_ids = array("q", req.origin_input_ids)
    req.extend_end = TOKENS
    req.extra_key = None
    watch.live.add(rid)
    watch.san.req_start(owner=rid)
    return req


def match(watch: Watch, req: Any) -> int:
    """As the scheduler matches a request: it may take a slot for a cached state. The length of what was found."""
    found = watch.tree.match_prefix(
        MatchPrefixParams(key=RadixKey(req.origin_input_ids[: TOKENS - 1]), cow_mamba=True, req=req)
    )
    req.prefix_len, req.last_node = found.device_prefix_len, found.last_device_node
    req.lock = watch.tree.lock(req.last_node)
    req.kv.cache_protected_len = req.prefix_len
    return int(req.prefix_len)


def prefill(watch: Watch, req: Any) -> None:
    """Row, state and token slots; the forward's copies and clears."""
    begin = req.prefix_len
    prefix = watch.tree.prefix_device_indices(req) if begin else None
    assert watch.rows.alloc([req]) is not None
    if req.kv.mamba_needs_clear:
        watch.rows.mamba_pool.clear_slots(req.kv.mamba_pool_idx.unsqueeze(0))
    if req.kv.mamba_cow_src_index is not None:
        watch.rows.copy_mamba_state(req.kv.mamba_cow_src_index, req.kv.mamba_pool_idx.unsqueeze(0))
    slots = watch.kv.alloc(TOKENS - begin)
    row = req.kv.req_pool_idx
    write_row(watch, row, begin, TOKENS, prefix, slots)
    req.kv.kv_allocated_len = req.kv.kv_committed_len = TOKENS
    if watch.rows.enable_mamba_extra_buffer:
        req.kv.mamba_last_track_seqlen = TOKENS


def serve(watch: Watch, rid: str, start: int = 0) -> Any:
    """A request from its match to the publication of its prefill."""
    req = request_(watch, rid, start)
    match(watch, req)
    prefill(watch, req)
    watch.tree.checkpoint(req, up_to=TOKENS)
    return req


def finish(watch: Watch, req: Any) -> None:
    """The engine's own release."""
    req.finished_reason = FINISH_LENGTH(length=0)
    if watch.rows.enable_mamba_extra_buffer:
        req.kv.mamba_last_track_seqlen = TOKENS
    release_kv_cache(req, watch.tree, checkpoint=True)


def holds(req: Any) -> set[int]:
    """The slots of the states that a request holds."""
    buffer = req.kv.mamba_ping_pong_track_buffer
    past = set() if buffer is None else set(buffer.tolist()) - {-1}
    return {int(req.kv.mamba_pool_idx)} | past


def settle(watch: Watch) -> None:
    """Everything that is cached is evicted; nothing is left, and the allocators' totals agree."""
    watch.san.idle()
    watch.tree.evict(EvictParams(num_tokens=1000, mamba_num=1000))
    watch.san.idle()
    watch.san.count(KV, available=watch.kv.available_size(), evictable=0, protected=0, total=watch.kv.size)
    allocator = watch.states.allocator
    watch.san.count(STATES, available=allocator.available_size(), evictable=0, protected=0, total=allocator.size)


def test_requests_and_the_cache(watch: Watch) -> None:
    """Publication, a match with its copy, equal prompts, and eviction."""
    first = serve(watch, "a")
    cached = int(watch.tree.mamba_evictable_size() + watch.tree.mamba_protected_size())
    assert cached == 1
    free = watch.states.allocator.available_size()
    watch.san.count(STATES, available=free, evictable=0, protected=cached, total=watch.states.allocator.size)
    second = serve(watch, "b", 1000)
    finish(watch, first)
    finish(watch, second)
    again = request_(watch, "c")
    again.origin_input_ids = array("q", [*range(TOKENS), *range(500, 510)])  # goes on where the first one ended
    assert (
        watch.tree.match_prefix(
            MatchPrefixParams(key=RadixKey(again.origin_input_ids), cow_mamba=True, req=again)
        ).device_prefix_len
        == TOKENS
    )
    assert again.kv.mamba_cow_src_index is not None
    watch.rows.copy_mamba_state(again.kv.mamba_cow_src_index, again.kv.mamba_pool_idx.unsqueeze(0))
    with watch.within(Doing("release", owner="c")):
        watch.states.allocator.free(again.kv.mamba_pool_idx.unsqueeze(0))
    watch.san.req_end(owner="c")
    settle(watch)
    assert kinds(watch) == []


def test_a_state_that_a_release_forgets(watch: Watch, monkeypatch: Any) -> None:
    req = request_(watch, "a")
    match(watch, req)
    prefill(watch, req)
    own = holds(req)
    monkeypatch.setattr(type(watch.rows), "free_mamba_cache", lambda *arguments, **named: None)
    req.finished_reason = FINISH_LENGTH(length=0)
    release_kv_cache(req, watch.tree, checkpoint=False)
    assert kinds(watch) == ["leak"]
    finding = watch.san.findings[0]
    assert (finding.pool, finding.owner, set(finding.slots)) == (STATES, "a", own)


def test_a_state_that_is_given_back_twice(watch: Watch) -> None:
    req = request_(watch, "a")
    match(watch, req)
    prefill(watch, req)
    slot = req.kv.mamba_pool_idx.clone().unsqueeze(0)
    req.finished_reason = FINISH_LENGTH(length=0)
    release_kv_cache(req, watch.tree, checkpoint=False)
    watch.states.allocator.free(slot)
    assert kinds(watch) == ["double_free"]
    assert (watch.san.findings[0].pool, watch.san.findings[0].slots) == (STATES, tuple(slot.tolist()))


FAULTS = {
    "leak": lambda lists: lists[0],
    "double_free": lambda lists: torch.cat((*lists, lists[1])),
}
"""What the allocator does instead of `torch.cat((its free list, what comes back))`, and what that is."""


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("giver", ["a request", "the cache"])
def test_what_the_allocator_loses_and_takes_in_twice(watch: Watch, kind: str, giver: str, monkeypatch: Any) -> None:
    """Inside the allocator, below the probe: only its free list shows it."""
    if giver == "a request":
        req = request_(watch, "a")
        match(watch, req)
        prefill(watch, req)
        own = holds(req)
    else:
        finish(watch, req := serve(watch, "a"))
        own = set(watch.tree.tree_core.get_component_device_value(req.last_node, ComponentType.MAMBA).tolist())
        assert kinds(watch) == []
    monkeypatch.setattr(mamba, "torch", SimpleNamespace(cat=FAULTS[kind]))
    if giver == "a request":
        req.finished_reason = FINISH_LENGTH(length=0)
        release_kv_cache(req, watch.tree, checkpoint=False)
    else:
        watch.tree.evict(EvictParams(num_tokens=0, mamba_num=1))
    watch.san.idle()
    assert {*kinds(watch)} == {kind}
    assert {finding.pool for finding in watch.san.findings} == {STATES}
    assert {slot for finding in watch.san.findings for slot in finding.slots} == own


def test_a_request_that_gives_back_what_it_donated(watch: Watch) -> None:
    """The cache has taken the state over; whoever gives it back now gives back what is the cache's."""
    req = serve(watch, "a")
    cached = watch.tree.tree_core.get_component_device_value(req.last_node, ComponentType.MAMBA)
    with watch.within(Doing("release", owner="a")):
        watch.states.allocator.free(cached.clone())
    assert kinds(watch) == ["free_not_owner"]
    finding = watch.san.findings[0]
    assert (finding.pool, finding.owner) == (STATES, "a")
    assert (finding.holder or "").startswith("tree:")


@pytest.mark.parametrize("evicted", [False, True])
def test_the_source_of_a_deferred_copy(watch: Watch, evicted: bool) -> None:
    """The cached state is copied only when the forward begins; until then it must not be given to anybody else."""
    finish(watch, serve(watch, "a"))
    req = request_(watch, "b")
    req.origin_input_ids = array("q", [*range(TOKENS), *range(500, 510)])
    watch.tree.match_prefix(MatchPrefixParams(key=RadixKey(req.origin_input_ids), cow_mamba=True, req=req))
    source = req.kv.mamba_cow_src_index
    assert source is not None
    if evicted:
        watch.tree.evict(EvictParams(num_tokens=0, mamba_num=10))
    watch.rows.copy_mamba_state(source, req.kv.mamba_pool_idx.unsqueeze(0))
    assert kinds(watch) == (["use_after_free"] if evicted else [])
    if evicted:
        assert (watch.san.findings[0].pool, watch.san.findings[0].slots) == (STATES, tuple(source.tolist()))


@pytest.mark.parametrize("forgotten", [False, True])
def test_slots_taken_for_a_group(watch: Watch, forgotten: bool) -> None:
    allocator = watch.states.allocator
    allocator.alloc_group_begin(4)
    req = request_(watch, "a")
    prefill(watch, req)
    if forgotten:
        allocator._alloc_iter = None
    allocator.alloc_group_end()
    finish(watch, req)
    watch.san.idle()
    assert kinds(watch) == (["leak"] if forgotten else [])
    if forgotten:
        assert watch.san.findings[0].pool == STATES
        assert watch.san.findings[0].owner is None


def test_a_queued_request_that_is_aborted_gives_its_state_back(watch: Watch) -> None:
    finish(watch, serve(watch, "a"))
    req = request_(watch, "b")
    req.origin_input_ids = array("q", [*range(TOKENS), *range(500, 510)])
    watch.tree.match_prefix(MatchPrefixParams(key=RadixKey(req.origin_input_ids), cow_mamba=True, req=req))
    assert req.kv.holds_mamba
    watch.san.req_abort(owner="b")
    watch.aborted.add("b")
    release_kv_cache(req, watch.tree, checkpoint=False)
    assert "b" not in watch.live
    settle(watch)
    assert kinds(watch) == []


@pytest.mark.parametrize("watch", [LAZY], indirect=True)
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_place_of_a_buffer_that_is_filled_and_emptied(watch: Watch, forgotten: bool) -> None:
    """As around a decode step at which a state is kept; the place is overwritten right after its slot went back."""
    req = request_(watch, "a")
    match(watch, req)
    prefill(watch, req)
    place = 1 - req.kv.mamba_next_track_idx
    slot = watch.states.allocator.alloc(1)
    watch.rows.set_mamba_ping_pong_slot(req, place, slot[0])
    if not forgotten:
        watch.states.allocator.free(req.kv.mamba_ping_pong_track_buffer[place].unsqueeze(0))
    watch.rows.set_mamba_ping_pong_slot(req, place, -1)
    finish(watch, req)
    assert kinds(watch) == (["leak"] if forgotten else [])
    if forgotten:
        finding = watch.san.findings[0]
        assert (finding.pool, finding.owner, finding.slots) == (STATES, "a", tuple(slot.tolist()))
    else:
        settle(watch)
        assert kinds(watch) == []


@pytest.mark.parametrize("giver", ["session:s", "a"])
def test_a_session_takes_over_the_states_of_its_first_turn(watch: Watch, giver: str) -> None:
    req = request_(watch, "a")
    match(watch, req)
    prefill(watch, req)
    requests.hand_over(watch, "a", "session:s", req.kv, None)
    own = holds(req)
    with watch.within(Doing("session", owner=giver)):
        watch.states.allocator.free(torch.tensor(sorted(own), device=watch.kv.device))
    assert kinds(watch) == ([] if giver == "session:s" else ["free_not_owner"])
    if giver == "a":
        finding = watch.san.findings[0]
        assert (finding.pool, set(finding.slots), finding.holder) == (STATES, own, "session:s")


def test_a_flush(watch: Watch) -> None:
    req = serve(watch, "a")
    watch.tree.reset()
    watch.rows.clear()
    watch.kv.clear()
    watch.san.req_end(owner=str(req.rid))
    watch.san.idle()
    watch.san.count(STATES, available=watch.states.allocator.available_size(), total=watch.states.allocator.size)
    assert kinds(watch) == []
