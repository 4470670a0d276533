"""SGLang's allocation for speculative decoding under the adapter's probes: each fault once, and the same without it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from adapters.device import kernel
from kvsan.hooks.adapters.sglang import batches, speculation
from kvsan.hooks.adapters.sglang.rows import tell_record
from kvsan.hooks.adapters.sglang.watch import KV, Doing, Watch
from sglang.kernels.ops.speculative import cache_locs, eagle
from sglang.srt.mem_cache import allocation
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative import spec_utils
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from . import cpu_speculation
from .test_pools import request_
from .watching import Way, allocator_of, begin, end, kinds, settle, write_row

SIZE = 128


@pytest.fixture(params=[1, 16])
def watch(request: pytest.FixtureRequest, way: Way, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A watch over four rows and 128 token slots, without a prefix cache."""
    allocator = allocator_of(SIZE, int(request.param), way.device)
    watch = begin(ReqToTokenPool(4, SIZE, way.device, False), allocator, way, level="full")
    watch.ahead = True
    monkeypatch.setattr(allocation, "get_last_loc", allocation.get_last_loc_torch)  # else a setting of the server says
    monkeypatch.setattr(allocation, "evict_from_tree_cache", lambda tree, count: None)
    monkeypatch.setattr(allocation, "assign_req_to_token_pool_cpu", kernel(allocation.assign_req_to_token_pool_cpu))
    yield watch
    end(watch)


class Row:
    """A request that is prefilled and then decodes with drafts."""

    def __init__(self, watch: Watch, rid: str, prompt: int) -> None:
        self.watch, self.req = watch, request_(rid)
        watch.san.req_start(owner=rid)
        watch.rows.alloc([self.req])
        self.committed = 0
        if watch.page == 1:
            slots = watch.kv.alloc(prompt)
        else:
            none, all_, last = (torch.tensor([number]) for number in (0, prompt, -1))
            there = watch.kv.device
            slots = watch.kv.alloc_extend(none.to(there), none, all_.to(there), all_, last.to(there), prompt)
        write_row(watch, self.req.kv.req_pool_idx, 0, prompt, None, slots)
        self.req.kv.kv_allocated_len = self.req.kv.kv_committed_len = self.committed = prompt
        self.req.kv.cache_protected_len = 0

    @property
    def slots(self) -> torch.Tensor:
        """The token slots of the row."""
        kv = self.req.kv
        return self.watch.rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len].to(torch.int64)

    def capture(self, batch: str) -> None:
        """A step captures what is accepted so far, and is over."""
        agent, row = self.watch.stream(), self.req.kv.req_pool_idx
        self.watch.san.capture("rows", batch=batch, row=row, upto=self.committed, owner=self.req.rid, agent=agent)
        self.watch.san.launch(batch=batch, agent=agent)
        self.watch.san.done(batch=batch)

    def finish(self, *, overallocated: bool = True) -> None:
        """Gives back what is accepted, then what was taken and not needed, and the row."""
        with self.watch.within(Doing("release", owner=self.req.rid)):
            page, slots = self.watch.page, self.slots
            self.watch.kv.free_segment(slots[: self.committed], start_pos=0)
            begin = -(-self.committed // page) * page
            if overallocated and begin < slots.numel():
                self.watch.kv.free_segment(slots[begin:], start_pos=begin)
            self.watch.rows.free(self.req)
        self.watch.san.req_end(owner=self.req.rid)


def reserve(watch: Watch, rows: list[Row], counts: list[int]) -> None:
    """SGLang's own: slots for each row ahead of what will be accepted."""
    begins = [row.req.kv.kv_allocated_len for row in rows]
    ends = [begin + count for begin, count in zip(begins, counts, strict=True)]
    tree: Any = SimpleNamespace(token_to_kv_pool_allocator=watch.kv, supports_prefix_sharing=lambda: False)
    there = watch.kv.device
    allocation.alloc_for_spec_decode(
        tree, watch.rows, reqs=[row.req for row in rows],
        req_pool_indices=torch.tensor([row.req.kv.req_pool_idx for row in rows], device=there),
        cur_kv_lens=torch.tensor(begins, device=there), cur_kv_lens_cpu=torch.tensor(begins),
        nxt_kv_lens=torch.tensor(ends, device=there), nxt_kv_lens_cpu=torch.tensor(ends),
        num_needed_tokens=sum(counts), batch=SimpleNamespace(hisparse_coordinator=None, device=there),
    )  # fmt: skip


def test_more_is_taken_than_accepted(watch: Watch) -> None:
    one, two = Row(watch, "a", 20), Row(watch, "b", 10)
    reserve(watch, [one, two], [8, 16])
    one.committed += 3
    two.committed += 9
    one.capture("decode 1")
    two.capture("decode 1b")
    reserve(watch, [one, two], [8, 0])
    one.committed += 5
    one.capture("decode 2")
    one.finish()
    two.finish()
    watch.san.idle()
    watch.san.count(KV, available=watch.kv.available_size(), total=SIZE)
    assert kinds(watch) == []


def test_what_was_not_needed_stays_behind(watch: Watch) -> None:
    row = Row(watch, "a", 16)
    reserve(watch, [row], [32])
    row.committed += 2
    begin = -(-row.committed // watch.page) * watch.page
    lost = set(row.slots[begin:].tolist())
    row.finish(overallocated=False)
    assert kinds(watch) == ["leak"]
    finding = watch.san.findings[0]
    assert (finding.pool, finding.owner, set(finding.slots)) == (KV, "a", lost)


def test_a_reservation_that_does_not_reach_the_row(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel writes nothing; the next step then reads cells that this row never had."""
    row = Row(watch, "a", 16)
    monkeypatch.setattr(allocation, "assign_req_to_token_pool_cpu", lambda *arguments: None)
    reserve(watch, [row], [16])
    row.committed += 4
    row.capture("decode 1")
    assert kinds(watch) == ["stale_row"]
    assert (watch.san.findings[0].pool, watch.san.findings[0].owner) == ("rows", "a")


def test_a_draft_models_own_table(watch: Watch) -> None:
    row = Row(watch, "a", 16)
    other = torch.zeros_like(watch.rows.req_to_token)
    settle(watch)
    before = watch.san.events
    numbers = (torch.tensor([number], device=watch.kv.device) for number in (row.req.kv.req_pool_idx, 0, 16))
    index, *piece = numbers
    allocation.assign_req_to_token_pool_func(index, other, *piece, row.slots, 1)
    settle(watch)
    assert watch.san.events == before
    row.finish()
    assert kinds(watch) == []


def test_rows_alone(watch: Watch) -> None:
    """Where slot ids are not read, the cells are told from the lengths on the host."""
    row = Row(watch, "a", 16)
    watch.slots = False
    reserve(watch, [row], [16])
    watch.slots = True
    row.committed += 16
    settle(watch)
    assert watch.san.tracker.state.tables["rows"].get(row.req.kv.req_pool_idx).length == 32


def verify(watch: Watch, rows: list[Row], drafts: int, *, known: bool = True) -> Any:
    """A batch that judges drafts; `known` says whether the host knows how much each row has."""
    window = torch.cat([row.slots[row.committed : row.committed + drafts] for row in rows])
    lengths = torch.tensor([row.committed for row in rows])
    numbers = torch.tensor([row.req.kv.req_pool_idx for row in rows])
    there = watch.kv.device
    return SimpleNamespace(
        reqs=[row.req for row in rows], forward_mode=ForwardMode.TARGET_VERIFY, forward_iter=7,
        req_to_token_pool=watch.rows, req_pool_indices=numbers.to(there), req_pool_indices_cpu=numbers,
        seq_lens=lengths.to(there), seq_lens_cpu=lengths if known else None, out_cache_loc=window,
        spec_info=SimpleNamespace(draft_token_num=drafts),
    )  # fmt: skip


def launch(watch: Watch, batch: Any) -> None:
    """SGLang's `run_batch`, as far as it is read."""
    for _ in batches.run_batch(watch, watch.scheduler, batch):
        pass
    watch.san.done(batch=batches.batch_name(batch))


@pytest.mark.parametrize("known", [True, False])
def test_drafts_are_judged_in_slots_that_are_the_requests(watch: Watch, known: bool) -> None:
    one, two = Row(watch, "a", 20), Row(watch, "b", 10)
    reserve(watch, [one, two], [12, 22])
    batch = verify(watch, [one, two], 4, known=known)
    launch(watch, batch)
    batch.forward_mode = ForwardMode.DECODE  # when its results are taken in
    assert batches.batch_name(batch) == "decode 7"
    assert kinds(watch) == []


@pytest.mark.parametrize("known", [True, False])
def test_a_draft_stands_where_nobody_holds_a_slot(watch: Watch, known: bool) -> None:
    row = Row(watch, "a", 16)
    reserve(watch, [row], [16])
    lost = row.slots[19:20] if watch.page == 1 else row.slots[16:32]
    with watch.within(Doing("release", owner="a")):
        watch.kv.free_segment(lost, start_pos=16)
    launch(watch, verify(watch, [row], 4, known=known))
    assert kinds(watch)[0] == "use_after_free"
    finding = watch.san.findings[0]
    assert (finding.pool, finding.owner, set(finding.slots) <= set(lost.tolist())) == (KV, "a", True)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """Where keys and values were moved to, and from where, in plain torch."""
    for module in (cache_locs, spec_utils):  # 0.5.22 calls it from the latter
        monkeypatch.setattr(module, "assign_extend_cache_locs_cpu", kernel(cpu_speculation.locations), raising=False)
    monkeypatch.setattr(eagle, "fill_accept_out_cache_loc_cpu", kernel(cpu_speculation.accepted_locations))
    return []


def accept(watch: Watch, batch: Any, index: list[list[int]], moved: list[tuple[list[int], list[int]]]) -> None:
    """SGLang's own: accepted drafts go to the front of their request's slots."""
    keys = SimpleNamespace(move_kv_cache=lambda target, source: moved.append((target.tolist(), source.tolist())))
    accepted = torch.tensor(index, device=watch.kv.device)
    spec_utils.move_accept_tokens_to_target_kvcache(
        batch, accepted, (accepted >= 0).sum(dim=1) - 1, SimpleNamespace(get_kvcache=lambda: keys)
    )


def test_accepted_drafts_move(watch: Watch, moved: list[tuple[list[int], list[int]]]) -> None:
    one, two = Row(watch, "a", 16), Row(watch, "b", 16)
    reserve(watch, [one, two], [16, 16])
    batch = verify(watch, [one, two], 4)
    settle(watch)
    before = watch.san.events
    accept(watch, batch, [[0, 2, -1], [4, 5, 6]], moved)
    settle(watch)
    assert watch.san.events == before + 2  # one read, one write
    a, b = one.slots[16:20].tolist(), two.slots[16:20].tolist()
    assert moved == [([*a[:2], *b[:3], 0], [a[0], a[2], *b[:3], 0])]
    assert kinds(watch) == []


def test_accepted_drafts_move_to_where_nobody_holds_a_slot(
    watch: Watch, moved: list[tuple[list[int], list[int]]]
) -> None:
    row = Row(watch, "a", 16)
    reserve(watch, [row], [16])
    batch = verify(watch, [row], 4)
    with watch.within(Doing("release", owner="a")):
        watch.kv.free_segment(row.slots[16:32], start_pos=16)
    accept(watch, batch, [[0, 2, 3]], moved)
    assert kinds(watch)[0] == "use_after_free"
    assert set(watch.san.findings[0].slots) <= set(row.slots[16:20].tolist())


def test_a_record_says_more_than_was_taken(watch: Watch) -> None:
    row = Row(watch, "a", 16)
    reserve(watch, [row], [16])
    tell_record(watch, row.req.kv, "a")
    assert kinds(watch) == []
    row.req.kv.kv_allocated_len += 32
    tell_record(watch, row.req.kv, "a")
    assert kinds(watch) == ["record_contract"]
    assert watch.san.findings[0].owner == "a"


def test_who_is_followed() -> None:
    said = {each.name: speculation.obstacle(each) for each in SpeculativeAlgorithm if not each.is_none()}
    followed = {name for name, why in said.items() if why is None}
    assert followed == {"NGRAM", "STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP"}
    assert said["DFLASH"] == "drafts by DFLASH are not followed yet"
