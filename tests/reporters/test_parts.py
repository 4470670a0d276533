"""The parts of a report: numbers, slot maps, holdings, totals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvsan.findings import Access, Finding, Held, PoolTotals, Report, SlotMap
from kvsan.reporters.phrases import agent_phrase, owner_phrase, past
from kvsan.reporters.slotmap import LETTERS
from kvsan.reporters.text import age, grouped, percent, plural, ranges, wrap

from . import samples
from .conftest import flat, render


def test_numbers() -> None:
    assert grouped(3412).replace("\u00a0", " ") == "3 412"
    assert plural(1, "slot") == "1\u00a0slot"
    assert plural(2, "process", "processes") == "2\u00a0processes"
    assert [percent(1, 8), percent(1, 10**6), percent(0, 8), percent(1, 0)] == [
        "12.5\u00a0%", "<0.1\u00a0%", "0.0\u00a0%", "-",
    ]  # fmt: skip
    spans = [age(n).replace("\u00a0", " ") for n in (10, 350 * 10**6, 41 * 10**8, 3600 * 10**9, 36000 * 10**9)]
    assert spans == ["<1 ms", "350 ms", "4.1 s", "60.0 min", "10.0 h"]


@pytest.mark.parametrize(
    ("slots", "text"),
    [
        ((5,), "5"),
        ((5, 6), "5, 6"),
        ((7, 5, 6, 9), "5-7, 9"),
        ((1, 3, 5, 7), "1, 3, 5, 7"),
        (tuple(range(1, 825, 2)), "1, 3, 5 … (412 slots)"),
        (tuple(range(412)), "0-411"),
        ((), ""),
    ],
)
def test_ranges(slots: tuple[int, ...], text: str) -> None:
    assert ranges(slots).replace("\u00a0", " ") == text


def test_wrapping_breaks_at_spaces_only() -> None:
    assert wrap("aa bb/cc/dd-ee ff", 6) == ["aa", "bb/cc/dd-ee", "ff"]
    assert wrap("event\u00a03\u00a0412 x", 7) == ["event\u00a03\u00a0412", "x"]
    assert wrap("请求 请求", 5) == ["请求", "请求"]


def test_owners_and_agents() -> None:
    assert owner_phrase("b7") == 'request "b7"'
    assert owner_phrase("session:s1") == 'session "s1"'
    assert owner_phrase("tree:n4") == 'node "n4"'
    assert owner_phrase("conv:7:x") == 'owner "conv:7:x"'
    assert [agent_phrase(name) for name in ("host", "host:io-2", "fwd", "nic")] == [
        "host", "host thread io-2", "stream fwd", "nic",
    ]  # fmt: skip
    assert past("free", "a") == 'freed by "a"'
    assert past("free", None) == "freed"
    assert past("abort", "a") == 'aborted, "a"'
    assert past("moved_away", "a") == 'moved away by "a"'


def _map(letters: str, first: int = 0, width: int = 80) -> str:
    return render(Report(findings=(replace(samples.RACE, slot_map=SlotMap("kv", first, letters)),)), width)


def test_a_legend_has_the_letters_that_occur() -> None:
    text = flat(_map("!.o", width=120))
    assert ". free o owned ! this slot" in text
    for word in ("cached", "pending", "reserved", "in transfer", "being read"):
        assert word not in text.split(" WHY ")[0].split("! this")[1]
    assert "? unknown" in flat(_map("!?"))
    assert all(word in flat(_map("".join(LETTERS))) for word in ("cached", "pending", "in transfer"))


def test_a_large_map_is_lines_behind_their_first_slot() -> None:
    text = _map("o" * 40 + "!" + "." * 30, first=4096)
    assert " kv         4 096  oooooooo oooooooo oooooooo oooooooo\n" in text
    assert "        =>  4 128  oooooooo !....... ........ ........\n            4 160  .......\n" in text
    assert "! this slot" in flat(text)


def test_a_huge_map_says_what_it_does_not_show() -> None:
    text = _map("o" * 4000 + "!" + "o" * 95)
    lines = [line for line in text.splitlines() if "oooo" in line]
    assert len(lines) == 3
    assert "… 3 968 slots not shown" in text
    assert "… 32 slots not shown" in text


def _leak(**more: Any) -> Finding:
    return replace(samples.LEAK, **more)


def test_direct_holdings_come_before_indirect_ones() -> None:
    text = render(samples.REPORT, 120)
    assert text.index(" req_to_token     1   12.5 %") < text.index(" kv               5    0.1 %")
    assert "LEAK of 1 row and 5 token slots" in text


def test_several_sites_of_one_pool_have_a_total() -> None:
    one, two = Access("alloc", 1, site="a.py:1"), Access("alloc", 2, site="b.py:2")
    held = (Held("kv", (1, 2), 2, 16, one), Held("kv", (3,), 1, 16, two))
    text = flat(render(Report(findings=(_leak(held=held),), totals=samples.TOTALS)))
    assert "LEAK of 3 token slots" in text
    assert "in all 3 slots of kv, 18.8 % of it" in text


@pytest.mark.parametrize(
    ("present", "owner", "words"),
    [
        (Access("end", 9, owner="a"), "a", 'request "a" ended (event 9) and still holds'),
        (Access("abort", 9, owner="a", step=3), "a", 'request "a" was aborted at step 3 (event 9) and still holds'),
        (Access("idle", 9), "a", 'at idle (event 9), request "a" still holds'),
        (Access("idle", 9), None, "at idle (event 9), slots without an owner are held"),
        (None, "session:s", 'session "s" still holds'),
    ],
)
def test_how_a_leak_came_about(present: Access | None, owner: str | None, words: str) -> None:
    finding = _leak(present=present, owner=owner, holder=None)
    assert words in flat(render(Report(findings=(finding,))))


def test_age_falls_back_to_steps_and_events() -> None:
    held = (
        Held("a", (), 1, 4, Access("alloc", 10, step=2)),
        Held("b", (), 1, 4, Access("alloc", 10)),
        Held("c", (), 1, 4, None),
    )
    text = flat(render(Report(findings=(_leak(present=Access("end", 25, owner="x", step=7), held=held),))))
    assert "a 1 25.0 % event 10 5 steps" in text
    assert "b 1 25.0 % event 10 15 events" in text
    assert "c 1 25.0 % not known -" in text


def test_totals_have_columns_for_what_there_is() -> None:
    plain = render(samples.CLEAN)
    assert "pending" not in plain and "reserved" not in plain
    troubled = render(samples.TROUBLED, 120)
    assert "pending" in troubled and "reserved" in troubled
    wide = PoolTotals(
        "a_pool_with_a_long_name", "kv", 10**9, 1, 1, 10**9, 1, 0, 0, 0, 0, 10**12, {"race": 1, "leak": 2}
    )
    text = render(Report(totals=(wide,)), 80)
    assert "race 1, leak 2" in text
    assert "events 1 000 000 000 000" in text
