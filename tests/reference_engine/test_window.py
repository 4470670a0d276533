"""The sliding window: right answers with tombstones, evictions and recoveries."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine import bugs
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.policies import POLICY_NAMES
from kvsan.reference_engine.scenarios import scenario
from kvsan.reference_engine.window_scenarios import WIDTH
from kvsan.reference_engine.workload import drive, random_workload

from .test_bugs import run
from .test_oracle_equality import check, check_nothing_lost, tight


@pytest.fixture(scope="module")
def narrow() -> Oracle:
    return Oracle(window=WIDTH)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("loop", ["normal", "overlap"])
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_answers_are_right_and_nothing_is_found(page_size: int, loop: str, policy: str, narrow: Oracle) -> None:
    with scope(level="full") as sanitizer:
        engine = Engine(replace(tight(page_size, loop, policy, 2), window=WIDTH))
        arrivals = random_workload(2, 20, context_len=160, max_new=30)
        check(arrivals, drive(engine, arrivals), narrow)
    check_nothing_lost(engine)
    assert sanitizer.findings == []
    assert sanitizer.report().failures == ()


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_freed_padding_slots_are_named(page_size: int) -> None:
    [found] = run(scenario(bugs.TOMBSTONE_FREED, 0, page_size=page_size))[1]
    assert set(found.slots) == {0}
