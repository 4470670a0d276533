"""The kernels that hand slots out and write rows on a GPU, in Triton's interpreter, under the adapter's probes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kvsan.hooks.adapters.sglang.watch import KV, ROWS, Doing, Watch
from sglang.srt.mem_cache import allocation
from sglang.srt.mem_cache.allocator import paged
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

from .interpreted import interpret
from .test_pools import request_
from .watching import Way, allocator_of, begin, kinds
from .watching import end as ended
from .watching import settle as settle_ids

SIZE = 128


pytestmark = pytest.mark.parametrize("way", ["late", "on a device"], indirect=True)


@pytest.fixture(params=[1, 16])
def watch(request: pytest.FixtureRequest, way: Way, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A watch over four rows and 128 token slots; kernels do what they do on a GPU."""
    allocator = allocator_of(SIZE, int(request.param), way.device)
    allocator.use_triton_kernels = True
    interpret(monkeypatch, paged, "alloc_extend_kernel", "alloc_decode_kernel")
    interpret(monkeypatch, allocation, "write_req_to_token_pool_triton", "assign_req_to_token_pool")
    monkeypatch.setattr(allocation, "_is_cpu", False)
    monkeypatch.setattr(allocation, "attention_backends", lambda: ("triton", "triton"))
    monkeypatch.setattr(allocation, "support_triton", lambda backend: True)
    monkeypatch.setattr(allocation, "get_last_loc", allocation.get_last_loc_torch)
    monkeypatch.setattr(allocation, "evict_from_tree_cache", lambda tree, count: None)
    watch = begin(ReqToTokenPool(4, SIZE, way.device, False), allocator, way)
    watch.ahead = True
    yield watch
    ended(watch)


class Row:
    """A request that prefills in chunks, decodes, and takes slots ahead for drafts."""

    def __init__(self, watch: Watch, rid: str) -> None:
        self.watch, self.rid, self.length, self.ends = watch, rid, 0, 0
        self.req = request_(rid)
        watch.san.req_start(owner=rid)
        watch.rows.alloc([self.req])

    @property
    def number(self) -> int:
        """Which row it has."""
        return int(self.req.kv.req_pool_idx)

    @property
    def slots(self) -> torch.Tensor:
        """The token slots of the row."""
        return self.watch.rows.req_to_token[self.number, : max(self.length, self.ends)].to(torch.int64)

    def finish(self) -> None:
        """Gives everything back."""
        with self.watch.within(Doing("release", owner=self.rid)):
            self.watch.kv.free_segment(self.slots, start_pos=0)
            self.watch.rows.free(self.req)
        self.watch.san.req_end(owner=self.rid)


def both(watch: Watch, *tensors: torch.Tensor) -> Iterator[torch.Tensor]:
    """Each where the slots are, and on the host."""
    for each in tensors:
        yield from (each.to(watch.kv.device), each)


def extend(watch: Watch, rows: list[Row], counts: list[int]) -> None:
    """SGLang's own for a batch of chunks: slots, then the kernel that writes prefixes and slots into rows. What has no
    prefix has none on the host, whatever the device."""
    before = torch.tensor([row.length for row in rows])
    new = torch.tensor(counts)
    prefixes = [row.slots if row.length else allocation._EMPTY_PREFIX for row in rows]
    if watch.page == 1:
        slots = watch.kv.alloc(sum(counts))
    else:
        none = torch.tensor([-1], device=watch.kv.device)
        last = torch.cat([each[-1:] if each.numel() else none for each in prefixes])
        slots = watch.kv.alloc_extend(*both(watch, before, before + new), last, sum(counts))
    numbers = torch.tensor([row.number for row in rows])
    allocation.write_cache_indices(slots, *both(watch, numbers, before, before + new, new), prefixes, watch.rows)
    for row, count in zip(rows, counts, strict=True):
        row.length += count


def decode(watch: Watch, rows: list[Row]) -> None:
    """SGLang's own for one decode step."""
    lengths = torch.tensor([row.length for row in rows])
    numbers = torch.tensor([row.number for row in rows])
    batch = SimpleNamespace(req_pool_indices_cpu=numbers, seq_lens_cpu=lengths)
    if watch.page == 1:
        slots = watch.kv.alloc(len(rows))
    else:
        last = torch.cat([row.slots[-1:] for row in rows])
        slots = watch.kv.alloc_decode(*both(watch, lengths + 1), last)
    with watch.within(Doing("decode", batch=batch)):
        watch.rows.write((numbers.to(slots.device), lengths.to(slots.device)), slots.to(torch.int32))
    for row in rows:
        row.length += 1


def reserve(watch: Watch, rows: list[Row], counts: list[int]) -> None:
    """SGLang's own: slots for each row ahead of what will be accepted."""
    begins = torch.tensor([max(row.length, row.ends) for row in rows])
    ends = begins + torch.tensor(counts)
    there = watch.kv.device
    for row in rows:
        row.req.kv.kv_allocated_len = 0
    tree: Any = SimpleNamespace(token_to_kv_pool_allocator=watch.kv, supports_prefix_sharing=lambda: False)
    allocation.alloc_for_spec_decode(
        tree, watch.rows, reqs=[row.req for row in rows],
        req_pool_indices=torch.tensor([row.number for row in rows], device=there),
        cur_kv_lens=begins.to(there), cur_kv_lens_cpu=begins, nxt_kv_lens=ends.to(there), nxt_kv_lens_cpu=ends,
        num_needed_tokens=sum(counts), batch=SimpleNamespace(hisparse_coordinator=None, device=there),
    )  # fmt: skip
    for row, end in zip(rows, ends.tolist(), strict=True):
        row.ends = end


def capture(watch: Watch, rows: list[Row]) -> None:
    """A batch reads all that the rows have, and is over."""
    agent, name = watch.stream(), "decode 1"
    for row in rows:
        upto = max(row.length, row.ends)
        watch.san.capture(ROWS, batch=name, row=row.number, upto=upto, owner=row.rid, agent=agent)
    watch.san.launch(batch=name, agent=agent)
    watch.san.done(batch=name)


def settle(watch: Watch) -> None:
    """Nothing is left, and the allocator's own total agrees."""
    watch.san.idle()
    watch.san.count(KV, available=watch.kv.available_size(), total=SIZE)


def test_rows_that_kernels_write(watch: Watch) -> None:
    """Prompts in chunks beside new ones, decode steps, slots taken ahead; each cell is told as the kernel wrote it."""
    one, two, three = Row(watch, "a"), Row(watch, "b"), Row(watch, "c")
    extend(watch, [one, two], [20, 5])
    extend(watch, [one, three], [13, 16])
    for _ in range(3):
        decode(watch, [one, two, three])
    capture(watch, [one, two, three])
    reserve(watch, [one, two], [8, 3])
    capture(watch, [one, two])
    settle_ids(watch)
    cells = watch.san.tracker.state.tables[ROWS]
    for row in (one, two, three):
        assert cells.get(row.number).slots[: row.slots.numel()].tolist() == row.slots.tolist()
        row.finish()
    settle(watch)
    assert kinds(watch) == []


@pytest.mark.parametrize(
    ("kernel", "step"), [("write_req_to_token_pool_triton", extend), ("assign_req_to_token_pool", reserve)]
)
def test_a_kernel_that_writes_nothing(watch: Watch, kernel: str, step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch then reads cells that the row never had."""
    row = Row(watch, "a")
    extend(watch, [row], [16])
    monkeypatch.setattr(allocation, kernel, {(1,): lambda *arguments: None})
    step(watch, [row], [16])
    capture(watch, [row])
    assert kinds(watch) == ["stale_row"]
    assert (watch.san.findings[0].pool, watch.san.findings[0].owner) == (ROWS, "a")
