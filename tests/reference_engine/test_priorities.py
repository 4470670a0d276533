"""Higher priorities are admitted first and retracted last; tokens are right all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.request import SamplingParams
from kvsan.reference_engine.workload import Arrival, drive, random_workload

from .conftest import RecordingProbe
from .test_oracle_equality import check, check_nothing_lost, tight


def order(engine: Engine) -> list[str]:
    """The requests in the order in which they end."""
    ended = []
    while engine.busy:
        ended += [output.rid for output in engine.step() if output.finish is not None]
    return ended


def test_the_highest_priority_is_admitted_first_and_equal_ones_in_order() -> None:
    engine = Engine(EngineConfig(rows=1))
    for rid, priority in (("a", 0), ("b", 1), ("c", 1), ("d", -1), ("e", 2)):
        prompt = tuple(rid.encode()) * 5
        engine.add(Arrival(0, rid, prompt, SamplingParams(2, ignore_eos=True), priority=priority).request())
    assert order(engine) == ["e", "b", "c", "a", "d"]


@pytest.mark.parametrize("loop", ["normal", "overlap"])
def test_the_lowest_priority_is_retracted_first(loop: str) -> None:
    config = EngineConfig(rows=3, kv_tokens=64, context_len=64, loop=loop)
    probe = RecordingProbe()
    engine = Engine(config, probe)  # type: ignore[arg-type]
    for rid, priority in (("low", 0), ("high", 1), ("middle", 0)):
        prompt = tuple(rid.encode()[:1]) * 8
        engine.add(Arrival(0, rid, prompt, SamplingParams(30, ignore_eos=True), priority=priority).request())
    order(engine)
    retracted = [event["owner"] for event in probe.events if event["op"] == "req_retract"]
    assert retracted[0] == "middle"
    assert "high" not in retracted


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(("loop", "policy"), [("normal", "late"), ("overlap", "random")])
def test_tokens_are_right_with_priorities(page_size: int, loop: str, policy: str, oracle: Oracle) -> None:
    with scope(level="full") as sanitizer:
        engine = Engine(tight(page_size, loop, policy, 2))
        workload = random_workload(8, 25, context_len=160)
        arrivals = [replace(arrival, priority=n * 7 % 3) for n, arrival in enumerate(workload)]
        check(arrivals, drive(engine, arrivals), oracle)
    check_nothing_lost(engine)
    assert sanitizer.findings == []
