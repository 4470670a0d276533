"""Profiling measures growing prefills and gives back all that they used, but for what the cache keeps."""

from __future__ import annotations

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine

from .test_oracle_equality import check_nothing_lost


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("page_size", [1, 16])
def test_profiling_gives_everything_back(page_size: int, hybrid: bool) -> None:
    config = EngineConfig(
        page_size=page_size, hybrid=hybrid, chunked_prefill_size=32, profile_sizes=4, profile_chunks=2
    )
    with scope(level="full") as sanitizer:
        engine = Engine(config)
        sanitizer.check_end()
    assert list(engine.prefill_seconds) == [16, 32, 48, 64]
    assert all(seconds > 0 for seconds in engine.prefill_seconds.values())
    assert not engine.busy
    check_nothing_lost(engine)
    assert engine.totals()["kv_evictable"] > 0
    assert sanitizer.findings == []
