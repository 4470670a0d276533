"""The sliding window: right answers with tombstones, evictions and recoveries; and its bugs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine import bugs
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.policies import POLICY_NAMES
from kvsan.reference_engine.request import SamplingParams
from kvsan.reference_engine.scenarios import Scenario, scenario
from kvsan.reference_engine.window_scenarios import WIDTH
from kvsan.reference_engine.workload import Arrival, drive, random_text, random_workload

from .test_bugs import SEEDS, run, wrong
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
def test_recovery_frees_a_slot_of_another(page_size: int, narrow: Oracle) -> None:
    for seed in SEEDS:
        case = scenario(bugs.STALE_MAP, seed, page_size=page_size)
        answers, findings = run(case)
        assert (findings[0].kind, findings[0].pool, findings[0].owner) == ("free_not_owner", "window", "again"), seed
        assert len(findings) == 1, seed
        earlier = findings[0].earlier
        assert earlier is not None and (earlier.what, earlier.owner) == ("allocated", "steady"), seed
        if seed % 4 == 0:
            answers, findings = run(case.fixed())
            assert findings == []
            assert wrong(case, answers, narrow) == set()


@pytest.mark.parametrize("page_size", [1, 16])
def test_slot_of_another_is_then_shared(page_size: int, narrow: Oracle) -> None:
    """What comes late is handed the slot; then somebody matches all that `steady` left."""
    bitten = 0
    for seed in range(8):
        case = scenario(bugs.STALE_MAP, seed, page_size=page_size)
        rng, steady = random.Random(seed), case.arrivals[1]
        text = steady.prompt + tuple(narrow.generate(list(steady.prompt), steady.sampling))
        sampling = SamplingParams(10, ignore_eos=True)
        then = [Arrival(80 + n, f"late-{n}", random_text(rng, 30), sampling) for n in range(3)]
        then.append(Arrival(130, "matching", text[:-1] + random_text(rng, 1), sampling))
        case = replace(case, then=then)
        bitten += bool(wrong(case, run(case, then=True)[0], narrow))
        assert wrong(case, run(case.fixed(), then=True)[0], narrow) == set(), seed
    assert bitten


@pytest.mark.parametrize("page_size", [1, 16])
def test_padding_slot_is_freed(page_size: int) -> None:
    for seed in SEEDS:
        case = scenario(bugs.TOMBSTONE_FREED, seed, page_size=page_size)
        [found] = run(case)[1]
        assert (found.kind, found.pool, found.owner, set(found.slots)) == ("invalid_free", "window", "gone", {0})
        if seed % 4 == 0:
            assert run(case.fixed())[1] == []


def test_padding_slot_is_then_shared(narrow: Oracle) -> None:
    rng = random.Random(0)
    long, short = SamplingParams(60, ignore_eos=True), SamplingParams(8, ignore_eos=True)
    arrivals = [Arrival(n, f"gone-{n}", random_text(rng, 6), long, 45 + 2 * n) for n in range(2)]
    late = [Arrival(60, f"late-{n}", random_text(rng, 4), short) for n in range(4)]
    config = EngineConfig(rows=6, context_len=128, kv_tokens=256, window=WIDTH)
    for bug in (bugs.TOMBSTONE_FREED, None):
        answers = run(Scenario(replace(config, bug=bug), arrivals + late, ()))[0]
        assert bool(wrong(Scenario(config, late, ()), answers, narrow)) == (bug is not None)
