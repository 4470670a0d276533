"""Two things that an adapter may know about its engine, and that are then no race: reads for results that are thrown
away, and writes of what is there already. Said of one row, they excuse nothing else."""

from __future__ import annotations

import pytest
from kvsan.hooks.sanitizer import Sanitizer

LEVELS = ("rows", "slots", "full")


def two_requests(level: str) -> Sanitizer:
    """A and B have row 1 and 2; a batch in flight on `fwd` reads both."""
    san = Sanitizer(level=level)
    san.pool("rows", kind="row", size=4)
    san.pool("kv", kind="kv", size=32, reserved=[0])
    for owner, row, slots in (("A", 1, [1, 2, 3]), ("B", 2, [4, 5, 6])):
        san.alloc("rows", row, owner=owner)
        san.alloc("kv", slots, owner=owner)
        san.row_write("rows", row=row, pos=0, into="kv", slots=slots, owner=owner, agent="sched")
    san.record(event="ready", agent="sched")
    san.wait(event="ready", agent="fwd")
    for owner, row in (("A", 1), ("B", 2)):
        san.capture("rows", batch="decode 7", row=row, upto=3, owner=owner, agent="fwd")
    san.launch(batch="decode 7", agent="fwd")
    return san


def pass_on(san: Sanitizer, row: int, owner: str, *, spent: bool) -> None:
    """The owner is over, and C gets its row while the batch is in flight."""
    san.req_finish(owner=owner)
    san.free("rows", row, owner=owner, spent=spent)
    san.alloc("rows", row, owner="C")
    san.alloc("kv", [10, 11, 12], owner="C")
    san.row_write("rows", row=row, pos=0, into="kv", slots=[10, 11, 12], owner="C", agent="sched")


def kinds(san: Sanitizer) -> list[str]:
    return [finding.kind for finding in san.findings]


@pytest.mark.parametrize("level", LEVELS)
def test_the_next_write_to_a_row_that_was_read_for_nothing(level: str) -> None:
    san = two_requests(level)
    pass_on(san, 1, "A", spent=True)
    assert kinds(san) == []


@pytest.mark.parametrize("level", LEVELS)
def test_without_that_word_it_is_a_race(level: str) -> None:
    san = two_requests(level)
    pass_on(san, 1, "A", spent=False)
    assert [(each.kind, each.object) for each in san.findings] == [("race", "rows:1")]


def test_a_spent_row_excuses_no_other_row_of_its_batch() -> None:
    san = two_requests("slots")
    san.free("rows", 1, owner="A", spent=True)
    san.free("rows", 2, owner="B")
    san.alloc("rows", 2, owner="C")
    san.row_write("rows", row=2, pos=0, into="kv", slots=[4], owner="C", agent="sched")
    assert "race" in kinds(san)


@pytest.mark.parametrize("level", LEVELS)
def test_a_write_of_what_is_there_already(level: str) -> None:
    san = two_requests(level)
    san.row_write("rows", row=1, pos=0, into="kv", slots=[1, 2, 3], owner="A", agent="sched", same=True)
    assert kinds(san) == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_write_that_nobody_called_the_same(level: str) -> None:
    san = two_requests(level)
    san.row_write("rows", row=1, pos=0, into="kv", slots=[1, 2, 3], owner="A", agent="sched")
    assert kinds(san) == ["race"]


def test_a_write_of_what_is_there_already_maps_its_cells() -> None:
    """The row's new tenancy has these cells, though memory did not change: no `stale_row`."""
    san = two_requests("slots")
    san.done(batch="decode 7")
    san.free("rows", 1, owner="A")
    san.alloc("rows", 1, owner="A")
    san.row_write("rows", row=1, pos=0, into="kv", slots=[1, 2, 3], owner="A", agent="sched", same=True)
    san.capture("rows", batch="extend 8", row=1, upto=3, owner="A", agent="fwd")
    assert kinds(san) == []
