"""The prefix caches of 0.5.16 to 0.5.21 under the adapter's probes, on a CPU and without a server: `RadixCache`, or
`UnifiedRadixCache` with each of its cores; each fault once, and the same use without it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from kvsan.hooks.adapters.sglang.watch import KV, Doing, Watch
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req, ReqKvInfo
from sglang.srt.mem_cache import allocation, common
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from .release import CORES, RECORDS
from .watching import WAYS, begin, kinds

SIZE = 512


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> str:
    """Which of the cache's cores; the empty one is that of `RadixCache`."""
    return str(request.param)


@pytest.fixture(params=[1, 16])
def watch(request: pytest.FixtureRequest, core: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A watch over rows, 512 token slots and the prefix cache."""
    watch = over(core, int(request.param), monkeypatch)
    yield watch
    assert not watch.blind


def over(core: str, page: int, monkeypatch: pytest.MonkeyPatch, *, device: str = "cpu") -> Watch:
    """A watch over pools and a prefix cache whose tensors are on a device."""
    set_global_server_args_for_scheduler(ServerArgs(model_path="dummy", device="cpu", page_size=page))
    own: dict[str, Any] = {"dtype": torch.float32, "device": device, "kvcache": None, "need_sort": False}
    kv = TokenToKVPoolAllocator(SIZE, **own) if page == 1 else PagedTokenToKVPoolAllocator(SIZE, page_size=page, **own)
    rows = ReqToTokenPool(8, 256, device, False)
    tree: Any
    if core:
        from sglang.srt.mem_cache.unified_cache.components import ComponentType

        monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", core)
        tree = UnifiedRadixCache(CacheInitParams(False, rows, kv, page, tree_components=(ComponentType.FULL,)))
        assert core in type(tree.tree_core).__name__.lower() or core == "python"
    else:
        tree = RadixCache(CacheInitParams(False, rows, kv, page))
    monkeypatch.setattr(allocation, "support_triton", lambda backend: False)
    watch = begin(rows, kv, WAYS["at once" if device == "cpu" else "late"])
    watch.tree = tree
    return watch


def serve(watch: Watch, rid: str, tokens: list[int]) -> Any:
    """A request from its lookup to the publication of its prefill."""
    req = look_up(watch, rid, tokens)
    compute(watch, req)
    return req


def look_up(watch: Watch, rid: str, tokens: list[int]) -> Any:
    """A request finds what the cache has of its tokens, and locks it."""
    req = Req(rid, "", array("q", tokens), SamplingParams(temperature=0, max_new_tokens=1))
    req.full_untruncated_fill_ids = array("q", tokens)
    req.extra_key = None
    watch.live.add(rid)
    watch.san.req_start(owner=rid)
    found = watch.tree.match_prefix(MatchPrefixParams(key=RadixKey(req.origin_input_ids[:-1])))
    req.prefix_indices, req.last_node = found.device_indices, found.last_device_node
    with watch.within(Doing("admit", owner=rid)):
        lock = watch.tree.inc_lock_ref(req.last_node)
    with suppress(AttributeError):  # from 0.5.20 on; up to then an unlock needs none
        req.lock_receipt = lock.to_dec_params()
    return req


def compute(watch: Watch, req: Any) -> None:
    """The request gets a row and slots, writes them, and publishes what it has computed."""
    extend(watch, req)
    watch.tree.cache_unfinished_req(req)


def extend(watch: Watch, *reqs: Any) -> None:
    """The requests get rows and slots, and SGLang writes them."""
    rows = watch.rows.alloc(list(reqs))
    prefixes, ends = [len(req.prefix_indices) for req in reqs], [len(req.origin_input_ids) for req in reqs]
    new = [end - prefix for prefix, end in zip(prefixes, ends, strict=True)]
    slots = [watch.kv.alloc(-(-count // watch.page) * watch.page)[:count] for count in new]
    for req, prefix, end in zip(reqs, prefixes, ends, strict=True):
        if RECORDS:
            holder, req.kv.kv_committed_len = req.kv, end
        else:
            holder, req.kv_committed_len = req, end
            req.kv = ReqKvInfo(kv_allocated_len=0, swa_evicted_seqlen=0)
        holder.cache_protected_len = prefix
        req.kv.kv_allocated_len = end
        req.set_extend_range(prefix, end)
    on_host = [torch.tensor(numbers) for numbers in (rows, prefixes, ends, new)]
    both = [each for numbers in on_host for each in (numbers.to(watch.kv.device), numbers)]
    allocation.write_cache_indices(torch.cat(slots), *both, [req.prefix_indices for req in reqs], watch.rows)


def finish(watch: Watch, *reqs: Any) -> None:
    """The engine's own release."""
    for req in reqs:
        req.finished_reason = FINISH_LENGTH(length=0)
        common.release_kv_cache(req, watch.tree)


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
    return watch.rows.req_to_token[watch.record(req).req_pool_idx, begin:end].to(torch.int64).clone()


def prompt(*parts: int) -> list[int]:
    """Tokens in blocks of 32, each named by a number."""
    return [32 * part + each for part in parts for each in range(32)]


def test_shared_prefixes(watch: Watch) -> None:
    """A lookup that ends inside a node splits it; what a request goes on with is the cache's."""
    first = serve(watch, "a", prompt(1, 2, 3))
    second = serve(watch, "b", prompt(1, 2, 4))
    third = serve(watch, "c", prompt(1, 5))
    assert torch.equal(cells(watch, first, 0, 64), cells(watch, second, 0, 64))
    assert torch.equal(cells(watch, first, 0, 32), cells(watch, third, 0, 32))
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
        watch.kv.free(slots)
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
    watch.kv.free(slots)
    assert kinds(watch) == ["double_free"]
    assert set(watch.san.findings[0].slots) == set(slots.tolist())


def test_an_unlock_that_is_forgotten(watch: Watch, monkeypatch: Any) -> None:
    req = serve(watch, "a", prompt(1, 2))
    monkeypatch.setattr(watch.tree, "dec_lock_ref", lambda node, *args, **named: None)
    finish(watch, req)
    assert kinds(watch) == ["lock_leak"]
    assert watch.san.findings[0].owner == "a"
