"""The judge gives every twin the verdict that its header expects, and finds nothing in traces that are right."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from .generate import mutate, random_soup, random_trace
from .judge import APPLY, KINDS, Verdict, judge, judge_group

TESTS = Path(__file__).resolve().parent.parent
TWINS = [*sorted((TESTS / "scenarios").glob("*.jsonl")), *sorted((TESTS / "twins").glob("*.jsonl"))]
GROUP_FILES = sorted((TESTS / "twins" / "groups").glob("*.jsonl"))


def load(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    header, *events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [e["i"] for e in events] == list(range(len(events))), path
    return header, events


def object_of(verdict: Verdict, events: list[dict[str, Any]]) -> str:
    """The finding's object as headers write it."""
    if verdict.kind in ("lock_leak", "lock_underflow", "namespace_mixup", "evict_locked"):
        return f"node:{verdict.node}"
    if verdict.kind == "record_contract":
        return f"owner:{verdict.owner}"
    if verdict.kind == "count_mismatch":
        return str(verdict.pool)
    if verdict.kind == "page_double_free":
        page = next(e["page"] for e in events if e["op"] == "pool" and e["pool"] == verdict.pool)
        return f"{verdict.pool}:page{verdict.slots[0] // page}"
    return f"{verdict.pool}:{verdict.slots[0]}"


def check(header: dict[str, Any], events: list[dict[str, Any]], verdicts: list[Verdict]) -> None:
    expect = header["expect"]
    if expect["verdict"] == "clean":
        assert verdicts == []
        return
    assert verdicts, "nothing was found"
    assert (verdicts[0].kind, verdicts[0].at) == (expect["kind"], expect["at"]), verdicts
    if "object" in expect:
        assert object_of(verdicts[0], events) == expect["object"]


@pytest.mark.parametrize("path", TWINS, ids=lambda p: p.name.removesuffix(".jsonl"))
def test_twin(path: Path) -> None:
    header, events = load(path)
    check(header, events, judge(events))


def groups() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = defaultdict(list)
    for path in GROUP_FILES:
        name, _, which, _ = path.name.split(".")
        found[f"{name}.{which}"].append(path)
    return found


@pytest.mark.parametrize("name", sorted(groups()))
def test_group(name: str) -> None:
    loaded = sorted((load(path) for path in groups()[name]), key=lambda trace: trace[0]["rank"])
    results = judge_group([events for _, events in loaded])
    for (header, events), verdicts in zip(loaded, results, strict=True):
        check(header, events, verdicts)
        assert judge(events) == [], "ranks part only when they are compared"


def test_every_kind_has_two_families_of_twins() -> None:
    families: dict[str, set[str]] = defaultdict(set)
    for path in [*TWINS, *GROUP_FILES]:
        if path.parent.name == "scenarios":
            continue
        expect = load(path)[0]["expect"]
        if expect["verdict"] == "bug":
            families[expect["kind"]].add(path.name.split(".")[0])
    assert {kind: len(families[kind]) for kind in KINDS if len(families[kind]) < 2} == {}


def test_every_twin_is_a_pair() -> None:
    names = {path.name for path in TWINS}
    for name in names:
        if ".buggy." in name:
            assert name.replace(".buggy.", ".fixed.") in names


@pytest.mark.parametrize("seed", range(20))
def test_an_engine_without_mistakes_is_clean(seed: int) -> None:
    assert judge(random_trace(seed, 200)) == []


def test_generated_traces_use_every_operation() -> None:
    assert {event["op"] for seed in range(40) for event in random_trace(seed, 200)} == set(APPLY)


def test_mutations_and_noise_break_every_rule_of_one_process() -> None:
    found: set[str] = set()
    for seed in range(60):
        found |= {v.kind for v in judge(mutate(random_trace(seed, 120), seed))}
    for seed in range(250):
        found |= {v.kind for v in judge(random_soup(seed, 60))}
    assert found == set(KINDS) - {"rank_divergence"}


def test_a_seed_means_one_trace() -> None:
    assert random_trace(7, 100) == random_trace(7, 100)
    assert mutate(random_trace(7, 100), 3) == mutate(random_trace(7, 100), 3)
    assert random_soup(7, 50) == random_soup(7, 50)


@pytest.mark.parametrize("seed", range(20))
def test_one_event_gives_one_finding_for_each_owner_and_node(seed: int) -> None:
    events = random_soup(seed, 60)
    at: dict[int, list[Verdict]] = defaultdict(list)
    for verdict in judge(events):
        at[verdict.at].append(verdict)
    for index, verdicts in at.items():
        assert len(verdicts) == 1 or events[index]["op"] in ("idle", "req_end")


def test_three_ranks_part_where_one_frees_less() -> None:
    trace = random_trace(3, 120)
    free = next(e for e in trace if e["op"] == "free" and e["pool"] == "kv" and len(e["slots"]) > 1)
    other = [e if e is not free else {**e, "slots": e["slots"][:-1]} for e in trace]
    results = judge_group([trace, trace, other])
    assert results[0] == results[1] == []
    assert (results[2][0].kind, results[2][0].at, results[2][0].pool) == ("rank_divergence", free["i"], "kv")
