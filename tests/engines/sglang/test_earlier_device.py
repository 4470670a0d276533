"""What the adapter does at the call, from 0.5.16 to 0.5.21, with tensors that have a device and no numbers.

On such a device the prefix cache's core is the one in Python.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from kvsan.hooks.adapters.sglang.watch import Watch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.chunk_cache import ChunkCache

from .on_its_way import DEVICE, Copies
from .release import RECORDS
from .test_earlier_cache import SIZE, extend, finish, look_up, over, prompt, serve


@pytest.fixture(params=[1, 16])
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A watch over rows, 512 token slots and the prefix cache."""
    page = int(request.param)
    monkeypatch.setattr(torch, "unique", lambda pages: pages[::page])  # how many there are depends on their numbers
    watch = over("python" if RECORDS else "", page, monkeypatch, device=DEVICE)
    watch.readback = Copies()
    yield watch
    assert not watch.blind
    assert watch.san.report().failures == ()


def test_prompts_with_and_without_a_prefix(watch: Watch) -> None:
    finish(watch, serve(watch, "a", prompt(1, 2)))
    second, third = look_up(watch, "b", prompt(1, 3)), look_up(watch, "c", prompt(4))
    assert len(second.prefix_indices) == 32
    extend(watch, second, third)
    assert watch.readback.asked[-3:] == [96, 96, 96]  # what was to be written; what there was before, and then


def test_prompts_where_there_is_no_cache(watch: Watch) -> None:
    """What such a server has cached of a prompt is nothing, and is on the host."""
    watch.tree = ChunkCache(CacheInitParams(True, watch.rows, watch.kv, watch.page))
    reqs = look_up(watch, "a", prompt(1)), look_up(watch, "b", prompt(2))
    assert {req.prefix_indices.device.type for req in reqs} == {"cpu"}
    extend(watch, *reqs)
    assert watch.readback.asked[-3:] == [64, 64, 64]
    finish(watch, *reqs)
    assert watch.kv.available_size() == SIZE


def test_requests_come_and_go(watch: Watch) -> None:
    first, second = serve(watch, "a", prompt(1, 2, 3)), serve(watch, "b", prompt(1, 2, 4))
    finish(watch, first, second)
    watch.tree.evict(EvictParams(num_tokens=SIZE))
    watch.san.idle()
    assert watch.kv.available_size() == SIZE
    assert watch.san.waiting
