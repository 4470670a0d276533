"""A session's turns get the tokens of the whole text, keep its row and slots between turns, and lose nothing."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.request import Finish, SamplingParams
from kvsan.reference_engine.workload import Answer, Arrival, drive, random_workload

from .conftest import RecordingProbe
from .test_oracle_equality import check_nothing_lost, tight

SESSIONS = ("s0", "s1", "s2")
SCHEDULES = [("normal", "late"), ("overlap", "random"), ("overlap", "starve:fwd"), ("overlap", "starve:sched")]


def turns(seed: int, count: int, spacing: int) -> list[Arrival]:
    """Every second request is a turn of a session."""
    return [
        replace(
            arrival,
            step=arrival.step * spacing,
            abort_at=None if arrival.abort_at is None else arrival.step * spacing + number % 9,
            prompt=arrival.prompt[: 4 + number % 20],
            session=SESSIONS[number % 3] if number % 2 else None,
        )
        for number, arrival in enumerate(random_workload(seed, count, context_len=160, max_new=8))
    ]


def check_turns(arrivals: list[Arrival], answers: dict[str, Answer], oracle: Oracle) -> int:
    """Every answer is right for its session's text so far; how many turns went on from an earlier one."""
    texts: dict[str, list[int]] = defaultdict(list)
    later = 0
    for arrival in arrivals:
        answer = answers[arrival.rid]
        before = texts[arrival.session] if arrival.session is not None else []
        if answer.error is not None:
            assert answer.tokens == []
            continue
        right = oracle.generate([*before, *arrival.prompt], arrival.sampling, arrival.adapter)
        if answer.finish is Finish.ABORT:
            assert answer.tokens == right[: len(answer.tokens)], arrival.rid
            continue
        assert answer.tokens == right, arrival.rid
        if arrival.session is not None:
            later += bool(before)
            texts[arrival.session] = [*before, *arrival.prompt, *right]
    return later


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(("loop", "policy"), SCHEDULES)
@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_turns_are_right(page_size: int, loop: str, policy: str, draft_tokens: int, oracle: Oracle) -> None:
    with scope(level="full") as sanitizer:
        engine = Engine(replace(tight(page_size, loop, policy, 6), draft_tokens=draft_tokens))
        arrivals = turns(6, 30, spacing=5)
        later = check_turns(arrivals, drive(engine, arrivals), oracle)
        for name in SESSIONS:
            engine.close_session(name)
    assert later > 3
    check_nothing_lost(engine)
    assert sanitizer.findings == []
    assert sanitizer.report().failures == ()


def test_a_turn_computes_its_own_tokens_only() -> None:
    sampling = SamplingParams(4, ignore_eos=True)
    arrivals = [
        Arrival(0, "a", tuple(range(20)), sampling, session="s"),
        Arrival(20, "b", tuple(range(6)), sampling, session="s"),
    ]
    probe = RecordingProbe()
    engine = Engine(EngineConfig(rows=2), probe)  # type: ignore[arg-type]
    drive(engine, arrivals)
    again = [event for event in probe.events if event.get("owner") == "b" and event["op"] == "write"]
    assert len(again[0]["slots"]) == 7  # its prompt, and the last token of the turn before
    engine.close_session("s")
    engine.close_session("unknown")
    check_nothing_lost(engine)


@pytest.mark.parametrize("loop", ["normal", "overlap"])
def test_a_second_turn_at_once_is_rejected_and_closing_waits_for_the_turn(loop: str) -> None:
    sampling = SamplingParams(6, ignore_eos=True)
    with scope(level="full") as sanitizer:
        engine = Engine(EngineConfig(rows=2, loop=loop))
        engine.add(Arrival(0, "a", (97, 98, 99), sampling, session="s").request())
        engine.add(Arrival(0, "b", (97, 98), sampling, session="s").request())
        outputs = engine.step()
        engine.close_session("s")
        while engine.busy:
            outputs += engine.step()
    assert {output.rid for output in outputs if output.error is not None} == {"b"}
    assert sum(len(output.tokens) for output in outputs if output.rid == "a") == 6
    check_nothing_lost(engine)
    assert sanitizer.findings == []


def test_idle_sessions_make_room_for_others(oracle: Oracle) -> None:
    """Four sessions would hold all rows and most slots."""
    config = EngineConfig(rows=3, context_len=96, kv_tokens=96)
    sampling = SamplingParams(4, ignore_eos=True)
    arrivals = [
        Arrival(10 * n, f"r{n}", tuple(range(97, 115 + n % 4)), sampling, session=f"s{n % 4}") for n in range(12)
    ]
    with scope(level="full") as sanitizer:
        engine = Engine(config)
        assert check_turns(arrivals, drive(engine, arrivals, max_steps=2000), oracle) >= 4
    assert sanitizer.findings == []
