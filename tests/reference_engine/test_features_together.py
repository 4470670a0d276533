"""Random combinations of features give right tokens, and kvsan is silent."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.policies import POLICY_NAMES
from kvsan.reference_engine.workload import drive

from .test_oracle_equality import check_nothing_lost, tight
from .test_sessions import SESSIONS, check_turns, turns


@pytest.mark.parametrize("seed", range(16))
def test_any_features_together(seed: int, oracle: Oracle) -> None:
    rng = random.Random(seed)
    loop, policy = rng.choice(("normal", "overlap")), rng.choice(POLICY_NAMES)
    config = tight(rng.choice((1, 16)), loop, policy, seed)
    config = replace(config, draft_tokens=rng.choice((0, 2, 5)))
    arrivals = [
        replace(
            arrival,
            priority=rng.choice((0, 0, 1, 5)),
            adapter=None if arrival.session else rng.choice((None, "a")),
        )
        for arrival in turns(seed, 24, spacing=rng.choice((1, 4)))
    ]
    with scope(level="full") as sanitizer:
        engine = Engine(config)
        answers = drive(engine, arrivals, flush_at=rng.randint(0, 60))
        check_turns(arrivals, answers, oracle)
        for name in SESSIONS:
            engine.close_session(name)
    check_nothing_lost(engine)
    assert sanitizer.findings == []
    assert sanitizer.report().failures == ()
