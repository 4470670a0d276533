"""The old releases' own pools, prefix cache and requests under the adapter's probes, without a server."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from kvsan.hooks.adapters.probes import install
from kvsan.hooks.adapters.sglang.older import requests
from kvsan.hooks.adapters.sglang.older.begin import declare_rows
from kvsan.hooks.adapters.sglang.older.watch import OlderWatch
from kvsan.hooks.adapters.sglang.tables import installed
from kvsan.hooks.adapters.sglang.watch import KV, ROWS, Doing
from kvsan.hooks.sanitizer import Sanitizer
from kvsan.hooks.specification import hookimpl
from sglang.srt import server_args
from sglang.srt.managers import schedule_batch
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache import common
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.sampling.sampling_params import SamplingParams

from kvsan.cli import main

SIZE = 256
KEEPS_ROWS = "reqs" in signature(ReqToTokenPool.alloc).parameters
KEEPS_PROMPTS = hasattr(Req, "get_fill_ids")
"""Whether prompts are arrays, of which a request says how much is computed; before, `fill_ids` was cut."""

_watch = OlderWatch(Sanitizer())


@pytest.fixture(scope="session", autouse=True)
def probes() -> None:
    """The probes of the release's table, once for this process; each test gives them another watch's state."""
    assert all(each.found for each in install(installed().probes, _watch))
    server_args.set_global_server_args_for_scheduler(Arguments(attention_backend="torch_native", page_size=1))
    try:  # what is asked from 0.5.15 on
        from sglang.srt.runtime_context import get_flags
    except ImportError:
        return
    get_flags().attn.backend = "torch_native"


class Arguments(SimpleNamespace):
    """A server's arguments; those that are not given are None."""

    def __getattr__(self, name: str) -> None:
        return None


@pytest.fixture(params=[1, 16])
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OlderWatch]:
    """A watch over two rows, 256 token slots and a prefix cache."""
    watch = begin(int(request.param), monkeypatch)
    yield watch
    assert not watch.blind
    assert watch.san.report().failures == ()


def begin(page: int, monkeypatch: pytest.MonkeyPatch, *, device: str = "cpu", cache: type = RadixCache) -> OlderWatch:
    """The watch, its eyes open on pools and a cache whose tensors are on a device."""
    _watch.__init__(Sanitizer())  # type: ignore[misc]
    own: dict[str, Any] = {"dtype": torch.float32, "device": device, "kvcache": None, "need_sort": False}
    kv = TokenToKVPoolAllocator(SIZE, **own) if page == 1 else PagedTokenToKVPoolAllocator(SIZE, page_size=page, **own)
    rows = ReqToTokenPool(2, 128, device, False)
    pools = {"req_to_token_pool": rows, "token_to_kv_pool_allocator": kv, "page_size": page}
    if "params" in signature(cache.__init__).parameters:
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams

        tree = cache(CacheInitParams(**pools, disable=cache is not RadixCache))
    else:
        tree = cache(**pools, **({"disable": False} if cache is RadixCache else {}))
    _watch.rows, _watch.kv, _watch.tree, _watch.page, _watch.slots = rows, kv, tree, page, True
    _watch.device_module = torch.cpu
    _watch.scheduler = SimpleNamespace(forward_ct=0, default_stream=torch.cpu.current_stream())
    _watch.name_streams()
    declare_rows(_watch)
    _watch.san.pool(KV, kind="kv", size=SIZE + page, page=page, reserved=np.arange(page))
    _watch.node_of = np.zeros(SIZE + page, np.int64)
    _watch.blind = False
    if page > 1:  # its kernel needs a GPU; here every request begins a page of its own
        monkeypatch.setattr(common, "alloc_paged_token_slots_extend", whole_pages)
    return _watch


def whole_pages(*, tree_cache: Any, prefix_lens_cpu: Any, seq_lens_cpu: Any, **rest: Any) -> torch.Tensor:
    """New slots for each request, from a new page on; prefixes end on a page."""
    kv, parts = tree_cache.token_to_kv_pool_allocator, []
    for prefix, length in zip(prefix_lens_cpu.tolist(), seq_lens_cpu.tolist(), strict=True):
        assert prefix % kv.page_size == 0
        pages = -(-(length - prefix) // kv.page_size)
        parts.append(kv.alloc(pages * kv.page_size)[: length - prefix])
    return torch.cat(parts)


def kinds(watch: OlderWatch) -> list[str]:
    return [finding.kind for finding in watch.san.findings]


def request(rid: str, ids: list[int]) -> Req:
    req = Req(rid, "", array("q", ids) if KEEPS_PROMPTS else ids, SamplingParams(max_new_tokens=4))
    _watch.live.add(rid)
    _watch.san.req_start(owner=rid)
    return req


def filled(req: Req) -> int:
    """How many tokens of the prompt are computed, or are in the batch that is prepared."""
    return len(req.get_fill_ids() if KEEPS_PROMPTS else req.fill_ids)


def fill(req: Req) -> None:
    """The rest of the prompt is to be computed."""
    req.init_next_round_input()
    if hasattr(req, "set_extend_range"):
        req.set_extend_range(len(req.prefix_indices), len(req.full_untruncated_fill_ids))
    elif KEEPS_PROMPTS:
        req.fill_len = len(req.full_untruncated_fill_ids)


def extend(watch: OlderWatch, *reqs: Req, chunk: int = 1000) -> None:
    """Admits requests that have no row yet, and prepares a prefill batch of all, as the scheduler does."""
    for req in reqs:
        if req.req_pool_idx is None:
            req.init_next_round_input(watch.tree)
            adder = PrefillAdder(watch.page, watch.tree, watch.kv, None, 0.5, 1000, chunk)
            adder.add_one_req(req, has_chunked_req=False, truncation_align_size=None)
            assert adder.can_run_list == [req]
        else:
            fill(req)
    lengths = torch.tensor([filled(req) for req in reqs])
    prefixes = [len(req.prefix_indices) for req in reqs]
    extends = [filled(req) - prefix for req, prefix in zip(reqs, prefixes, strict=True)]
    batch = SimpleNamespace(
        reqs=list(reqs), tree_cache=watch.tree, req_to_token_pool=watch.rows, token_to_kv_pool_allocator=watch.kv,
        device=watch.kv.device, prefix_lens=prefixes, extend_lens=extends, extend_num_tokens=sum(extends),
        seq_lens=lengths.to(watch.kv.device), seq_lens_cpu=lengths,
        maybe_evict_swa=lambda: None,
    )  # fmt: skip
    *_, rows = common.alloc_for_extend(batch)
    for req, row in zip(reqs, rows, strict=True):
        req.req_pool_idx = int(row)
        req.kv_committed_len = req.kv_allocated_len = filled(req)


@contextmanager
def in_flight(watch: OlderWatch, *reqs: Req) -> Iterator[None]:
    """A batch of these is launched on another stream, and its results are taken in at the end."""
    watch.scheduler.forward_ct += 1
    watch.launched_as = name = f"forward {watch.scheduler.forward_ct}"
    watch.san.record(event=name, agent="sched")
    watch.san.wait(event=name, agent="fwd")
    for req in reqs:
        row, length = int(req.req_pool_idx), filled(req)
        watch.san.capture(ROWS, batch=name, row=row, upto=length, owner=req.rid, agent="fwd")
    watch.san.launch(batch=name, agent="fwd")
    result = object()
    watch.take_off(list(reqs), result)
    yield
    watch.san.done(batch=name)
    flight = watch.land(result)
    assert flight is not None
    requests.end_finished(watch, flight.reqs)


def release(watch: OlderWatch, req: Req) -> None:
    """The request is over, and gives back what it holds."""
    req.finished_reason = FINISH_LENGTH(0)
    if hasattr(common, "release_kv_cache"):
        common.release_kv_cache(req, watch.tree)
    else:
        watch.tree.cache_finished_req(req)


def evict(watch: OlderWatch) -> None:
    """The cache gives back whatever is not locked."""
    if "params" in signature(watch.tree.evict).parameters:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        watch.tree.evict(EvictParams(num_tokens=SIZE))
    else:
        watch.tree.evict(SIZE)


def check_totals(watch: OlderWatch) -> None:
    """The engine's totals, against the shadow's."""
    tree, available = watch.tree, watch.kv.available_size()
    watch.san.count(KV, available=available, evictable=tree.evictable_size(), protected=tree.protected_size())
    watch.san.count(ROWS, available=len(watch.rows.free_slots), total=2)


def test_a_request_comes_and_goes(watch: OlderWatch) -> None:
    a = request("A", list(range(40)))
    extend(watch, a)
    with in_flight(watch, a):
        pass
    watch.tree.cache_unfinished_req(a)
    check_totals(watch)
    b = request("B", [*range(32), *range(70, 80)])  # splits what A has published
    extend(watch, b)
    check_totals(watch)
    release(watch, a)
    requests.end_finished(watch, (a,))
    release(watch, b)
    requests.end_finished(watch, (b,))
    watch.san.idle()
    check_totals(watch)
    assert kinds(watch) == []
    assert not watch.live


def test_what_is_evicted_is_free(watch: OlderWatch) -> None:
    for number in range(3):
        req = request(f"{number}", [*range(16), *range(100 * number + 50, 100 * number + 66)])
        extend(watch, req)
        release(watch, req)
        requests.end_finished(watch, (req,))
    evict(watch)
    assert watch.kv.available_size() == SIZE
    watch.san.idle()
    check_totals(watch)
    assert kinds(watch) == []
    assert watch.node_numbers == {}


def test_a_prefix_that_is_evicted_under_its_user(watch: OlderWatch) -> None:
    """The lock was given back too early: what remains is that B uses the slots."""
    a, b = request("A", list(range(32))), request("B", list(range(48)))
    extend(watch, a)
    release(watch, a)
    requests.end_finished(watch, (a,))
    extend(watch, b)
    watch.tree.dec_lock_ref(b.last_node)
    evict(watch)
    assert kinds(watch) == ["evict_locked"]


def test_a_row_between_two_chunks(watch: OlderWatch) -> None:
    """A's row goes to B while A's first chunk may still be read: only where rows change with every chunk."""
    a, b = request("A", list(range(64))), request("B", list(range(200, 232)))
    extend(watch, a, chunk=32)
    with in_flight(watch, a):
        watch.tree.cache_unfinished_req(a, chunked=True)
        if not KEEPS_ROWS:
            watch.rows.free(a.req_pool_idx)
        extend(watch, a, b)
    if KEEPS_ROWS:
        assert kinds(watch) == []
        return
    assert kinds(watch) == ["race"]
    race = watch.san.findings[0]
    assert (race.pool, race.owner, race.earlier.owner) == (ROWS, "B", "A")  # type: ignore[union-attr]
    assert (race.present.batch, race.earlier.batch) == ("forward 2", "forward 1")  # type: ignore[union-attr]


def test_the_next_chunk_in_the_same_row(watch: OlderWatch) -> None:
    """The prefix is written again while it is read, and is what stands there."""
    other, a = request("other", list(range(300, 332))), request("A", list(range(64)))
    extend(watch, other)
    extend(watch, a, chunk=32)
    with in_flight(watch, a):
        watch.tree.cache_unfinished_req(a, chunked=True)
        if not KEEPS_ROWS:
            watch.rows.free(a.req_pool_idx)
        extend(watch, a)
    assert kinds(watch) == []


def test_a_row_that_is_read_for_nothing(watch: OlderWatch) -> None:
    a, other, b = (request(name, list(range(at, at + 32))) for name, at in (("A", 0), ("other", 300), ("B", 600)))
    extend(watch, a, other)
    with in_flight(watch, a, other):
        release(watch, a)
        extend(watch, b)
        assert watch.owner_of_row[int(b.req_pool_idx)] == "B"
    assert kinds(watch) == []


def test_a_publication_of_what_the_cache_has(watch: OlderWatch) -> None:
    a, b = request("A", list(range(32))), request("B", list(range(32)))
    extend(watch, a, b)
    with in_flight(watch, a, b):
        watch.tree.cache_unfinished_req(a)
        watch.tree.cache_unfinished_req(b)
    assert kinds(watch) == ["stale_capture"]
    assert watch.san.findings[0].owner == "B"


def test_who_is_over_and_was_not_released(watch: OlderWatch) -> None:
    a = request("A", list(range(32)))
    extend(watch, a)
    with in_flight(watch, a):
        a.finished_reason = FINISH_LENGTH(0)
    assert kinds(watch) == ["leak"]
    leak = watch.san.findings[0]
    assert leak.owner == "A"
    assert {held.pool for held in leak.held} == {ROWS, KV}


def test_a_step_too_many_ends_before_its_request_does(watch: OlderWatch) -> None:
    a = request("A", list(range(32)))
    extend(watch, a)
    with in_flight(watch, a):
        release(watch, a)
        requests.end_finished(watch, (a,))
        assert "A" in watch.live
    assert "A" not in watch.live
    assert kinds(watch) == []


def test_on_whose_behalf_the_results_give_back(watch: OlderWatch) -> None:
    """As the scheduler's loop over a batch's results: only its variable says for whom it acts."""
    a, b = request("A", list(range(32))), request("B", list(range(300, 332)))
    extend(watch, a, b)

    def process_batch_result_prefill(which: Req) -> None:
        for req in (a, b):
            if req is which:
                watch.kv.free(watch.rows.req_to_token[b.req_pool_idx, 16:17])

    with watch.within(Doing("results")):
        process_batch_result_prefill(a)
    assert kinds(watch) == ["free_not_owner"]
    assert (watch.san.findings[0].owner, watch.san.findings[0].holder) == ("A", "B")


def test_a_row_is_given_back_twice(watch: OlderWatch) -> None:
    a = request("A", list(range(32)))
    extend(watch, a)
    row = a.req_pool_idx
    release(watch, a)
    if KEEPS_ROWS:
        a.req_pool_idx = row
        watch.rows.free(a)
    else:
        watch.rows.free(row)
    assert kinds(watch) == ["double_free"]


@pytest.mark.skipif(not hasattr(schedule_batch, "retract_all"), reason="a batch's own method retracts")
def test_a_retraction_of_all_is_told(watch: OlderWatch) -> None:
    told: list[str] = []
    watch.san.add_plugin(Listening(told))
    a = request("A", list(range(32)))
    extend(watch, a)
    schedule_batch.retract_all(
        reqs=[a], server_args=Arguments(), req_to_token_pool=watch.rows, token_to_kv_pool_allocator=watch.kv,
        tree_cache=watch.tree, hisparse_coordinator=None,
    )  # fmt: skip
    assert told == ["A"]
    assert watch.kv.available_size() == SIZE
    assert kinds(watch) == []


class Listening:
    """A plugin of kvsan that hears of retractions."""

    def __init__(self, told: list[str]) -> None:
        self.told = told

    @hookimpl
    def kvsan_req_retract(self, event: Any) -> None:
        """The engine takes back what a live request holds."""
        self.told.append(event.owner)


@pytest.mark.skipif(not hasattr(Scheduler, "_apply_war_barrier"), reason="its loop has no barrier, or waits by itself")
@pytest.mark.parametrize("on", [True, False])
def test_the_barrier_orders_reads_before_what_follows(on: bool, watch: OlderWatch) -> None:
    runner = SimpleNamespace(war_fastpath_read_done_event=None)
    watch.scheduler._war_barrier_enabled = on
    watch.scheduler.model_worker = SimpleNamespace(war_fastpath_runner=runner)
    watch.scheduler.schedule_stream = watch.scheduler.default_stream
    watch.scheduler.forward_stream = torch.cpu.Stream()
    watch.name_streams()
    other, a, b = (request(name, list(range(at, at + 32))) for name, at in (("other", 300), ("A", 0), ("B", 600)))
    extend(watch, other)
    extend(watch, a)
    with in_flight(watch, a):
        watch.rows.free(a)
        Scheduler._apply_war_barrier(watch.scheduler)
        extend(watch, b)
        assert watch.owner_of_row[int(b.req_pool_idx)] == "B"
    assert kinds(watch) == ([] if on else ["race"])


@pytest.mark.skipif(not hasattr(RadixCache, "release_radix_session"), reason="its cache knows no sessions")
def test_what_a_closed_session_leaves_is_free(watch: OlderWatch) -> None:
    watch.tree.enable_session_radix_cache = True
    for name, ids in (("A", range(32)), ("B", range(48))):
        req = request(name, list(ids))
        req.session_id = name
        extend(watch, req)
        release(watch, req)
        requests.end_finished(watch, (req,))
    watch.tree.release_radix_session("B")
    assert watch.kv.available_size() == SIZE - 32
    watch.tree.release_radix_session("A")
    assert watch.kv.available_size() == SIZE
    watch.san.idle()
    check_totals(watch)
    assert kinds(watch) == []


def test_doctor_says_which_table_and_finds_every_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "sglang"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].endswith(f"probes (those for {installed().since} and later)")
    assert told[-1].endswith("0 lost")
