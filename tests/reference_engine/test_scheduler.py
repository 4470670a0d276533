"""The scheduler's corners: aborts at every stage, retraction, rejection, duplicates; and what protects it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.holdings import Holdings
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.radix_cache import RadixCache
from kvsan.reference_engine.request import Finish, Request, SamplingParams
from kvsan.reference_engine.row_writer import RowWriter
from kvsan.reference_engine.workload import Arrival, drive, random_workload

from .test_oracle_equality import check, check_nothing_lost, tight

SMALL = EngineConfig(rows=2, context_len=96, kv_tokens=128, chunked_prefill_size=16)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("loop", ["normal", "overlap"])
@pytest.mark.parametrize("steps", range(12))
def test_abort_after_any_number_of_steps_gives_everything_back(loop: str, steps: int, hybrid: bool) -> None:
    """Waiting, between chunks, in the first decode, running: 40 tokens take three chunks."""
    with scope(level="full") as sanitizer:
        engine = Engine(replace(SMALL, loop=loop, hybrid=hybrid))
        engine.add(Request("a", list(range(40)), SamplingParams(6, ignore_eos=True)))
        outputs = [output for _ in range(steps) if engine.busy for output in engine.step()]
        engine.abort("a")
        while engine.busy:
            outputs += engine.step()
    count = sum(len(output.tokens) for output in outputs)
    assert outputs[-1].finish is (Finish.LENGTH if count == 6 else Finish.ABORT)
    check_nothing_lost(engine)
    assert sanitizer.findings == []


def test_abort_of_an_unknown_request_is_no_error() -> None:
    engine = Engine(SMALL)
    engine.abort("nobody")
    assert not engine.busy


@pytest.mark.parametrize(("length", "output"), [(95, 1), (91, 1), (60, 90)])
def test_a_request_that_cannot_fit_ends_with_a_reason(length: int, output: int) -> None:
    engine = Engine(SMALL)
    answers = drive(engine, [Arrival(0, "a", tuple(range(length)), SamplingParams(output))])
    assert answers["a"].finish is Finish.ABORT
    assert answers["a"].tokens == []
    assert "tokens" in (answers["a"].error or "")
    check_nothing_lost(engine)


@pytest.mark.parametrize("page_size", [1, 16])
def test_requests_retracted_under_pressure_still_get_the_right_tokens(page_size: int, oracle: Oracle) -> None:
    config = replace(SMALL, rows=4, page_size=page_size, kv_tokens=96, context_len=96)
    arrivals = [
        Arrival(0, f"r{number}", tuple(range(number, number + 10)), SamplingParams(60, ignore_eos=True))
        for number in range(4)
    ]
    with scope() as sanitizer:
        engine = Engine(config)
        check(arrivals, drive(engine, arrivals), oracle)
    assert sanitizer.findings == []
    check_nothing_lost(engine)


def test_equal_prompts_at_once_leave_duplicates_in_the_overlapped_loop(oracle: Oracle) -> None:
    """Two requests compute the same prompt; the second may not swap its slots while its next step is in flight."""
    arrivals = [Arrival(0, rid, tuple(range(12)), SamplingParams(4, ignore_eos=True)) for rid in ("a", "b")]
    for loop in ("normal", "overlap"):
        with scope(level="full") as sanitizer:
            engine = Engine(replace(SMALL, loop=loop))
            check(arrivals, drive(engine, arrivals), oracle)
        assert sanitizer.findings == []
        check_nothing_lost(engine)


# What protects the engine: each protection is taken away, and kvsan must say so.


def found(config: EngineConfig) -> list[str]:
    """The kinds found in a random run, in order."""
    with scope(level="full") as sanitizer:
        drive(Engine(config), random_workload(1, 30, context_len=160, abort_share=0.3))
    return [finding.kind for finding in sanitizer.findings]


def test_without_the_write_after_read_barrier_there_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    write = RowWriter.write

    def unordered(self: RowWriter, writes: Any, *, batch: Any = None, after_reads: bool = True) -> None:
        write(self, writes, batch=batch, after_reads=False)

    monkeypatch.setattr(RowWriter, "write", unordered)
    assert found(tight(1, "overlap", "in-order", 1))[0] == "race"


def test_swapping_duplicates_while_a_batch_is_outstanding_is_a_stale_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Holdings.publish

    def at_once(self: Holdings, request: Request, upto: int, batch: str | None = None) -> None:
        outstanding, request.outstanding = request.outstanding, 0
        publish(self, request, upto, batch)
        request.outstanding = outstanding

    monkeypatch.setattr(Holdings, "publish", at_once)
    assert found(tight(1, "overlap", "in-order", 1))[0] == "stale_capture"


def test_forgetting_an_unlock_is_a_lock_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RadixCache, "unlock", lambda self, node, owner: None)
    with scope() as sanitizer:
        drive(Engine(SMALL), [Arrival(0, "a", tuple(range(12)), SamplingParams(2))])
    assert {finding.kind for finding in sanitizer.findings} == {"lock_leak"}
