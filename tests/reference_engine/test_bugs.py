"""Each bug switch gives its finding in every seed, whatever the schedule; without the switch nothing is found."""

from __future__ import annotations

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine import bugs
from kvsan.reference_engine.bugs import BUGS
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.policies import POLICY_NAMES
from kvsan.reference_engine.scenarios import Scenario, scenario
from kvsan.reference_engine.workload import Answer

from kvsan.findings import Finding

SEEDS = range(20)
FOUNDING = list(BUGS)[:4]
"""Those that this module looks at; `test_switches` looks at the others."""


def run(case: Scenario) -> tuple[dict[str, Answer], list[Finding]]:
    """Drives the scenario's engine under kvsan; the answers and what was found."""
    with scope(level="full") as sanitizer:
        answers = case.drive(Engine(case.config))
    return answers, sanitizer.findings


def wrong(case: Scenario, answers: dict[str, Answer], oracle: Oracle) -> set[str]:
    """The requests whose tokens are not the right ones; those that were rejected aside."""
    return {
        arrival.rid
        for arrival in case.arrivals
        if answers[arrival.rid].error is None
        and answers[arrival.rid].tokens != oracle.generate(list(arrival.prompt), arrival.sampling)
    }


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", FOUNDING)
def test_first_finding_in_every_seed(name: str, page_size: int) -> None:
    bug = BUGS[name]
    for seed in SEEDS:
        case = scenario(name, seed, page_size=page_size)
        _, findings = run(case)
        assert findings, seed
        assert (findings[0].kind, findings[0].pool) == (bug.finding, bug.pool), seed
        if seed % 4 == 0:
            assert run(case.fixed())[1] == [], seed


@pytest.mark.parametrize("loop", ["normal", "overlap"])
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_row_race_is_found_under_every_schedule(loop: str, policy: str) -> None:
    for seed in range(3):
        _, findings = run(scenario(bugs.ROW_REALLOC, seed, loop=loop, schedule_policy=policy))
        [race] = findings
        assert race.kind == "race" and race.pool == "req_to_token"
        assert race.present is not None and race.earlier is not None
        assert (race.present.what, race.present.owner, race.present.agent) == ("write", "other", "sched")
        assert (race.earlier.what, race.earlier.owner, race.earlier.agent) == ("read", "victim", "fwd")
        assert race.earlier.batch is not None
        assert race.missing


@pytest.mark.parametrize("loop", ["normal", "overlap"])
def test_row_race_bites_when_the_forward_runs_late(loop: str, oracle: Oracle) -> None:
    for seed in SEEDS:
        case = scenario(bugs.ROW_REALLOC, seed, loop=loop, schedule_policy="late")
        assert wrong(case, run(case)[0], oracle) == set(case.victims), seed
        fixed = case.fixed()
        assert wrong(fixed, run(fixed)[0], oracle) == set(), seed


@pytest.mark.parametrize("loop", ["normal", "overlap"])
def test_row_race_is_invisible_in_order(loop: str, oracle: Oracle) -> None:
    for seed in range(8):
        case = scenario(bugs.ROW_REALLOC, seed, loop=loop, schedule_policy="in-order")
        assert wrong(case, run(case)[0], oracle) == set(), seed


@pytest.mark.parametrize(("name", "pool"), [(bugs.ABORT_KEEPS_ROW, "req_to_token"), (bugs.ABORT_STILL_LEAKS, "kv")])
def test_leak_names_the_rejected_request_and_serving_goes_on(name: str, pool: str, oracle: Oracle) -> None:
    for seed in range(5):
        case = scenario(name, seed)
        answers, findings = run(case)
        [leak] = findings
        assert (leak.kind, leak.pool, leak.owner) == ("leak", pool, "too-long")
        assert [held.pool for held in leak.held] == [pool]
        assert leak.held[0].allocated is not None and leak.held[0].allocated.stack
        assert answers["too-long"].error is not None
        assert wrong(case, answers, oracle) == set()


def test_rejected_request_leaks_nothing_in_the_normal_loop() -> None:
    for seed in range(3):
        assert run(scenario(bugs.ABORT_KEEPS_ROW, seed, loop="normal"))[1] == []


def test_double_release_gives_one_row_to_two_requests(oracle: Oracle) -> None:
    for seed in range(8):
        case = scenario(bugs.ABORT_DOUBLE_RELEASE, seed)
        answers, findings = run(case)
        assert (findings[0].kind, findings[0].owner) == ("double_free", "retracted")
        assert wrong(case, answers, oracle), seed
