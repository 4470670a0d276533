"""The judge gives every twin the verdict that its header expects, and generated traces the verdicts that they must have."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.judge import KINDS, Verdict, judge, judge_group

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
