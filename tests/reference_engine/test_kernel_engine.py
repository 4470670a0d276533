"""The engine on its kernels: tokens within the tolerance, kvsan silent, and a bug found that makes tokens wrong.

In this process the kernels run on torch, or on a GPU if there is one; `test_kernels_interpreted` runs this file again
through Triton's interpreter.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from kvsan.hooks import NullSanitizer, scope
from kvsan.kernels.backend import interpreter_requested
from kvsan.reference_engine import bugs, compute
from kvsan.reference_engine.compute import TOLERANCE, Sizes
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.cuda_streams import CudaDevice
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.exact import Exact
from kvsan.reference_engine.row_writer import RowWrite
from kvsan.reference_engine.scenarios import scenario
from kvsan.reference_engine.shards import WHOLE, Shard
from kvsan.reference_engine.workload import drive, random_workload

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kvsan.reference_engine.kernel_compute import KernelCompute  # noqa: E402
from kvsan.reference_engine.kernel_step import KernelStep  # noqa: E402

from .conftest import RecordingProbe  # noqa: E402
from .kernel_workloads import REQUESTS, oracle, tight, wrong  # noqa: E402
from .stand_in_cuda import StandInCuda  # noqa: E402
from .test_oracle_equality import check_nothing_lost  # noqa: E402

CPU = torch.device("cpu")
FULL_ONLY = pytest.mark.skipif(interpreter_requested(), reason="takes too many launches for Triton's interpreter")


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(
    ("loop", "policy", "cuda_graph"),
    [
        ("overlap", "in-order", True),
        ("overlap", "late", False),
        pytest.param("normal", "random", True, marks=FULL_ONLY),
        pytest.param("normal", "in-order", False, marks=FULL_ONLY),
    ],
)
def test_tokens_are_right_and_kvsan_is_silent(
    page_size: int, hybrid: bool, cuda_graph: bool, loop: str, policy: str
) -> None:
    config = tight(page_size, hybrid=hybrid, cuda_graph=cuda_graph, loop=loop, schedule_policy=policy, cached_states=3)
    arrivals = random_workload(0, REQUESTS, context_len=160, adapters=(None, None, "one"))
    with scope(level="full") as sanitizer:
        engine = Engine(config)
        answers = drive(engine, arrivals)
    assert wrong(arrivals, answers, hybrid=hybrid) == set()
    check_nothing_lost(engine)
    assert sanitizer.findings == []
    assert sanitizer.report().failures == ()


@FULL_ONLY
@pytest.mark.parametrize("hybrid", [False, True])
def test_the_workloads_reach_every_feature(hybrid: bool) -> None:
    """Otherwise the tests above would say little."""
    seen: Counter[str] = Counter()
    for page_size in (1, 16):
        probe = RecordingProbe()
        engine = Engine(tight(page_size, hybrid=hybrid, cached_states=3, loop="overlap"), probe)  # type: ignore[arg-type]
        drive(engine, random_workload(0, REQUESTS, context_len=160, adapters=(None, None, "one")))
        seen.update(event["op"] for event in probe.events)
        copies = (e for e in probe.events if e["op"] == "read" and e.get("pool") == "state")
        seen["state reads"] += sum(1 for _ in copies)
    wanted = ["match", "attach", "evict", "req_retract", "req_abort", *(["state reads"] if hybrid else [])]
    for what in wanted:
        assert seen[what], what


@contextmanager
def scores_beside_the_oracle(hybrid: bool, pairs: list[tuple[np.ndarray, np.ndarray]]) -> Iterator[None]:  # type: ignore[type-arg]
    """Collects the scores that the kernels draw from, each beside those of the oracle."""
    draw = KernelStep._draw

    def compare(self: KernelStep, scores: torch.Tensor) -> None:
        drawing = [item for item in self._batch.items if item.draws]
        for item, kernels in zip(drawing, scores.double().cpu().numpy(), strict=True):
            known = tuple(item.request.tokens[: item.upto])
            pairs.append((kernels, oracle(hybrid)._next(known, item.request.adapter)))
        draw(self, scores)

    KernelStep._draw = compare  # type: ignore[method-assign]
    try:
        yield
    finally:
        KernelStep._draw = draw  # type: ignore[method-assign]


@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("hybrid", [False, True])
def test_scores_are_within_the_tolerance(hybrid: bool, cuda_graph: bool) -> None:
    config = tight(1, hybrid=hybrid, cuda_graph=cuda_graph, loop="normal")
    pairs: list[tuple[np.ndarray, np.ndarray]] = []  # type: ignore[type-arg]
    with scores_beside_the_oracle(hybrid, pairs):
        arrivals = random_workload(2, REQUESTS, context_len=160, abort_share=0.0, adapters=(None, "one"))
        drive(Engine(config, NullSanitizer()), arrivals)
    assert len(pairs) > 2 * REQUESTS
    assert max(float(np.abs(kernels - exact).max()) for kernels, exact in pairs) <= TOLERANCE


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_row_given_away_between_chunks(page_size: int) -> None:
    """The finding is that of the exact arithmetic, and under the late schedule tokens are wrong; without it neither.

    With lanes, as the exact arithmetic pads its decodes too: the events are the same.
    """
    for seed in range(1 if interpreter_requested() else 3):
        found = {}
        case = scenario(bugs.ROW_REALLOC, seed, page_size=page_size, schedule_policy="late")
        for arithmetic, lanes in (("exact", False), ("kernels", True)):
            config = replace(case.config, compute=arithmetic, cuda_graph=lanes)
            with scope(level="full") as sanitizer:
                answers = replace(case, config=config).drive(Engine(config), 600)
            [finding] = sanitizer.findings
            assert finding.present is not None and finding.earlier is not None
            sites = [[frame.function for frame in access.stack] for access in (finding.present, finding.earlier)]
            found[arithmetic] = (finding.kind, finding.pool, finding.owner, finding.at, finding.slots, sites)
            assert wrong(case.arrivals, answers) & set(case.victims), (seed, arithmetic)
        assert found["kernels"] == found["exact"], seed
        assert found["kernels"][0] == bugs.BUGS[bugs.ROW_REALLOC].finding
        fixed = case.fixed()
        fixed = replace(fixed, config=replace(fixed.config, compute="kernels"))
        with scope(level="full") as sanitizer:
            answers = fixed.drive(Engine(fixed.config), 600)
        assert sanitizer.findings == []
        assert wrong(case.arrivals, answers) == set()


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_padding_lanes_write_slot_0_and_nothing_else_beyond_the_batch(cuda_graph: bool) -> None:
    """What they write is told as well; three decodes run in four lanes."""
    probe = RecordingProbe()
    arrivals = [
        replace(arrival, step=0, sampling=replace(arrival.sampling, max_new_tokens=4, ignore_eos=True))
        for arrival in random_workload(0, 3, context_len=160, max_tail=4, abort_share=0.0)
    ]
    config = tight(1, cuda_graph=cuda_graph, loop="normal", kv_tokens=400, chunked_prefill_size=400)
    engine = Engine(config, probe)  # type: ignore[arg-type]
    assert isinstance(engine.compute, KernelCompute)
    answers = drive(engine, arrivals)
    assert wrong(arrivals, answers) == set()
    told = [event for event in probe.events if event["op"] == "write" and event.get("slots") == [0]]
    used = {slot for e in probe.events if e["op"] == "write" and e.get("pool") == "kv" for slot in e["slots"]}
    assert bool(told) == cuda_graph
    for memory in (*engine.compute.keys, *engine.compute.values):
        changed = set(memory.flatten(1).any(1).nonzero().flatten().tolist())
        assert changed == used
        assert (0 in changed) == cuda_graph


def test_a_bug_hands_out_the_state_that_padding_lanes_write() -> None:
    """With lanes the request that was given state 0 gets wrong tokens, as in the exact arithmetic."""
    case = scenario(bugs.PADDING_STATE, 0)
    config = replace(case.config, compute="kernels", cuda_graph=True)
    with scope(level="full") as sanitizer:
        answers = drive(Engine(config), case.arrivals)
    assert [finding.kind for finding in sanitizer.findings][:1] == [bugs.BUGS[bugs.PADDING_STATE].finding]
    assert wrong(case.arrivals, answers, hybrid=True)


def test_rows_are_written_in_order() -> None:
    """Against the exact arithmetic's, with cells that are written twice in one call."""
    sizes, rng = Sizes(rows=5, width=20, slots=50, states=0), random.Random(0)
    for _ in range(20):
        exact = Exact(EngineConfig(), sizes, lambda layer, slots: slots, WHOLE)
        kernels = KernelCompute(tight(1), sizes, CPU)
        for _ in range(3):
            writes = []
            for _ in range(rng.randint(1, 5)):
                begin, count = rng.randint(0, 15), rng.randint(1, 5)
                writes.append(RowWrite(rng.randint(1, 4), begin, rng.choices(range(50), k=count), "r"))
            exact.write_rows(writes)
            kernels.write_rows(writes)
            assert kernels.rows.dtype == torch.int32 and exact.rows.dtype == np.int32
            assert (kernels.rows.numpy() == exact.rows).all()


@pytest.mark.parametrize("hybrid", [False, True])
def test_an_engine_on_cuda_streams_over_the_stand_in(hybrid: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host does on CUDA streams, each piece at once and on its own stream; what it tells kvsan is the same as
    on simulated streams that run in order."""
    config = tight(1, hybrid=hybrid)
    arrivals = random_workload(3, REQUESTS, context_len=160)
    events = []
    for cuda in (False, True):
        if cuda:
            monkeypatch.setattr(compute, "SimulatedDevice", lambda _, probe: CudaDevice(probe, StandInCuda("in-order")))
        monkeypatch.setattr(compute, "_place", lambda: CPU)
        probe = RecordingProbe()
        answers = drive(Engine(config, probe), arrivals)  # type: ignore[arg-type]
        assert wrong(arrivals, answers, hybrid=hybrid) == set()
        events.append(probe.events)
    assert events[0] == events[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU")
@pytest.mark.parametrize("cuda_graph", [False, True])
def test_on_a_gpu_the_host_waits_for_events_only(cuda_graph: bool) -> None:
    config = tight(1, hybrid=True, cuda_graph=cuda_graph)
    arrivals = random_workload(3, REQUESTS, context_len=160)
    engine = Engine(config, NullSanitizer())
    assert isinstance(engine._device, CudaDevice)
    torch.cuda.set_sync_debug_mode("error")
    try:
        answers = drive(engine, arrivals)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert wrong(arrivals, answers, hybrid=True) == set()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window": 8}, "compute: 'kernels' is not there with window: use 'exact'"),
        ({"host_tokens": 64, "draft_tokens": 2}, "is not there with host_tokens, draft_tokens"),
        ({"prealloc_rows": 2}, "is not there with prealloc_rows"),
        ({"block_size": 4}, "is not there with block_size"),
        ({"compute": "exact", "cuda_graph": True}, "cuda_graph: only the kernels decode so"),
        ({"compute": "abacus"}, "compute: 'abacus' is not 'auto', 'exact' or 'kernels'"),
    ],
)
def test_what_the_kernels_do_not_compute_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tight(1, **fields)


def test_one_of_several_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="not those of one of several tensor ranks"):
        Engine(tight(1), NullSanitizer(), Shard(0, 2))


def test_auto_is_exact_where_the_kernels_do_not_suit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute.ctypes, "CDLL", lambda name: None)
    for gpu in ("cpu", "cuda"):
        monkeypatch.setattr(compute, "_place", lambda gpu=gpu: torch.device(gpu))
        for fields in ({"window": 8}, {"schedule_policy": "late"}, {}):
            suits = compute._suits_kernels(EngineConfig(compute="auto", **fields), WHOLE)  # type: ignore[arg-type]
            assert suits == (gpu == "cuda" and not fields), (gpu, fields)
    monkeypatch.setattr(compute, "_place", lambda: CPU)
    assert Engine(EngineConfig(compute="auto"), NullSanitizer()).compute.name == "exact"
