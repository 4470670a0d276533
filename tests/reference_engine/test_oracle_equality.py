"""Whatever the schedule, requests get the tokens that the model gives without cache, batch or overlap, and kvsan is
silent: over a thousand requests with shared prefixes, chunks, eviction, retraction and aborts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.policies import POLICY_NAMES
from kvsan.reference_engine.pools import STATES
from kvsan.reference_engine.request import Finish
from kvsan.reference_engine.workload import Answer, Arrival, drive, random_workload

from .conftest import RecordingProbe


def tight(page_size: int, loop: str, policy: str, seed: int, *, hybrid: bool = False) -> EngineConfig:
    """So small that requests are chunked, cached, evicted and retracted."""
    return EngineConfig(
        page_size=page_size,
        loop=loop,
        schedule_policy=policy,
        seed=seed,
        hybrid=hybrid,
        mixed_chunk=seed % 2 == 0,
        rows=5,
        kv_tokens=256 if page_size == 16 else 160,
        chunked_prefill_size=32,
        context_len=160,
    )


def check(arrivals: list[Arrival], answers: dict[str, Answer], oracle: Oracle) -> None:
    """Every answer is the right one, or the beginning of it where the request was aborted."""
    for arrival in arrivals:
        answer = answers[arrival.rid]
        right = oracle.generate(list(arrival.prompt), arrival.sampling, arrival.adapter)
        if answer.finish is Finish.ABORT:
            assert arrival.abort_at is not None, arrival.rid
            right = right[: len(answer.tokens)]
        assert answer.tokens == right, arrival.rid
        assert answer.finish is not None, arrival.rid


def check_nothing_lost(engine: Engine) -> None:
    """All rows are free, and all token slots are free or cached without locks."""
    totals = engine.totals()
    assert totals["rows_available"] == totals["rows"]
    assert totals["kv_available"] + totals["kv_evictable"] == totals["kv_tokens"]
    if "buffers" in totals:
        assert totals["buffers_available"] == totals["buffers"]
    if "states" in totals:
        assert totals["states_available"] + totals["states_cached"] == totals["states"]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("loop", ["normal", "overlap"])
@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_attention_model(page_size: int, loop: str, policy: str, seed: int, oracle: Oracle) -> None:
    with scope(level="full") as sanitizer:
        engine = Engine(tight(page_size, loop, policy, seed))
        arrivals = random_workload(seed, 30, context_len=160)
        check(arrivals, drive(engine, arrivals), oracle)
    check_nothing_lost(engine)
    assert sanitizer.findings == []
    assert sanitizer.report().failures == ()


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("loop", ["normal", "overlap"])
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_hybrid_model(page_size: int, loop: str, policy: str) -> None:
    """With a prefix cache of few states; prompts of whole conversations come again."""
    with scope(level="full") as sanitizer:
        engine = Engine(replace(tight(page_size, loop, policy, 3, hybrid=True), cached_states=3))
        arrivals = random_workload(3, 25, context_len=160)
        check(arrivals, drive(engine, arrivals), Oracle(hybrid=True))
    check_nothing_lost(engine)
    assert sanitizer.findings == []
    assert sanitizer.report().failures == ()


@pytest.mark.parametrize("page_size", [1, 16])
def test_hybrid_workloads_reach_every_feature(page_size: int) -> None:
    """States are cleared, tracked, donated, evicted, copied from the cache, and kept by requests that wait."""
    seen: Counter[str] = Counter()
    for seed in range(4):
        probe = RecordingProbe()
        config = replace(tight(page_size, "overlap", "in-order", seed, hybrid=True), cached_states=3)
        drive(Engine(config, probe), random_workload(seed, 30, context_len=160))  # type: ignore[arg-type]
        owners: dict[int, str] = {}
        for event in probe.events:
            if event.get("pool") != STATES:
                continue
            seen[event["op"]] += 1
            if event["op"] == "alloc":
                owners |= dict.fromkeys(event["slots"], event["owner"])
            elif event["op"] == "insert":
                owners |= dict.fromkeys(event["slots"], "cache")
            elif event["op"] == "read" and owners[event["slots"][0]] == "cache":
                seen["copy"] += 1
    for what in ("alloc", "free", "insert", "evict", "read", "write", "copy"):
        assert seen[what], what


def test_the_workloads_reach_every_feature() -> None:
    """Otherwise the tests above would say little."""
    seen: Counter[str] = Counter()
    for seed in range(4):
        probe = RecordingProbe()
        engine = Engine(tight(1, "overlap", "in-order", seed), probe)  # type: ignore[arg-type]
        answers = drive(engine, random_workload(seed, 30, context_len=160))
        seen.update(event["op"] for event in probe.events)
        seen.update(str(answer.finish) for answer in answers.values())
    for what in ("reuse", "match", "attach", "split", "evict", "lock", "req_retract", "req_abort", "idle"):
        assert seen[what], what
    for reason in Finish:
        assert seen[str(reason)], reason
