"""SGLang's beam search on its own row pool and allocator under the adapter's probes: each fault once, and the same use
without it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from adapters.device import on_host
from kvsan.hooks.adapters.sglang.watch import KV, ROWS, Doing, Watch
from sglang.srt.beam_search import fork
from sglang.srt.beam_search.beam_group import BeamGroup
from sglang.srt.beam_search.coordinator import BeamCoordinator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

from .test_pools import request_
from .watching import Way, begin, end, kinds, write_row

PROMPT, BEAMS, SIZE = 20, 3, 128


@pytest.fixture
def watch(way: Way) -> Iterator[Watch]:
    """A watch over eight rows and 128 token slots."""
    allocator = TokenToKVPoolAllocator(SIZE, torch.bfloat16, way.device, None, False)
    watch = begin(ReqToTokenPool(8, 64, way.device, False), allocator, way)
    yield watch
    end(watch)


class Beam:
    """One request of three beams, driven as SGLang's coordinator and scheduler drive it."""

    def __init__(self, watch: Watch, rid: str) -> None:
        self.watch = watch
        self.leader = request_(rid)
        self.coordinator = BeamCoordinator(
            model_config=None, spec_algorithm=None, dllm_enabled=False, max_req_len=64, req_to_token_pool=watch.rows,
            token_to_kv_pool_allocator=watch.kv, tree_cache=None, future_map=None,
        )  # fmt: skip
        self.group = BeamGroup(
            beam_width=BEAMS, stop_token_ids=[], max_new_tokens=8, num_return=1, device=watch.kv.device
        )
        self.group.leader, self.group.prompt_len = self.leader, PROMPT
        watch.san.req_start(owner=rid)
        watch.rows.alloc([self.leader])
        slots = watch.kv.alloc(PROMPT)
        row = self.leader.kv.req_pool_idx
        write_row(watch, row, 0, PROMPT, None, slots)
        self.leader.kv.kv_allocated_len = self.leader.kv.kv_committed_len = PROMPT
        batch, agent = f"extend {rid}", watch.stream()
        watch.san.capture(ROWS, batch=batch, row=row, upto=PROMPT, owner=rid, agent=agent)
        watch.san.launch(batch=batch, agent=agent)
        self.coordinator._spawn_member_rows(self.group, self.leader)
        watch.san.done(batch=batch)

    def step(self, parents: list[int]) -> None:
        """One decode of every row; then each row goes on from the history of its parent."""
        kv, rows = self.leader.kv, self.group.all_rows
        slots = self.watch.kv.alloc(BEAMS)
        positions = torch.full_like(rows, kv.kv_allocated_len)
        batch = SimpleNamespace(req_pool_indices_cpu=on_host(rows), seq_lens_cpu=on_host(positions))
        with self.watch.within(Doing("decode", batch=batch)):
            self.watch.rows.write((rows, positions), slots.to(torch.int32))
        kv.kv_allocated_len += 1
        kv.kv_committed_len += 1
        staged = fork.remap_kv_mapping(
            self.watch.rows.req_to_token, rows, rows.new_tensor(parents), PROMPT, kv.kv_committed_len
        )
        self.group.pending_orphans.append(fork.StagedOrphans(kv.kv_committed_len, *staged))

    def reclaim(self) -> None:
        """What nobody inherited is given back."""
        self.coordinator._reclaim_orphans(self.group)

    def finish(self) -> None:
        """The group's release, then the leader's."""
        self.coordinator._free_member_rows(self.group)
        self.release()

    def release(self) -> None:
        """The leader's own release: its prompt, what it says to have beyond, and its row."""
        kv, rid = self.leader.kv, self.leader.rid
        with self.watch.within(Doing("release", owner=rid)):
            slots = self.watch.rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len].to(torch.int64)
            self.watch.kv.free_segment(slots, start_pos=0)
            self.watch.rows.free(self.leader)
        self.watch.san.req_end(owner=rid)


def test_beams_fork_and_end(watch: Watch) -> None:
    one, two = Beam(watch, "a"), Beam(watch, "b")
    one.step([0, 0, 1])
    two.step([2, 2, 2])
    one.reclaim()
    one.step([0, 1, 2])
    one.step([1, 1, 1])
    one.finish()
    two.finish()
    watch.san.idle()
    watch.san.count(KV, available=watch.kv.available_size(), total=SIZE)
    watch.san.count(ROWS, available=len(watch.rows.free_slots), total=8)
    assert kinds(watch) == []


def test_histories_that_nobody_inherits_and_nobody_gives_back(watch: Watch) -> None:
    beam = Beam(watch, "a")
    beam.step([0, 0, 0])
    lost = {int(slot) for slot in fork.collect_orphan_slots(*beam.group.pending_orphans[0][1:])}
    beam.group.pending_orphans.clear()
    beam.finish()
    assert kinds(watch) == ["leak"]
    finding = watch.san.findings[0]
    assert (finding.pool, finding.owner, set(finding.slots)) == (KV, "a", lost)


def test_a_leader_that_gives_the_beams_slots_back_again(watch: Watch) -> None:
    """Its record must be set back to the prompt when the group's slots go."""
    beam = Beam(watch, "a")
    beam.step([0, 1, 2])
    allocated = beam.leader.kv.kv_allocated_len
    beam.coordinator._free_member_rows(beam.group)
    beam.leader.kv.kv_allocated_len = allocated
    beam.release()
    assert kinds(watch) == ["double_free"]
    assert (watch.san.findings[0].pool, watch.san.findings[0].owner) == (KV, "a")


def test_rows_of_members_that_stay_behind(watch: Watch) -> None:
    beam = Beam(watch, "a")
    members = set(beam.group.member_rows_cpu.tolist())
    beam.release()
    assert kinds(watch) == ["leak"]
    finding = watch.san.findings[0]
    assert (finding.pool, finding.owner, set(finding.slots)) == (ROWS, "a", members)


def test_rows_of_members_that_are_given_back_twice(watch: Watch) -> None:
    beam = Beam(watch, "a")
    members = beam.group.member_rows_cpu.tolist()
    beam.finish()
    watch.rows.free_rows(members[:1])
    assert kinds(watch) == ["double_free"]
    assert (watch.san.findings[0].pool, watch.san.findings[0].slots) == (ROWS, (members[0],))


def test_rows_that_are_taken_for_nobody() -> None:
    watch = begin(ReqToTokenPool(8, 64, "cpu", False), TokenToKVPoolAllocator(SIZE, torch.bfloat16, "cpu", None, False))
    watch.rows.alloc_rows(2)
    assert watch.blind
    assert kinds(watch) == []
    assert [failure.error for failure in watch.san.report().failures] == ["rows were taken for nobody that kvsan knows"]
