"""Sparse attention: rows are registered while requests work with them, and bounds are bounds of their keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kvsan.hooks import scope
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.request import Request, SamplingParams
from kvsan.reference_engine.sparse import BLOCKS
from kvsan.reference_engine.workload import Arrival, drive, random_workload

from .test_oracle_equality import check_nothing_lost, tight

SMALL = EngineConfig(rows=2, context_len=96, kv_tokens=128, chunked_prefill_size=16, sparse=True)


@pytest.mark.parametrize("draft_tokens", [0, 3])
@pytest.mark.parametrize("page_size", [1, 16])
def test_bounds_are_those_of_all_keys(page_size: int, draft_tokens: int) -> None:
    config = tight(page_size, "overlap", "in-order", 1)
    engine = Engine(replace(config, sparse=True, draft_tokens=draft_tokens))
    checked = 0
    for arrival in random_workload(1, 12, context_len=160):
        engine.add(arrival.request())
    while engine.busy:
        engine.step()
        for request in engine.scheduler.running:
            sparse, row = engine.sparse, request.kv.row
            assert sparse is not None and row is not None
            registration = sparse._registered[row]
            for position, slot in enumerate(request.kv.slots[: registration.upto]):
                bound = sparse._bounds[registration.buffers[position // sparse._block]]
                assert np.all(engine.kv.memory.keys[0][slot] <= bound)
                checked += 1
    assert checked > 1000


@pytest.mark.parametrize("loop", ["normal", "overlap"])
@pytest.mark.parametrize("steps", range(8))
def test_abort_after_any_number_of_steps_unregisters(loop: str, steps: int) -> None:
    with scope(level="full") as sanitizer:
        engine = Engine(replace(SMALL, loop=loop))
        engine.add(Request("a", list(range(40)), SamplingParams(6, ignore_eos=True)))
        for _ in range(steps):
            engine.step()
        assert engine.sparse is not None
        assert engine.sparse.size - engine.sparse.available == (BLOCKS if steps else 0)
        engine.abort("a")
        while engine.busy:
            engine.step()
    check_nothing_lost(engine)
    assert sanitizer.findings == []


def test_an_idle_session_keeps_its_row_but_no_buffers() -> None:
    sampling = SamplingParams(4, ignore_eos=True)
    engine = Engine(SMALL)
    for number in range(2):
        drive(engine, [Arrival(0, f"r{number}", tuple(range(97, 110)), sampling, session="s")])
        assert engine.totals()["rows_available"] == 1
        assert engine.totals()["buffers_available"] == engine.totals()["buffers"]
    engine.close_session("s")
    check_nothing_lost(engine)
