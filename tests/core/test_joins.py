"""What joins an earlier finding, and what has a cause of its own."""

from __future__ import annotations

from .feeding import KV, facts, feed, joined_sites

GIVEN_BACK_TWICE = [
    KV,
    {"op": "alloc", "pool": "kv", "slots": [5], "owner": "A"},
    {"op": "free", "pool": "kv", "slots": [5], "owner": "A"},
    {"op": "free", "pool": "kv", "slots": [5], "owner": "A"},
]
HANDED_OUT_TWICE = [
    {"op": "alloc", "pool": "kv", "slots": [5], "owner": "B"},
    {"op": "alloc", "pool": "kv", "slots": [5], "owner": "C"},
]


def test_what_was_given_back_twice_is_bound_to_be_handed_out_twice() -> None:
    tracker = feed([*GIVEN_BACK_TWICE, *HANDED_OUT_TWICE])
    assert facts(tracker.findings) == [("double_free", 3, "kv:5")]
    assert joined_sites(tracker) == {("double_alloc", 5)}


def test_a_reset_makes_the_free_list_anew() -> None:
    tracker = feed([*GIVEN_BACK_TWICE, {"op": "reset", "pool": "kv"}, *HANDED_OUT_TWICE])
    assert facts(tracker.findings) == [("double_free", 3, "kv:5"), ("double_alloc", 6, "kv:5")]
    assert joined_sites(tracker) == set()
