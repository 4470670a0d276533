from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from kvsan.findings import KINDS, Access, Finding, Frame, Joined, Report
from kvsan.reporters import terminal

from . import samples
from .conftest import flat, render

Snapshot = Callable[[str, str], None]

REPORTS = {
    "report": samples.REPORT,
    "troubled": samples.TROUBLED,
    "clean": samples.CLEAN,
    "every": Report(findings=tuple(samples.EVERY.values()), totals=samples.TOTALS),
}
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("where", [80, 120, "pipe"])
def test_looks_as_agreed(name: str, where: int | str, snapshot: Snapshot) -> None:
    width, tty = (int(where), True) if where != "pipe" else (terminal.PIPE_WIDTH, False)
    snapshot(f"{name}-{where}", render(REPORTS[name], width, tty=tty))


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_fits_the_terminal(name: str, width: int) -> None:
    for line in render(REPORTS[name], width, tty=True).splitlines():
        assert cell_len(line) <= width or line.startswith(("DEDUP:", "REPLAY:")), line
        assert line == line.rstrip()


@pytest.mark.parametrize("name", REPORTS)
def test_a_pipe_gets_the_same_words_without_colour(name: str) -> None:
    piped, shown = render(REPORTS[name], 80), render(REPORTS[name], 80, tty=True, colour=True)
    assert "\x1b" not in piped
    assert "\x1b" in shown
    assert flat(ANSI.sub("", shown)) == flat(piped)
    assert all(line.isprintable() for line in piped.splitlines())


def test_the_order_is_fixed() -> None:
    text = render(samples.REPORT)
    marks = [
        "━━━ kvsan: RACE on req_to_token row 1", "allocation.write_cache_indices  ✕  forward.capture_rows",
        'WRITE  cells [0, 128) by request "b7"', "reference_engine/allocation.py:88", "is not ordered after",
        'READ   cells [0, 256) by request "a3"', "reference_engine/forward.py:52", "ROW 1  generation 7 → 8",
        'event 3 398  freed by "a3", not finished', "! this row", "WHY ", "Nothing makes schedule wait", "ADD ",
        "See: kvsan explain race", "follows from this: stale_capture at event 3 420 on kv slots 5-7",
        "SUMMARY: kvsan: race on req_to_token row 1", "DEDUP: race:allocation", "seen 3 times",
        "REPLAY: kvsan check spool/4711.kvt --at 3412", "━━━ kvsan: LEAK of 1 row and 5 token slots",
        'request "c9" ended by abort at step 22 (event 3 500) and still holds', "held  of pool  allocated at",
        "held through row 3", "SUMMARY: kvsan: leak", "size   free  owned",
        "kvsan: 2 findings (1 race, 1 leak), 0 suppressed, in 1 of 3 processes.",
    ]  # fmt: skip
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [80, 120])
def test_every_kind_says_what_it_must(kind: str, width: int) -> None:
    finding = samples.EVERY[kind]
    text = render(Report(findings=(finding,)), width)
    expect = [f"SUMMARY: kvsan: {kind} ", f"DEDUP: {finding.token}", "REPLAY: kvsan check ", f"kvsan explain {kind}"]
    expect += [f"event {finding.at:,}".replace(",", " "), " WHY ", " ADD ", f"kvsan: 1 finding (1 {kind})"]
    for words in expect:
        assert words in text
    for words in ("None", "Access(", "{", "no trace was kept"):
        assert words not in text


@pytest.mark.parametrize("place", ["kv:5", "kv:page2", "kv", "node:n1", "owner:a", "", "kv:", ":", "kv:page", "a:b:c"])
@pytest.mark.parametrize("kind", [*KINDS, "a_plugins_own"])
def test_a_finding_with_nothing_optional_renders(kind: str, place: str) -> None:
    text = render(Report(findings=(Finding(kind, 7, place),)))
    assert f"SUMMARY: kvsan: {kind} " in text
    assert f"DEDUP: {kind}:{place}" in text
    assert "REPLAY: no trace was kept" in text
    for words in ("None", "pid", "THEN", "generation", "held", " by ", "()"):
        assert words not in text.replace("by one common function", "").split(" WHY ")[0]


def test_an_access_with_nothing_optional_renders() -> None:
    text = render(Report(findings=(Finding("race", -1, "kv:1", present=Access("", -1), earlier=Access("read", 0)),)))
    assert " ACCESS" in text
    assert "event 0" in text
    assert "--at" not in text
    assert "event -1" not in text


def test_long_slot_lists_are_ranges_with_a_count() -> None:
    odd, run = tuple(range(1, 825, 2)), tuple(range(4096))
    present = Access("free", 3, owner="a", pool="kv", slots=odd)
    text = render(Report(findings=(Finding("double_free", 3, "kv:1", "kv", odd, present=present),)), 80)
    assert "kv slots 1, 3, 5 … (412 slots)" in flat(text)
    assert "kv slots 1-3, 9 " in flat(_with_slots((1, 2, 3, 9)))
    assert "kv slots 0-4095 " in flat(_with_slots(run))
    assert "kv slot 4 " in flat(_with_slots((4, 4)))


def _with_slots(slots: tuple[int, ...]) -> str:
    return render(Report(findings=(Finding("double_free", 3, f"kv:{slots[0]}", "kv", slots),)), 80)


def test_paths_are_never_broken() -> None:
    folder = "/home/somebody/with a space/" + "deep/" * 20
    stack = tuple(Frame(f"{folder}module{i}.py", i, "a_function_with_quite_a_long_name" * 2) for i in range(3))
    text = render(Report(findings=(replace(samples.RACE, present=Access("write", 1, stack=stack)),)), 80, tty=True)
    for i in range(3):
        assert any(line.endswith(f"{folder}module{i}.py:{i}") for line in text.splitlines())


def test_paths_start_where_people_look_for_them() -> None:
    files = ("/home/u/proj/eng/a.py", "/x/lib/python3.12/site-packages/sglang/srt/b.py", "/home/u/projector/c.py")
    stack = tuple(Frame(file, 1, "f") for file in files)
    finding = Finding("race", 1, "kv:1", present=Access("write", 1, stack=stack))
    text = render(Report(findings=(finding,)), root="/home/u/proj/")
    for shown in ("        eng/a.py:1 ", "        sglang/srt/b.py:1 ", "        /home/u/projector/c.py:1 "):
        assert shown in text


def test_what_is_left_out_is_counted() -> None:
    steps = tuple(Access("free", i, owner="a") for i in range(40))
    joined = tuple(Joined("race", i, "kv", (i,)) for i in range(30))
    text = flat(render(Report(findings=(replace(samples.RACE, provenance=steps, joined=joined),))))
    assert "… 25 transitions not shown (the JSON report has them)" in text
    assert "… and 22 more (22 race; the JSON report has them)" in text


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (Report(), "kvsan: no findings, 0 suppressed, in 1 process."),
        (Report(complete=False), "kvsan: no findings, 0 suppressed, in 1 process. Not everything was watched."),
        (Report(events=12345, processes=2), "kvsan: no findings, 0 suppressed, in 2 processes (12 345 events)."),
        (Report(findings=(samples.RACE,)), "kvsan: 1 finding (1 race), 0 suppressed, in 1 process."),
        (
            Report(findings=(samples.RACE, replace(samples.LEAK, pid=4712)), processes=2, suppressed=3),
            "kvsan: 2 findings (1 race, 1 leak), 3 suppressed, in 2 of 2 processes.",
        ),
        (
            Report(findings=(replace(samples.RACE, extra={"also_in": "pid 4712, pid 4713"}),), processes=4),
            "kvsan: 1 finding (1 race), 0 suppressed, in 3 of 4 processes.",
        ),
    ],
)
def test_the_closing_line(report: Report, line: str) -> None:
    assert render(report).splitlines()[-1] == line


def test_a_clean_report_is_short() -> None:
    assert len(render(samples.CLEAN).splitlines()) == 5
    assert render(Report()).count("\n") == 1


def test_the_exit_status_is_said_where_there_is_one() -> None:
    stream = io.StringIO()
    terminal.render(samples.REPORT, Console(file=stream, width=100), exit_status=88)
    assert stream.getvalue().endswith("in 1 of 3 processes. Exit status 88.\n")


def test_an_output_without_unicode_gets_every_word() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    hostile = replace(samples.RACE, owner="né", present=Access("write", 1, owner="né"))
    terminal.render(Report(findings=(hostile,), totals=samples.TOTALS), terminal.console_for(stream))
    text = raw.getvalue().decode("ascii")
    assert "=== kvsan: RACE on req_to_token row 1 ===" in text
    assert "generation 7 -> 8" in text
    assert 'request "n\\xe9"' in text


def test_without_totals_a_pool_with_cells_has_rows() -> None:
    text = render(Report(findings=(samples.RACE,)))
    assert "RACE on req_to_token row 1 " in text
    assert " ROW 1  generation" in text


def test_row_cells_of_an_event_about_slots() -> None:
    access = Access("freed", 15, owner="a", pool="kv", slots=(5,), cells=(0, 4))
    finding = Finding("stale_capture", 15, "kv:5", "kv", (5,), present=access)
    text = render(Report(findings=(finding,), totals=samples.TOTALS))
    assert ' FREE   kv slot 5 (row cells [0, 4)) by request "a" ' in text


def test_the_end_of_an_owner_names_the_owner_alone() -> None:
    access = Access("end", 8, owner="a", pool="row", slots=(1,))
    assert ' END    request "a" ' in render(
        Report(findings=(Finding("leak", 8, "row:1", "row", (1,), present=access),))
    )


def test_a_missing_order_is_a_sentence() -> None:
    finding = replace(samples.RACE, missing="nothing makes a wait for b between event 3377 and event 3412")
    text = flat(render(Report(findings=(finding,))))
    assert " Nothing makes a wait for b between event 3 377 and event 3 412. ADD " in text


def test_pools_of_several_processes_keep_their_kind() -> None:
    totals = tuple(replace(samples.TOTALS[0], pool=f"rtt (pid {pid})") for pid in (1, 2))
    finding = Finding("race", 1, "rtt:1", "rtt", (1,))
    text = render(Report(findings=(finding,), totals=totals))
    assert "RACE on rtt row 1 " in text
    assert " rtt (pid 2) " in text
