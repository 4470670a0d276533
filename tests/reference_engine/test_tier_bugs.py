"""The bugs of the host tier, of storage, of the decode side and of frees in groups.

One cause each is named with owner and sites, and users see what the registry says.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from kvsan.reference_engine import bugs, tier_scenarios
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.request import Request, SamplingParams
from kvsan.reference_engine.scenarios import Scenario, scenario
from kvsan.reference_engine.workload import Arrival, drive, random_text

from .test_bugs import SEEDS, run, wrong


@dataclass(frozen=True)
class Expected:
    """`present` and `earlier` are (what, agent, kind of owner) of the two sites; `biting` a schedule that shows the
    consequence, where that is wrong tokens: in every seed, or where one slot's keys seldom matter, in some."""

    present: tuple[str, str, str]
    earlier: tuple[str, str, str] | None
    biting: str | None = None
    always: bool = True


EXPECTED = {
    bugs.NEVER_UNLOCKS: Expected(("idle", "host", ""), ("lock", "host", "backup")),
    bugs.EVICT_UNDER_WRITE_BACK: Expected(("evicted", "host", ""), ("transfer", "copy", "backup"), "late"),
    bugs.BACKUP_NOT_ORDERED: Expected(("read", "copy", "backup"), None, "late"),
    bugs.LOAD_NOT_AWAITED: Expected(("read", "fwd", ""), ("write", "copy", "load"), "starve:copy"),
    bugs.LOAD_NOT_FENCED: Expected(("write", "copy", "load"), None, "starve:fwd", always=False),
    bugs.PREFETCH_TAIL: Expected(("freed", "host", "prefetch"), ("freed", "host", "prefetch")),
    bugs.ABORT_FREES: Expected(("freed", "host", "gone"), ("transfer", "nic", "gone"), "slow:nic", always=False),
    bugs.ABORT_LEAKS: Expected(("end", "host", "gone"), None),
    bugs.NESTED_GROUP: Expected(("idle", "host", ""), None),
    bugs.DECODE_BEFORE_END: Expected(("read", "fwd", ""), ("write", "nic", "early"), "starve:nic"),
}


def test_every_bug_is_expected() -> None:
    assert set(EXPECTED) == set(tier_scenarios.BUILDERS)


def build(name: str, seed: int, page_size: int) -> Scenario:
    """The scenario under the schedule that shows the consequence."""
    return scenario(name, seed, page_size=page_size, schedule_policy=EXPECTED[name].biting or "late")


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", list(EXPECTED))
def test_one_cause_is_found_and_bites(name: str, page_size: int, oracle: Oracle) -> None:
    expected = EXPECTED[name]
    bitten = 0
    for seed in SEEDS:
        case = build(name, seed, page_size)
        answers, findings = run(case)
        first = findings[0]
        assert {(f.kind, f.pool) for f in findings} == {(bugs.BUGS[name].finding, bugs.BUGS[name].pool)}, seed
        assert first.present is not None
        present = (first.present.what, first.present.agent, (first.present.owner or "").split(":")[0])
        assert present == expected.present, seed
        if expected.earlier is not None:
            assert first.earlier is not None
            earlier = (first.earlier.what, first.earlier.agent, (first.earlier.owner or "").split(":")[0])
            assert earlier == expected.earlier, seed
        served = replace(case, arrivals=[a for a in case.arrivals if a.abort_at is None])
        victims = wrong(served, answers, oracle)
        assert victims <= set(case.victims), seed
        bitten += bool(victims)
        if seed % 4 == 0:
            answers, findings = run(case.fixed())
            assert findings == [], seed
            assert wrong(served, answers, oracle) == set(), seed

    assert bitten == len(SEEDS) if expected.biting and expected.always else (bitten > 0) == bool(expected.biting)


def test_leaked_row_and_slots_are_named() -> None:
    [leak] = run(build(bugs.ABORT_LEAKS, 1, 1))[1]
    assert [held.pool for held in leak.held] == ["req_to_token", "kv"]


def test_host_slots_given_back_twice_end_under_two_nodes(oracle: Oracle) -> None:
    rng = random.Random(0)
    prompt = random_text(rng, 39)
    arrivals = [
        Arrival(0, "first", prompt, SamplingParams(1)),
        Arrival(10, "second", random_text(rng, 45), SamplingParams(2, ignore_eos=True)),
        Arrival(30, "again", prompt + random_text(rng, 4), SamplingParams(12, ignore_eos=True)),
    ]
    config = EngineConfig(rows=2, context_len=64, kv_tokens=64, host_tokens=64, storage=True, schedule_policy="late")
    case = Scenario(replace(config, bug=bugs.PREFETCH_TAIL), arrivals, ("again",))
    assert wrong(case, run(case)[0], oracle) == {"again"}
    assert wrong(case, run(case.fixed())[0], oracle) == set()


def test_locks_that_stay_stall_the_server() -> None:
    """Three prompts fill the cache; the fourth finds nothing that may be evicted."""
    rng = random.Random(0)
    config = EngineConfig(rows=2, context_len=64, kv_tokens=64, host_tokens=256)
    for bug in (bugs.NEVER_UNLOCKS, None):
        engine = Engine(replace(config, bug=bug))
        for number in range(4):
            engine.add(Request(f"r{number}", list(random_text(rng, 21)), SamplingParams(1)))
        for _ in range(100):
            if engine.busy:
                engine.step()
        assert engine.busy == (bug is not None)


def test_leaked_slots_stall_the_server() -> None:
    """The slots that are left do not suffice for the request that runs."""
    case = build(bugs.ABORT_LEAKS, 0, 1)
    for bug in (bugs.ABORT_LEAKS, None):
        engine = Engine(replace(case.config, bug=bug, kv_tokens=72))
        for step in range(200):
            for arrival in case.arrivals:
                if arrival.step == step:
                    engine.add(Request(arrival.rid, list(arrival.prompt), arrival.sampling))
                if arrival.abort_at == step:
                    engine.abort(arrival.rid)
            if engine.busy:
                engine.step()
        assert engine.busy == (bug is not None)


def test_lost_groups_stall_the_server() -> None:
    rng = random.Random(0)
    for bug in (bugs.NESTED_GROUP, None):
        engine = Engine(EngineConfig(rows=2, context_len=64, kv_tokens=64, page_size=16, free_groups=True, bug=bug))
        for number in range(12):
            engine.add(Request(f"r{number}", list(random_text(rng, 10)), SamplingParams(4, ignore_eos=True)))
        engine.add(Request("long", list(random_text(rng, 40)), SamplingParams(4)))
        for _ in range(200):
            if engine.busy:
                engine.step()
        assert engine.busy == (bug is not None)


@pytest.mark.parametrize(
    "features",
    [
        {"free_groups": True},
        {"host_tokens": 320},
        {"host_tokens": 192, "host_write": "back"},
        {"host_tokens": 96, "storage": True},
        {"prealloc_rows": 3},
        {"prealloc_rows": 2, "host_tokens": 160},
    ],
    ids=str,
)
def test_a_prompt_served_again_comes_from_the_tier(features: dict[str, int], oracle: Oracle) -> None:
    """And the answers stay right."""
    rng = random.Random(3)
    prompts = [random_text(rng, 40) for _ in range(3)]
    arrivals = [
        Arrival(20 * turn + 5 * number, f"r{turn}-{number}", prompt, SamplingParams(4, ignore_eos=True))
        for turn in range(2)
        for number, prompt in enumerate(prompts)
    ]
    case = Scenario(EngineConfig(rows=2, context_len=64, kv_tokens=80, **features), arrivals, ())  # type: ignore[arg-type]
    answers, findings = run(case)
    assert wrong(case, answers, oracle) == set()
    assert findings == []
    assert drive(Engine(case.config), arrivals) == answers
