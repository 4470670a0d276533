"""Requests with different adapters share a server and no cached prefix, and get their own tokens."""

from __future__ import annotations

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.request import SamplingParams
from kvsan.reference_engine.workload import drive, random_workload

from .test_oracle_equality import check, check_nothing_lost, tight


def test_an_adapter_changes_the_tokens(oracle: Oracle) -> None:
    answers = {
        tuple(oracle.generate(list(range(20)), SamplingParams(8, ignore_eos=True), adapter))
        for adapter in (None, "a", "b")
    }
    assert len(answers) == 3


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(("loop", "policy"), [("normal", "late"), ("overlap", "random"), ("overlap", "starve:fwd")])
def test_tokens_are_right_with_adapters(page_size: int, loop: str, policy: str, oracle: Oracle) -> None:
    with scope(level="full") as sanitizer:
        engine = Engine(tight(page_size, loop, policy, 2))
        arrivals = random_workload(2, 30, context_len=160, adapters=(None, "a", "b"))
        check(arrivals, drive(engine, arrivals), oracle)
    check_nothing_lost(engine)
    assert sanitizer.findings == []
