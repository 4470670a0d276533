"""Each switch gives its finding with its owners and sites in every seed, what follows from it joined to it and nothing
beside it; and users see what the registry says. Without the switch nothing is found, and the answers are right."""

from __future__ import annotations

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine.bugs import BUGS, EFFECTS, RANK_ORDER
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.policies import POLICY_NAMES
from kvsan.reference_engine.scenarios import Scenario, scenario

from .combinations import wrong_answers
from .exactness import consequence, faults

# Two ranks take two processes: test_tensor_ranks.py looks at those.
CASES = [(bug.name, page) for bug in BUGS.values() if bug.name != RANK_ORDER for page in bug.page_sizes]


def test_every_bug_is_described() -> None:
    for bug in BUGS.values():
        assert bug.effect in EFFECTS, bug.name
        assert bug.consequence != bug.effect, bug.name


@pytest.mark.parametrize(("name", "page_size"), CASES)
def test_one_finding_in_20_of_20_seeds(name: str, page_size: int) -> None:
    for seed in range(20):
        case = scenario(name, seed, page_size=page_size)
        with scope(level="full") as sanitizer:
            case.drive(Engine(case.config), 600)
        assert faults(BUGS[name], sanitizer.findings) == [], seed
        assert sanitizer.report().failures == (), seed


def check_fixed(case: Scenario) -> None:
    """Nothing is found without the bug, and nobody sees anything."""
    fixed = case.fixed()
    with scope(level="full") as sanitizer:
        assert wrong_answers(fixed.config, fixed.arrivals, fixed.drive(Engine(fixed.config), 300)) == {}
    assert sanitizer.findings == []
    assert sanitizer.report().failures == ()


@pytest.mark.parametrize(("name", "page_size"), CASES)
def test_silent_without_the_switch(name: str, page_size: int) -> None:
    for seed in (3, 11):
        check_fixed(scenario(name, seed, page_size=page_size))


@pytest.mark.parametrize(("name", "page_size"), CASES)
def test_consequence_in_3_seeds_of_the_20_that_soak_takes(name: str, page_size: int) -> None:
    for seed in range(3):
        case = scenario(name, seed, page_size=page_size, biting=True)
        assert consequence(case) == BUGS[name].effect.replace("exhaustion", "stall"), seed
        check_fixed(case)


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if bug.effect == "latent"])
def test_latent_under_every_schedule(name: str, policy: str) -> None:
    for seed in range(5):
        case = scenario(name, seed, schedule_policy=policy)
        with scope(level="full") as sanitizer:
            answers = case.drive(Engine(case.config), 600)
        assert faults(BUGS[name], sanitizer.findings) == [], seed
        assert wrong_answers(case.config, case.arrivals, answers) == {}, seed
