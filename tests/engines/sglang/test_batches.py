"""SGLang's own allocation for whole batches, as its scheduler calls it, under the adapter's probes: with the prefix
cache, and on a device with the kernels of a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kvsan.hooks.adapters.sglang.watch import ROWS, Watch
from sglang.srt.mem_cache import allocation
from sglang.srt.mem_cache.allocator import paged
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from .interpreted import interpret
from .test_cache import SIZE, core, finish, look_up, prompt, settle, watch
from .watching import Way, kinds
from .watching import settle as settle_ids

__all__ = ["core", "watch"]


@pytest.fixture(autouse=True)
def kernels(watch: Watch, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device they hand out pages and write rows, as on a GPU."""
    there = way.device != "cpu"
    backend = "triton" if there else "torch_native"
    monkeypatch.setattr(allocation, "attention_backends", lambda: (backend, backend))
    monkeypatch.setattr(allocation, "support_triton", lambda backend: there)
    if there:
        watch.kv.use_triton_kernels = True
        interpret(monkeypatch, paged, "alloc_extend_kernel", "alloc_decode_kernel")
        interpret(monkeypatch, allocation, "write_req_to_token_pool_triton")


class Batch(SimpleNamespace):
    """As much of a batch as allocation asks for."""

    def __init__(self, watch: Watch, reqs: list[Any]) -> None:
        super().__init__(
            reqs=reqs, device=watch.kv.device, tree_cache=watch.tree, req_to_token_pool=watch.rows,
            hisparse_coordinator=None, model_config=SimpleNamespace(is_encoder_decoder=False),
        )  # fmt: skip

    def maybe_evict_swa(self) -> None:
        """There is no window."""

    def is_dllm(self) -> bool:
        return False

    def prefill(self, until: list[int]) -> None:
        """Each request's next chunk, up to there."""
        self.prefix_lens = [int(req.prefix_len) for req in self.reqs]
        self.extend_lens = [end - begin for begin, end in zip(self.prefix_lens, until, strict=True)]
        self.extend_num_tokens = sum(self.extend_lens)
        self.seq_lens_cpu = torch.tensor(until)
        self.seq_lens = self.seq_lens_cpu.to(self.device)
        self.out_cache_loc, self.req_pool_indices, self.req_pool_indices_cpu = allocation.alloc_for_extend(self)
        for req, end in zip(self.reqs, until, strict=True):
            self.tree_cache.checkpoint(req, up_to=end)
            req.prefix_len = end

    def decode(self) -> None:
        """One more token for each."""
        self.out_cache_loc = allocation.alloc_for_decode(self, 1)
        self.seq_lens, self.seq_lens_cpu = self.seq_lens + 1, self.seq_lens_cpu + 1


def cells(watch: Watch, req: Any) -> tuple[list[int], list[int]]:
    """The slots in a request's row, as kvsan and as the engine has them."""
    row, length = int(req.kv.req_pool_idx), int(req.kv.kv_allocated_len)
    told = watch.san.tracker.state.tables[ROWS].get(row).slots[:length].tolist()
    return told, watch.rows.req_to_token[row, :length].tolist()


def test_batches_with_and_without_prefixes(watch: Watch) -> None:
    """What has no prefix has an empty one on the host; others go on with what the cache has, or with their own row."""
    first = [look_up(watch, name, prompt(*parts)) for name, parts in (("a", (1, 2)), ("b", (3,)))]
    Batch(watch, first).prefill([64, 32])
    second = [look_up(watch, name, prompt(*parts)) for name, parts in (("c", (1, 4, 5)), ("d", (6,)), ("e", (3, 7)))]
    assert [req.prefix_len for req in second] == [32, 0, 32]
    batch = Batch(watch, second)
    batch.prefill([64, 32, 48])
    later = Batch(watch, [second[0], look_up(watch, "f", prompt(8))])
    later.prefill([96, 32])  # a second chunk, beside a new request
    for _ in range(3):
        batch.seq_lens_cpu = torch.tensor([int(req.kv.kv_allocated_len) for req in second])
        batch.seq_lens = batch.seq_lens_cpu.to(batch.device)
        batch.decode()
    settle_ids(watch)
    for req in second:
        told, there = cells(watch, req)
        assert told == there
    finish(watch, *first, *second, later.reqs[1])
    settle(watch)
    assert kinds(watch) == []


def test_what_a_batch_decoded_is_given_back_twice(watch: Watch) -> None:
    reqs = [look_up(watch, "a", prompt(1)), look_up(watch, "b", prompt(2))]
    batch = Batch(watch, reqs)
    batch.prefill([32, 32])
    for _ in range(17):
        batch.decode()
    own = watch.rows.req_to_token[reqs[0].kv.req_pool_idx, 32:48].to(torch.int64).clone()
    finish(watch, *reqs)
    watch.tree.evict(EvictParams(num_tokens=SIZE))
    assert kinds(watch) == []
    watch.kv.free_segment(own, start_pos=32)
    assert kinds(watch) == ["double_free"]
    assert set(watch.san.findings[0].slots) == set(own.tolist())
