"""SGLang's prefix cache, both of its cores, under the adapter's probes: publications, lookups, locks and evictions on a
CPU and without a server; each fault once, and the same use without it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from kvsan.hooks.adapters.sglang.watch import KV, Doing, Watch
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from .watching import Way, allocator_of, begin, end, kinds, write_row

SIZE = 512


@pytest.fixture(params=["rust", "python"])
def core(request: pytest.FixtureRequest) -> str:
    """Which of the cache's cores."""
    return str(request.param)


@pytest.fixture(params=[1, 16])
def watch(request: pytest.FixtureRequest, core: str, way: Way) -> Iterator[Watch]:
    """A watch over rows, 512 token slots and the prefix cache."""
    set_global_server_args_for_scheduler(ServerArgs(model_path="dummy", device="cpu"))
    page = int(request.param)
    kv = allocator_of(SIZE, page, way.device)
    rows = ReqToTokenPool(8, 256, way.device, False)
    parts = (ComponentType.FULL,)
    tree = UnifiedRadixCache(CacheInitParams(False, rows, kv, page, tree_components=parts, tree_core_backend=core))
    watch = begin(rows, kv, way)
    watch.tree = tree
    yield watch
    end(watch)


def serve(watch: Watch, rid: str, tokens: list[int]) -> Any:
    """A request from its lookup to the publication of its prefill."""
    req = look_up(watch, rid, tokens)
    compute(watch, req)
    return req


def look_up(watch: Watch, rid: str, tokens: list[int]) -> Any:
    """A request finds what the cache has of its tokens, and locks it."""
    req = Req(rid, "", array("q", tokens), SamplingParams(temperature=0, max_new_tokens=1))
    req.full_untruncated_fill_ids = array("q", tokens)
    req.extend_end = len(tokens)
    req.extra_key = None
    watch.live.add(rid)
    watch.san.req_start(owner=rid)
    key = RadixKey(req.origin_input_ids[:-1]).page_aligned(watch.page)
    found = watch.tree.match_prefix(MatchPrefixParams(key=key, req=req))
    req.prefix_len, req.last_node = found.device_prefix_len, found.last_device_node
    with watch.within(Doing("admit", owner=rid)):
        req.lock = watch.tree.lock(req.last_node)
    req.kv.cache_protected_len = req.prefix_len
    return req


def compute(watch: Watch, req: Any) -> None:
    """The request gets a row and slots, writes them, and publishes what it has computed."""
    begin, end = int(req.prefix_len), len(req.origin_input_ids)
    prefix = watch.tree.prefix_device_indices(req) if begin else None
    assert watch.rows.alloc([req]) is not None
    row = req.kv.req_pool_idx
    slots = watch.kv.alloc(-(-(end - begin) // watch.page) * watch.page)[: end - begin]
    write_row(watch, row, begin, end, prefix, slots)
    req.kv.kv_allocated_len = req.kv.kv_committed_len = end
    watch.tree.checkpoint(req, up_to=end)


def finish(watch: Watch, *reqs: Any) -> None:
    """The engine's own release."""
    for req in reqs:
        req.finished_reason = FINISH_LENGTH(length=0)
        release_kv_cache(req, watch.tree, checkpoint=True)


def settle(watch: Watch) -> None:
    """Nobody holds anything but the cache, and then nobody at all."""
    tree, kv = watch.tree, watch.kv
    for asked in (0, SIZE):
        if asked:
            tree.evict(EvictParams(num_tokens=asked))
        watch.san.idle()
        watch.san.count(
            KV,
            available=int(kv.available_size()),
            evictable=int(tree.evictable_size()),
            protected=int(tree.protected_size()),
            total=SIZE,
        )
    assert kv.available_size() == SIZE


def cells(watch: Watch, req: Any, begin: int, end: int) -> Any:
    """The slots in the request's row."""
    return watch.rows.req_to_token[req.kv.req_pool_idx, begin:end].to(torch.int64).clone()


def prompt(*parts: int) -> list[int]:
    """Tokens in blocks of 32, each named by a number."""
    return [32 * part + each for part in parts for each in range(32)]


def test_shared_prefixes(watch: Watch) -> None:
    """A lookup that ends inside a node splits it; what a request goes on with is the cache's."""
    first = serve(watch, "a", prompt(1, 2, 3))
    second = serve(watch, "b", prompt(1, 2, 4))
    assert second.prefix_len == 64
    third = serve(watch, "c", prompt(1, 5))
    assert third.prefix_len == 32
    finish(watch, second, first, third)
    settle(watch)
    assert kinds(watch) == []


def test_equal_prompts_side_by_side(watch: Watch) -> None:
    """Both looked up before either published: the second one's slots go back, and its row gets the first one's."""
    first, second = look_up(watch, "a", prompt(1, 2)), look_up(watch, "b", prompt(1, 2))
    compute(watch, first)
    compute(watch, second)
    assert torch.equal(cells(watch, first, 0, 64), cells(watch, second, 0, 64))
    finish(watch, first, second)
    settle(watch)
    assert kinds(watch) == []


def test_an_eviction_for_room(watch: Watch) -> None:
    """What nobody has locked goes, leaf by leaf; who goes on is not touched."""
    for number in range(4):
        finish(watch, serve(watch, f"a{number}", prompt(1, 10 + number)))
    held = serve(watch, "b", prompt(1, 10))
    before = cells(watch, held, 0, 64)
    watch.tree.evict(EvictParams(num_tokens=64))
    assert torch.equal(before, cells(watch, held, 0, 64))
    finish(watch, held)
    settle(watch)
    assert kinds(watch) == []


def test_a_request_that_gives_back_what_it_published(watch: Watch) -> None:
    req = serve(watch, "a", prompt(1, 2))
    slots = cells(watch, req, 0, 32)
    with watch.within(Doing("release", owner="a")):
        watch.kv.free_segment(slots, start_pos=0)
    assert kinds(watch) == ["free_not_owner"]
    finding = watch.san.findings[0]
    assert (finding.pool, finding.owner, set(finding.slots)) == (KV, "a", set(slots.tolist()))
    assert (finding.holder or "").startswith("tree:")


def test_what_was_evicted_is_given_back_again(watch: Watch) -> None:
    req = serve(watch, "a", prompt(1, 2))
    slots = cells(watch, req, 0, 64)
    finish(watch, req)
    watch.tree.evict(EvictParams(num_tokens=SIZE))
    assert kinds(watch) == []
    watch.kv.free_segment(slots, start_pos=0)
    assert kinds(watch) == ["double_free"]
    assert set(watch.san.findings[0].slots) == set(slots.tolist())


def test_an_unlock_that_is_forgotten(watch: Watch, monkeypatch: Any) -> None:
    req = serve(watch, "a", prompt(1, 2))
    monkeypatch.setattr(watch.tree, "unlock", lambda lock: None)
    finish(watch, req)
    assert kinds(watch) == ["lock_leak"]
    assert watch.san.findings[0].owner == "a"
