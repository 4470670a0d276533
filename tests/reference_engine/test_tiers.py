"""The tiers, the decode side and frees in groups: what leaks is named, and what a tier has is found there again."""

from __future__ import annotations

import random

import pytest
from kvsan.reference_engine import bugs
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.request import SamplingParams
from kvsan.reference_engine.scenarios import Scenario, scenario
from kvsan.reference_engine.workload import Arrival, drive, random_text

from .test_bugs import run, wrong


def test_leaked_row_and_slots_are_named() -> None:
    [leak] = run(scenario(bugs.ABORT_LEAKS, 1))[1]
    assert [held.pool for held in leak.held] == ["req_to_token", "kv"]


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
def test_a_prompt_served_again_comes_from_the_tier(features: dict[str, int]) -> None:
    """And the answers stay right."""
    rng = random.Random(3)
    prompts = [random_text(rng, 40) for _ in range(3)]
    arrivals = [
        Arrival(20 * turn + 5 * number, f"r{turn}-{number}", prompt, SamplingParams(4, ignore_eos=True))
        for turn in range(2)
        for number, prompt in enumerate(prompts)
    ]
    case = Scenario(EngineConfig(rows=2, context_len=64, kv_tokens=80, **features), arrivals)  # type: ignore[arg-type]
    answers, findings = run(case)
    assert wrong(case, answers) == set()
    assert findings == []
    assert drive(Engine(case.config), arrivals) == answers
