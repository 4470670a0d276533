"""Drafts change no token, blocks are what they are without a cache, under every schedule; kvsan is silent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.guesses import accepted, draft, masks
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.request import Finish, SamplingParams
from kvsan.reference_engine.workload import Arrival, drive, random_workload

from .test_oracle_equality import check, check_nothing_lost, tight

SCHEDULES = [("normal", "late"), ("overlap", "random"), ("overlap", "starve:fwd"), ("overlap", "starve:sched")]


def test_a_draft_continues_the_latest_occurrence_of_the_text_s_end() -> None:
    assert draft([1, 2, 3, 1, 2, 4, 5, 1, 2], 3) == [4, 5, 1]
    assert draft([1, 2, 3], 3) == []
    assert draft([7, 7, 7], 4) == [7]


def test_accepted_are_the_tokens_up_to_the_first_wrong_guess() -> None:
    assert accepted([4, 5, 6], [4, 5, 9, 1]) == [4, 5, 9]
    assert accepted([4], [4, 5]) == [4, 5]
    assert accepted([], [3]) == [3]
    assert masks(3) == [0, 0]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(("loop", "policy"), SCHEDULES)
def test_drafts_change_no_token(page_size: int, loop: str, policy: str, oracle: Oracle) -> None:
    with scope(level="full") as sanitizer:
        engine = Engine(replace(tight(page_size, loop, policy, 4), draft_tokens=3))
        arrivals = random_workload(4, 25, context_len=160)
        check(arrivals, drive(engine, arrivals), oracle)
    check_nothing_lost(engine)
    assert sanitizer.findings == []


def test_right_drafts_save_steps(oracle: Oracle) -> None:
    """Greedy answers to a prompt that holds its own answer: the drafts are right as far as it goes."""
    sampling = SamplingParams(24, ignore_eos=True)
    prompt = list(range(97, 117))
    prompt += oracle.generate(prompt, sampling)
    arrivals = [Arrival(0, f"r{n}", tuple(prompt[: 20 + n]), sampling) for n in range(12)]
    steps = []
    for count in (0, 4):
        engine = Engine(EngineConfig(draft_tokens=count, loop="normal"))
        outputs = []
        for arrival in arrivals:
            engine.add(arrival.request())
        while engine.busy:
            outputs += engine.step()
        steps.append(len(outputs))
    assert steps[1] < steps[0]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(("loop", "policy"), SCHEDULES)
def test_blocks_are_right(page_size: int, loop: str, policy: str, oracle: Oracle) -> None:
    with scope(level="full") as sanitizer:
        engine = Engine(replace(tight(page_size, loop, policy, 3), block_size=6))
        arrivals = random_workload(3, 20, context_len=160)
        answers = drive(engine, arrivals)
    for arrival in arrivals:
        right = oracle.refine(list(arrival.prompt), arrival.sampling, 6, engine.config.refine_steps)
        answer = answers[arrival.rid]
        assert answer.tokens == (right[: len(answer.tokens)] if answer.finish is Finish.ABORT else right)
    check_nothing_lost(engine)
    assert sanitizer.findings == []
