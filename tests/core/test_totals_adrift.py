"""A page given back while its owner goes on with it: totals that are off later follow from that, and from it alone."""

from __future__ import annotations

from typing import Any

from .feeding import feed, joined_sites, sites


def page_taken_on(*, wrongly_freed: bool, agree_between: bool = False) -> list[dict[str, Any]]:
    """`a` takes page 1 slot by slot; `b` may give it back; then the engine's total differs by a page."""
    events: list[dict[str, Any]] = [
        {"op": "pool", "pool": "kv", "kind": "kv", "size": 16, "page": 4, "reserved": [0, 1, 2, 3]},
        {"op": "alloc", "pool": "kv", "slots": [4, 5], "owner": "a"},
        {"op": "alloc", "pool": "kv", "slots": [8], "owner": "b"},
    ]
    if wrongly_freed:
        events.append({"op": "free", "pool": "kv", "slots": [4], "owner": "b"})
    events.append({"op": "alloc", "pool": "kv", "slots": [6], "owner": "a"})
    if agree_between:
        events.append({"op": "count", "pool": "kv", "available": 4})
    return [*events, {"op": "count", "pool": "kv", "available": 8}]


def test_totals_follow_from_the_page_that_was_given_back() -> None:
    tracker = feed(page_taken_on(wrongly_freed=True))
    assert sites(tracker.findings) == [("free_not_owner", 3)]
    assert ("count_mismatch", 5) in joined_sites(tracker)


def test_totals_that_agreed_meanwhile_have_another_cause() -> None:
    tracker = feed(page_taken_on(wrongly_freed=True, agree_between=True))
    assert sites(tracker.findings) == [("free_not_owner", 3), ("count_mismatch", 6)]


def test_without_it_the_totals_are_a_finding_of_their_own() -> None:
    assert sites(feed(page_taken_on(wrongly_freed=False)).findings) == [("count_mismatch", 4)]
