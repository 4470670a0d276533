"""Each switch gives its finding and no other in every seed: kind, pool, owner and site; and its consequence, where a
workload is bad enough."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine import bugs
from kvsan.reference_engine.bugs import BUGS
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.scenarios import Scenario, scenario
from kvsan.reference_engine.workload import Answer

from kvsan.findings import Finding

SEEDS = range(20)
STALLED = 300
"""Steps after which a workload that takes a hundred has stalled."""


@dataclass(frozen=True)
class Expected:
    """Who the finding concerns, in which function it is committed, and with whom it collides."""

    owner: str | None
    site: str
    earlier_owner: str | None = None


EXPECTED = {
    bugs.EVICTS_LOCKED: Expected(None, "RadixCache._remove"),
    bugs.UNLOCKS_TWICE: Expected("gone", "RadixCache.unlock"),
    bugs.KEEPS_LOCK: Expected("gone", "Scheduler._tell_end"),
    bugs.LATE_LOCK: Expected("victim", "RadixCache.attach"),
    bugs.PADDING_STATE: Expected("victim", "StatePool.take"),
    bugs.ROW_TWICE: Expected("d", "RowPool.take"),
    bugs.TWO_FREES: Expected("first", "KvPool.give_back"),
    bugs.WRONG_SLOT: Expected("too-long", "KvPool.give_back"),
    bugs.ADAPTER_NOT_IN_KEY: Expected("victim", "RadixCache.match"),
    bugs.SESSION_TAIL: Expected("second", "RowWriter.write"),
    bugs.TWO_KEYS: Expected("first", "KvPool.tell_insert"),
    bugs.EVICTABLE_DRIFTS: Expected(None, "Scheduler._checkpoint"),
}
CASES = [(name, page) for name in EXPECTED for page in BUGS[name].page_sizes]


def run(case: Scenario, max_steps: int = STALLED) -> tuple[dict[str, Answer], list[Finding]]:
    """The answers of the scenario's engine under kvsan, and what was found."""
    with scope(level="full") as sanitizer:
        answers = case.drive(Engine(case.config), max_steps)
    assert sanitizer.report().failures == ()
    return answers, sanitizer.findings


def wrong(case: Scenario, answers: dict[str, Answer]) -> set[str]:
    """The requests whose tokens are not the right ones; of an aborted one those before its end."""
    oracle = Oracle(hybrid=case.config.hybrid)
    found = set()
    texts: dict[str | None, list[int]] = {}
    for arrival in case.arrivals:
        answer = answers[arrival.rid]
        if case.config.block_size:
            block = case.config.block_size, case.config.refine_steps
            right = oracle.refine(list(arrival.prompt), arrival.sampling, *block)
        else:
            before = texts.get(arrival.session, []) if arrival.session is not None else []
            right = oracle.generate([*before, *arrival.prompt], arrival.sampling, arrival.adapter)
            texts[arrival.session] = [*before, *arrival.prompt, *right]
        if arrival.abort_at is not None:
            right = right[: len(answer.tokens)]
        if answer.error is None and answer.tokens != right:
            found.add(arrival.rid)
    return found


@pytest.mark.parametrize(("name", "page_size"), CASES)
def test_one_finding_in_every_seed(name: str, page_size: int) -> None:
    bug, expected = BUGS[name], EXPECTED[name]
    for seed in SEEDS:
        _, findings = run(scenario(name, seed, page_size=page_size))
        assert [(f.kind, f.pool, f.owner) for f in findings] == [(bug.finding, bug.pool, expected.owner)], seed
        [finding] = findings
        assert finding.present is not None
        assert finding.present.stack[0].function == expected.site, seed
        if expected.earlier_owner is not None:
            assert finding.earlier is not None
            assert finding.earlier.owner == expected.earlier_owner, seed


@pytest.mark.parametrize(("name", "page_size"), CASES)
@pytest.mark.parametrize("biting", [False, True])
def test_silent_and_right_without_the_switch(name: str, page_size: int, biting: bool) -> None:
    for seed in (3, 11):
        case = scenario(name, seed, page_size=page_size, biting=biting).fixed()
        answers, findings = run(case)
        assert findings == [], seed
        assert wrong(case, answers) == set(), seed


@pytest.mark.parametrize(("name", "page_size"), CASES)
def test_consequence(name: str, page_size: int) -> None:
    """What the registry promises happens, in at least one of a few seeds where it depends on the model."""
    consequence = BUGS[name].consequence
    cases = [scenario(name, seed, page_size=page_size, biting=True) for seed in range(6)]
    if consequence.startswith("wrong tokens"):
        assert set.union(*(wrong(case, run(case)[0]) for case in cases)) & set(cases[0].victims)
    elif consequence.startswith("exhaustion"):
        engine = Engine(cases[0].config)
        cases[0].drive(engine, STALLED)
        totals = engine.totals()
        kept = totals["kv_available"] + totals["kv_evictable"] + totals["kv_protected"] + engine.scheduler.sessions.held
        assert kept < totals["kv_tokens"]
    elif consequence.startswith("stall"):
        with pytest.raises(RuntimeError, match="still busy"):
            run(cases[0])
    elif consequence.startswith("crash"):
        with pytest.raises(IndexError):
            run(cases[0])
    else:
        assert consequence.startswith("latent: ")
        assert all(wrong(case, run(case)[0]) == set() for case in cases)
