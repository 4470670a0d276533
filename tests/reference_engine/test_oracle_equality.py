"""Whatever the schedule, a request gets the tokens that the model gives without cache, batch or overlap."""

from __future__ import annotations

import pytest
from conftest import RecordingProbe
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.policies import POLICY_NAMES
from kvsan.reference_engine.request import Finish
from kvsan.reference_engine.workload import drive, random_workload


def config(page_size: int, loop: str, policy: str, seed: int, hybrid: bool = False) -> EngineConfig:
    """Small enough that requests are chunked, cached, evicted and retracted."""
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


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("loop", ["normal", "overlap"])
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_equals_oracle(page_size: int, loop: str, policy: str, oracle: Oracle) -> None:
    for seed in range(2):
        engine = Engine(config(page_size, loop, policy, seed), RecordingProbe())
        arrivals = random_workload(seed, 30, context_len=160)
        answers = drive(engine, arrivals)
        for arrival in arrivals:
            answer = answers[arrival.rid]
            right = oracle.generate(list(arrival.prompt), arrival.sampling)
            if answer.finish is Finish.ABORT:
                assert arrival.abort_at is not None
                assert answer.tokens == right[: len(answer.tokens)]
            else:
                assert answer.finish is not None
                assert answer.tokens == right, arrival.rid
        totals = engine.totals()
        assert totals["rows_available"] == totals["rows"]
        assert totals["kv_available"] + totals["kv_evictable"] == totals["kv_tokens"]
