"""Random combinations of features give right tokens under every schedule, lose nothing, and kvsan is silent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.policies import POLICY_NAMES
from kvsan.reference_engine.workload import drive

from .combinations import SESSIONS, features, random_case, wrong_answers
from .test_oracle_equality import check_nothing_lost

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_features_together(seed: int) -> None:
    case = random_case(seed)
    with scope(level="full") as sanitizer:
        engine = Engine(case.config)
        answers = drive(engine, case.arrivals, flush_at=case.flush_at, max_steps=4000)
        for name in SESSIONS:
            engine.close_session(name)
    assert wrong_answers(case.config, case.arrivals, answers) == {}
    check_nothing_lost(engine)
    assert sanitizer.findings == []
    assert sanitizer.report().failures == ()


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_answers_do_not_depend_on_the_schedule(policy: str) -> None:
    """Without aborts, which come at a step."""
    for seed in range(100, 104):
        case = random_case(seed, 12)
        arrivals = [replace(arrival, abort_at=None, session=None) for arrival in case.arrivals]
        config = replace(case.config, schedule_policy=policy)
        assert wrong_answers(config, arrivals, drive(Engine(config), arrivals, max_steps=4000)) == {}, seed


def test_the_combinations_have_every_feature_with_many_others() -> None:
    """Otherwise the tests above would say little."""
    together = [set(features(random_case(seed))) for seed in range(200)]
    every = set().union(*together)
    assert every >= {"window", "hybrid", "storage", "prealloc_rows", "draft_tokens", "block_size", "sparse", "session"}
    for name in every:
        beside = set().union(*(each for each in together if name in each)) - {name}
        assert len(beside) >= 8, name
    assert len({frozenset(each) for each in together}) > 100


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"window": 8, "hybrid": True}, "either windowed or recurrent"),
        ({"window": 8, "host_tokens": 64}, "carry window slots"),
        ({"window": 8, "prealloc_rows": 2}, "carry window slots"),
        ({"hybrid": True, "host_tokens": 64}, "carry recurrent states"),
        ({"hybrid": True, "prealloc_rows": 2}, "carry recurrent states"),
        ({"hybrid": True, "draft_tokens": 2}, "a state cannot go back"),
        ({"hybrid": True, "block_size": 4}, "a state cannot go back"),
        ({"draft_tokens": 2, "block_size": 4}, "exclude each other"),
        ({"profile_sizes": 2, "prealloc_rows": 2}, "another server prefills"),
    ],
)
def test_what_cannot_go_together_says_why(options: dict[str, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        EngineConfig(**options)  # type: ignore[arg-type]
