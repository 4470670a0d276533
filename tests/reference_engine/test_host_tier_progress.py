"""Copies to the host lock what they copy; where that alone is in the way, the engine waits for them and goes on."""

from __future__ import annotations

import pytest
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.workload import drive, random_workload

from .test_oracle_equality import check


@pytest.mark.parametrize(("page_size", "rows", "kv_tokens", "seed"), [(1, 5, 160, 28), (16, 2, 256, 24)])
def test_late_copies_do_not_stop_the_engine(
    page_size: int, rows: int, kv_tokens: int, seed: int, oracle: Oracle
) -> None:
    config = EngineConfig(
        page_size=page_size,
        rows=rows,
        kv_tokens=kv_tokens,
        chunked_prefill_size=16 if page_size == 1 else 48,
        mixed_chunk=page_size == 16,
        context_len=160,
        schedule_policy="late",
        seed=seed,
        host_tokens=256,
    )
    arrivals = random_workload(seed, 30, context_len=160)
    check(arrivals, drive(Engine(config), arrivals, max_steps=3000), oracle)
