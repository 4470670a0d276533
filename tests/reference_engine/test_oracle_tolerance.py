"""The oracle takes what is right within a tolerance, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from kvsan.reference_engine.client import Result, judge
from kvsan.reference_engine.compute import TOLERANCE
from kvsan.reference_engine.model import drawing_scores
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.request import SamplingParams
from kvsan.reference_engine.tokenizer import EOS
from kvsan.reference_engine.workload import Arrival

PROMPT = list(b"a prompt")
GREEDY, DRAWN = SamplingParams(6, ignore_eos=True), SamplingParams(6, 0.8, 3, ignore_eos=True)


def ranked(oracle: Oracle, sampling: SamplingParams, known: list[int]) -> tuple[int, float]:
    """The second best token after these, and how far its score is below the best one's."""
    scores = oracle._next(tuple(known), None)
    scores = drawing_scores(scores, sampling.temperature, sampling.seed, len(known))
    best, second = np.argsort(-scores)[:2]
    return int(second), float(scores[best] - scores[second])


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
@pytest.mark.parametrize("at", [0, 3, 5])
def test_the_second_best_token_is_right_within_its_distance_only(
    at: int, sampling: SamplingParams, oracle: Oracle
) -> None:
    right = oracle.generate(PROMPT, sampling)
    assert oracle.accepts(PROMPT, sampling, right)
    second, distance = ranked(oracle, sampling, PROMPT + right[:at])
    assert distance > TOLERANCE
    output = [*right[:at], second]
    rest = SamplingParams(6 - len(output), sampling.temperature, sampling.seed, ignore_eos=True)
    output += oracle.generate(PROMPT + output, rest) if at < 5 else []
    assert oracle.accepts(PROMPT, sampling, output, tolerance=distance * 1.001)
    assert not oracle.accepts(PROMPT, sampling, output, tolerance=distance * 0.999)
    assert not oracle.accepts(PROMPT, sampling, output, tolerance=TOLERANCE)


def test_an_output_ends_where_it_must(oracle: Oracle) -> None:
    right = oracle.generate(PROMPT, GREEDY)
    assert not oracle.accepts(PROMPT, GREEDY, right[:-1])
    assert oracle.accepts(PROMPT, GREEDY, right[:-1], whole=False)
    assert not oracle.accepts(PROMPT, GREEDY, [])
    longer = oracle.generate(PROMPT, SamplingParams(7, ignore_eos=True))
    assert not oracle.accepts(PROMPT, GREEDY, longer)
    assert not oracle.accepts(PROMPT, GREEDY, longer, whole=False)


def test_an_output_ends_with_the_end_token(oracle: Oracle) -> None:
    prompt = next(list(text) for text in (bytes([n, n + 1]) for n in range(250)) if stops(oracle, list(text)))
    right = oracle.generate(prompt, SamplingParams(40))
    on = oracle.generate(prompt, SamplingParams(40, ignore_eos=True))
    assert right[-1] == EOS and on[: len(right)] == right and len(on) == 40
    assert oracle.accepts(prompt, SamplingParams(40), right)
    assert not oracle.accepts(prompt, SamplingParams(40), on)
    assert oracle.accepts(prompt, SamplingParams(40, ignore_eos=True), on)
    assert not oracle.accepts(prompt, SamplingParams(40, ignore_eos=True), right)


def stops(oracle: Oracle, prompt: list[int]) -> bool:
    """Whether the answer ends before 40 tokens."""
    return len(oracle.generate(prompt, SamplingParams(40))) < 40


def test_a_score_that_is_no_number_is_wrong(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    right = oracle.generate(PROMPT, GREEDY)
    monkeypatch.setattr(oracle, "_next", lambda *_: np.full(257, np.nan))
    assert not oracle.accepts(PROMPT, GREEDY, right, tolerance=1.0)


def test_the_client_judges_within_the_tolerance(oracle: Oracle) -> None:
    right = oracle.generate(PROMPT, GREEDY)
    second, distance = ranked(oracle, GREEDY, PROMPT + right[:5])
    arrival = Arrival(0, "r", tuple(PROMPT), GREEDY)
    results = [Result("r", 200, [*right[:5], second], "length"), Result("r", 200, right, "length")]
    assert judge(results, [arrival] * 2, oracle, 100) == {"wrong": 1, "right": 1}
    assert judge(results, [arrival] * 2, oracle, 100, distance * 1.001) == {"right": 2}
    other, _ = ranked(oracle, GREEDY, PROMPT + right[:1])
    cut = [Result("r", 200, right[:2], "abort"), Result("r", 200, [right[0], other], "abort")]
    assert judge(cut, [arrival] * 2, oracle, 100) == {"aborted": 1, "wrong": 1}
