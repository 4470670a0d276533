"""What more there is to say about single switches: which schedules, loops and sizes they need, and what a finding tells
beside owners and sites."""

from __future__ import annotations

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine import bugs
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.policies import POLICY_NAMES
from kvsan.reference_engine.request import SamplingParams
from kvsan.reference_engine.scenarios import Scenario, scenario
from kvsan.reference_engine.workload import Answer, Arrival, drive

from kvsan.findings import Access, Finding

from .combinations import wrong_answers

SEEDS = range(20)


def run(case: Scenario) -> tuple[dict[str, Answer], list[Finding]]:
    """Drives the scenario's engine under kvsan; the answers and what was found."""
    with scope(level="full") as sanitizer:
        answers = case.drive(Engine(case.config), 600)
    assert sanitizer.report().failures == ()
    return answers, sanitizer.findings


def functions(access: Access | None) -> list[str]:
    """The functions of an access's stack."""
    return [frame.function for frame in access.stack] if access is not None else []


def wrong(case: Scenario, answers: dict[str, Answer]) -> set[str]:
    """The requests whose tokens are not the right ones."""
    return set(wrong_answers(case.config, case.arrivals, answers))


def profiled(page_size: int, *, hybrid: bool = False, chunks: int = 1, sizes: int = 3) -> list[Finding]:
    """What is found when profiling releases by hand, in an engine that then serves."""
    config = EngineConfig(
        page_size=page_size,
        chunked_prefill_size=32,
        hybrid=hybrid,
        profile_chunks=chunks,
        profile_sizes=sizes,
        bug=bugs.PROFILING_BY_HAND,
    )
    arrivals = [Arrival(0, "a", tuple(range(40)), SamplingParams(5))]
    return run(Scenario(config, arrivals))[1]


@pytest.mark.parametrize("page_size", [1, 16])
def test_releasing_by_hand_is_as_good_while_nothing_is_cached(page_size: int) -> None:
    assert profiled(page_size) == []


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("hybrid", [False, True])
def test_releasing_by_hand_leaves_a_protected_prefix_or_a_tracked_state_in_the_record(
    page_size: int, hybrid: bool
) -> None:
    [finding] = profiled(page_size, hybrid=hybrid, chunks=2, sizes=1)
    assert (finding.kind, finding.owner) == ("record_contract", "profile-64")
    assert finding.extra == {"protected": "32 > allocated 0"}
    assert [joined.kind for joined in finding.joined] == (["leak", "lock_leak"] if hybrid else ["lock_leak"])


@pytest.mark.parametrize("loop", ["normal", "overlap"])
@pytest.mark.parametrize("name", [bugs.CAPTURE_BEFORE_PUBLICATION, bugs.PUBLICATION_REMAPS])
def test_publication_names_the_decode_that_captured_and_the_prefill_that_is_published(name: str, loop: str) -> None:
    """In the normal loop nothing is outstanding when a result is published, and the swap is right."""
    findings = run(scenario(name, 1, loop=loop))[1]
    if loop == "normal":
        assert findings == []
        return
    [finding] = findings
    assert finding.present is not None and finding.earlier is not None
    assert (finding.present.what, finding.earlier.what) == ("freed", "read")
    assert finding.earlier.batch is not None and finding.earlier.batch == finding.extra["batch"]
    assert "Holdings._replace" in functions(finding.present)
    assert finding.present.batch is not None
    assert int(finding.present.batch) == int(finding.earlier.batch) - 1


def test_each_abort_in_the_queue_costs_three_states() -> None:
    case = scenario(bugs.STATE_WITH_ROW, 0)
    for config, lost in ((case.config, 3), (case.fixed().config, 0)):
        with scope(level="full"):
            engine = Engine(config)
            drive(engine, case.arrivals)
        totals = engine.totals()
        assert totals["states"] - totals["states_available"] - totals["states_cached"] == lost


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
def test_row_race_bites_when_the_forward_runs_late(loop: str) -> None:
    for seed in SEEDS:
        case = scenario(bugs.ROW_REALLOC, seed, loop=loop, schedule_policy="late")
        assert wrong(case, run(case)[0]) == set(case.victims), seed
        fixed = case.fixed()
        assert wrong(fixed, run(fixed)[0]) == set(), seed


@pytest.mark.parametrize("loop", ["normal", "overlap"])
def test_row_race_is_invisible_in_order(loop: str) -> None:
    for seed in SEEDS:
        case = scenario(bugs.ROW_REALLOC, seed, loop=loop, schedule_policy="in-order")
        assert wrong(case, run(case)[0]) == set(), seed


@pytest.mark.parametrize(("name", "pool"), [(bugs.ABORT_KEEPS_ROW, "req_to_token"), (bugs.ABORT_STILL_LEAKS, "kv")])
def test_leak_names_the_rejected_request_and_serving_goes_on(name: str, pool: str) -> None:
    for seed in range(5):
        case = scenario(name, seed)
        answers, findings = run(case)
        [leak] = findings
        assert (leak.kind, leak.pool, leak.owner) == ("leak", pool, "too-long")
        assert [held.pool for held in leak.held] == [pool]
        assert leak.held[0].allocated is not None and leak.held[0].allocated.stack
        assert answers["too-long"].error is not None
        assert wrong(case, answers) == set()


def test_rejected_request_leaks_nothing_in_the_normal_loop() -> None:
    for seed in range(3):
        assert run(scenario(bugs.ABORT_KEEPS_ROW, seed, loop="normal"))[1] == []
