"""The prefix cache: whole pages, splits, locks on paths, eviction of the least recently used leaf."""

from __future__ import annotations

import pytest
from kvsan.hooks import NullSanitizer
from kvsan.reference_engine.pools import KvPool
from kvsan.reference_engine.radix_cache import Node, RadixCache

PROBE = NullSanitizer()


def make(page_size: int = 1) -> tuple[KvPool, RadixCache]:
    kv = KvPool(64, page_size, PROBE)
    return kv, RadixCache(kv, PROBE)


def put(kv: KvPool, cache: RadixCache, tokens: list[int]) -> tuple[Node, list[int]]:
    """Inserts the tokens in fresh slots."""
    slots = kv.extend([], len(tokens), "a")
    return cache.insert(tokens, slots, "a")[0], slots


def slots_of(node: Node) -> list[int]:
    return [slot for step in node.path() for slot in step.slots]


def test_match_splits_a_node_and_keeps_its_slots() -> None:
    kv, cache = make()
    node, slots = put(kv, cache, [1, 2, 3, 4])
    found = cache.match([1, 2, 9], "b")
    assert slots_of(found) == slots[:2]
    assert slots_of(node) == slots
    assert cache.evictable == 4


def test_match_takes_whole_pages_only() -> None:
    kv, cache = make(page_size=4)
    _, slots = put(kv, cache, list(range(8)))
    assert slots_of(cache.match([0, 1, 2, 3, 4, 5, 6, 9], "b")) == slots[:4]
    assert cache.match([0, 1, 2], "b") is cache.root


def test_insert_says_what_was_cached_and_takes_only_the_rest() -> None:
    kv, cache = make()
    put(kv, cache, [1, 2, 3])
    slots = kv.extend([], 5, "b")
    node, cached = cache.insert([1, 2, 3, 4, 5], slots, "b")
    assert cached == 3
    assert node.slots == slots[3:]


def test_a_lock_protects_the_path_also_after_a_split() -> None:
    kv, cache = make()
    node, _ = put(kv, cache, [1, 2, 3, 4])
    cache.lock(node, "a")
    cache.match([1, 2], "b")
    assert (cache.protected, cache.evictable) == (4, 0)
    cache.evict(64)
    assert cache.protected == 4
    cache.unlock(node, "a")
    cache.evict(64)
    assert (cache.protected, cache.evictable, kv.available) == (0, 0, 64)


def test_evicts_the_least_recently_used_leaf_first() -> None:
    kv, cache = make()
    put(kv, cache, [1, 2])
    put(kv, cache, [3, 4])
    cache.match([1, 2], "b")
    cache.evict(1)
    assert cache.match([3, 4], "b") is cache.root
    assert cache.match([1, 2], "b") is not cache.root


@pytest.mark.parametrize(("held", "more", "demand"), [(0, 1, 4), (1, 3, 0), (1, 4, 4), (4, 1, 4), (5, 0, 0)])
def test_paged_pool_continues_the_last_page(held: int, more: int, demand: int) -> None:
    kv, _ = make(page_size=4)
    assert kv.demand(held, more) == demand
    slots = kv.extend([], held, "a")
    before = kv.available
    slots += kv.extend(slots, more, "a")
    assert before - kv.available == demand
    assert len(set(slots)) == held + more
    assert min(slots, default=4) >= 4
    kv.give_back(slots, "a")
    assert kv.available == 64
