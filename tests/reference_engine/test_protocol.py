"""Bodies that clients may send, and what they are told about the others."""

from __future__ import annotations

from typing import Any

import pytest
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.protocol import BadRequest, parse_completion, parse_generate
from kvsan.reference_engine.request import SamplingParams

CONFIG = EngineConfig(context_len=64)


def test_generate_takes_text_or_ids() -> None:
    job = parse_generate({"text": "hé", "rid": "a"}, CONFIG)
    assert (job.request.rid, job.request.prompt, job.stream) == ("a", [104, 195, 169], False)
    params = {"max_new_tokens": 3, "temperature": 1, "seed": 7, "ignore_eos": True}
    job = parse_generate({"input_ids": [1, 256], "sampling_params": params, "stream": True}, CONFIG)
    assert (job.request.prompt, job.stream) == ([1, 256], True)
    assert job.request.sampling == SamplingParams(3, 1.0, 7, True)
    assert job.request.rid


def test_completion_takes_a_prompt() -> None:
    job = parse_completion({"model": "x", "prompt": "ab", "max_tokens": 5, "temperature": 0.5}, CONFIG)
    assert (job.request.prompt, job.request.sampling) == ([97, 98], SamplingParams(5, 0.5))
    assert parse_completion({"prompt": [5]}, CONFIG).request.prompt == [5]


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "either 'text' or 'input_ids'"),
    ({"text": "a", "input_ids": [1]}, "either 'text' or 'input_ids'"),
    ({"text": "a", "adapter": ""}, "'adapter' must be a string of 1 to 64 ASCII characters"),
    ({"text": "a", "session_id": 5}, "'session_id' must be a string of 1 to 64 ASCII characters"),
    ({"text": "a", "priority": 101}, "'priority' must be in -100..100"),
    ({"text": ""}, "'text' is empty"),
    ({"text": 5}, "'text' must be a string, not an integer"),
    ({"text": None}, "'text' must be a string, not null"),
    ({"input_ids": []}, "'input_ids' is empty"),
    ({"input_ids": "ab"}, "'input_ids' must be a list of token ids, not a string"),
    ({"input_ids": [1, 257]}, r"'input_ids\[1\]' must be in 0..256"),
    ({"input_ids": [-1]}, r"'input_ids\[0\]' must be in 0..256"),
    ({"input_ids": [True]}, r"'input_ids\[0\]' must be an integer, not a boolean"),
    ({"input_ids": [1.0]}, r"'input_ids\[0\]' must be an integer, not a number"),
    ({"text": "a" * 64}, "the input has 64 tokens; the context has 64"),
    ({"text": "a" * 60, "sampling_params": {"max_new_tokens": 5}}, "together they exceed the context of 64"),
    ({"text": "a", "sampling_params": []}, "'sampling_params' must be an object, not a list"),
    ({"text": "a", "sampling_params": {"top_k": 1}}, "unknown field 'top_k'"),
    ({"text": "a", "sampling_params": {"max_new_tokens": 0}}, "'max_new_tokens' must be in 1..64"),
    ({"text": "a", "sampling_params": {"max_new_tokens": "5"}}, "must be an integer, not a string"),
    ({"text": "a", "sampling_params": {"temperature": -1}}, "'temperature' must be in 0..100"),
    ({"text": "a", "sampling_params": {"temperature": float("nan")}}, "'temperature' must be in 0..100"),
    ({"text": "a", "sampling_params": {"temperature": "hot"}}, "'temperature' must be a number"),
    ({"text": "a", "sampling_params": {"seed": -1}}, "'seed' must be in"),
    ({"text": "a", "sampling_params": {"seed": 2**63}}, "'seed' must be in"),
    ({"text": "a", "sampling_params": {"ignore_eos": 1}}, "'ignore_eos' must be true or false"),
    ({"text": "a", "stream": "yes"}, "'stream' must be true or false, not a string"),
    ({"text": "a", "rid": ""}, "'rid' must be a string of 1 to 128"),
    ({"text": "a", "rid": "r" * 129}, "'rid' must be a string of 1 to 128"),
    ({"text": "a", "rid": "tree:n1"}, "'rid' must not begin with session:, tree:, prefetch:"),
    ({"text": "a", "rid": "\ud800"}, "'rid' is not valid Unicode"),
    ({"text": "a", "txet": 1}, "unknown field 'txet'"),
]


@pytest.mark.parametrize(("body", "message"), BAD)
def test_bad_generate(body: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        parse_generate(body, CONFIG)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "'prompt' is missing"),
        ({"prompt": {"a": 1}}, "'prompt' must be a string, not an object"),
        ({"prompt": "a", "max_tokens": 65}, "'max_tokens' must be in 1..64"),
        ({"prompt": "a", "n": 2}, "unknown field 'n'"),
    ],
)
def test_bad_completion(body: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        parse_completion(body, CONFIG)
