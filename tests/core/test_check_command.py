"""`kvsan check`: exit status, report, filters, files that cannot be used, several files and ranks of one engine."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvsan.cli import main
from kvsan.traces import BinaryWriter

from .feeding import KV, ROW, Dict, indexed

CLEAN: list[Dict] = [
    KV,
    {"op": "alloc", "pool": "kv", "slots": [1, 2], "owner": "A"},
    {"op": "free", "pool": "kv", "slots": [1, 2], "owner": "A"},
    {"op": "req_end", "owner": "A"},
]
TWO: list[Dict] = [
    *CLEAN,
    {"op": "free", "pool": "kv", "slots": [1], "owner": "A"},
    {"op": "alloc", "pool": "kv", "slots": [3, 4], "owner": "B"},
    {"op": "req_abort", "owner": "B"},
    {"op": "req_end", "owner": "B"},
]


def write(path: Path, events: list[Dict], binary: bool = False, **header: Any) -> str:
    if binary:
        stream = io.BytesIO()
        writer = BinaryWriter(stream, **header)
        for event in indexed(events):
            writer.write_dict(event)
        writer.end()
        path.write_bytes(stream.getvalue())
    else:
        lines = [{"kvsan_trace": 1, **header}, *indexed(events)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["check", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Dict]:
    status, out, _ = check(capsys, *arguments, "--format", "json")
    return status, json.loads(out)


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_a_clean_trace(binary: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "t", CLEAN, binary)
    status, _, err = check(capsys, file)
    assert (status, err) == (0, "")
    status, document = as_json(capsys, file)
    assert (status, document["exit"], document["findings"], document["events"]) == (0, 0, [], 4)
    assert document["totals"] == [
        {"pool": "kv", "kind": "kv", "size": 16, "page": 1, "reserved": 1, "free": 15, "pending": 0, "owned": 0,
         "cached": 0, "locked": 0, "leaked": 0, "events": 2, "findings": {}}
    ]  # fmt: skip


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_what_is_found(binary: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "t", TWO, binary)
    status, out, err = check(capsys, file)
    assert (status, err) == (88, "")
    assert "DOUBLE FREE" in out.upper() and "kv:1" in out and "LEAK" in out.upper()
    status, document = as_json(capsys, file)
    assert (status, document["kvsan_report"], document["exit"], document["processes"]) == (88, 1, 88, 1)
    assert [(f["kind"], f["at"], f["object"], f["owner"], f["slots"], f["file"]) for f in document["findings"]] == [
        ("double_free", 4, "kv:1", "A", [1], file),
        ("leak", 7, "kv:3", "B", [3, 4], file),
    ]
    first = document["findings"][0]
    assert (first["present"]["what"], first["present"]["at"]) == ("freed", 4)
    assert (first["earlier"]["what"], first["earlier"]["at"], first["earlier"]["owner"]) == ("freed", 2, "A")
    assert [(each["what"], each["at"]) for each in first["provenance"]] == [("allocated", 1), ("freed", 2)]
    assert document["totals"][0]["findings"] == {"double_free": 1, "leak": 1}
    assert (document["failures"], document["notes"], document["suppressed"]) == ([], [], 0)


def test_only_what_was_found_at_one_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "t", TWO)
    for at, kinds in ((4, ["double_free"]), (7, ["leak"]), (5, [])):
        status, document = as_json(capsys, file, "--at", str(at))
        assert [finding["kind"] for finding in document["findings"]] == kinds
        assert status == (88 if kinds else 0)


@pytest.mark.parametrize(("level", "kinds"), [("rows", []), ("slots", ["alias"]), ("full", ["alias", "race"])])
def test_levels(level: str, kinds: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        ROW, KV,
        {"op": "alloc", "pool": "row", "slots": [1], "owner": "A"},
        {"op": "alloc", "pool": "row", "slots": [2], "owner": "B"},
        {"op": "alloc", "pool": "kv", "slots": [1, 2], "owner": "A"},
        {"op": "row_write", "pool": "row", "row": 1, "pos": 0, "into": "kv", "slots": [1], "owner": "A"},
        {"op": "row_write", "pool": "row", "row": 2, "pos": 0, "into": "kv", "slots": [1], "owner": "B"},
        {"op": "write", "agent": "fwd", "pool": "kv", "slots": [2], "owner": "A"},
        {"op": "read", "agent": "copy", "pool": "kv", "slots": [2], "owner": "A"},
    ]  # fmt: skip
    status, document = as_json(capsys, write(tmp_path / "t", events), "--level", level)
    assert [finding["kind"] for finding in document["findings"]] == kinds
    assert status == (88 if kinds else 0)


def test_findings_with_one_token_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = {"op": "free", "pool": "kv", "slots": [1], "owner": "A", "site": "pool.py:7"}
    take = {"op": "alloc", "pool": "kv", "slots": [1], "owner": "A"}
    _, document = as_json(capsys, write(tmp_path / "t", [KV, take, again, again, take, again, again]))
    assert [(f["kind"], f["at"], f["count"]) for f in document["findings"]] == [("double_free", 3, 2)]
    assert document["totals"][0]["findings"] == {"double_free": 2}


def test_several_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, three = (
        write(tmp_path / "one", CLEAN), write(tmp_path / "two", TWO), write(tmp_path / "three", TWO, binary=True)
    )  # fmt: skip
    status, document = as_json(capsys, one, two, three)
    assert (status, document["processes"], document["events"]) == (88, 3, 20)
    assert [(f["kind"], f["file"]) for f in document["findings"]] == [
        ("double_free", two), ("leak", two), ("double_free", three), ("leak", three),
    ]  # fmt: skip
    assert [pool["pool"] for pool in document["totals"]] == [f"kv ({file})" for file in (one, two, three)]


def test_a_trace_is_judged_at_the_level_that_it_was_recorded_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody told of all that orders reads and writes, so that what looks like a race says nothing."""
    accesses = [{"op": op, "pool": "kv", "slots": [1], "agent": f"does the {op}"} for op in ("write", "read")]
    events = [*CLEAN[:2], *accesses, *CLEAN[2:]]
    slots, whole = write(tmp_path / "slots", events, level="slots"), write(tmp_path / "whole", events)
    assert [as_json(capsys, file)[0] for file in (slots, whole)] == [0, 88]
    status, document = as_json(capsys, "--level", "full", slots)
    assert (status, [finding["kind"] for finding in document["findings"]]) == (88, ["race"])
    assert document["notes"] == [f"{slots}: recorded at level slots; what is judged beyond it was not told whole"]
    assert as_json(capsys, "--level", "rows", slots)[1]["notes"] == []
    status, _, err = check(capsys, write(tmp_path / "wrong", events, level="all"))
    assert (status, "level must be one of rows, slots, full, not 'all'" in err) == (2, True)


def test_ranks_of_one_group_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = [dict(event) for event in CLEAN]
    other[2] = {**other[2], "slots": [2, 1]}
    files = [
        write(tmp_path / f"rank{rank}", events, group="g", rank=rank)
        for rank, events in ((1, other), (0, CLEAN), (2, CLEAN))
    ]
    status, document = as_json(capsys, *files)
    assert [(f["kind"], f["at"], f["object"], f["rank"], f["file"]) for f in document["findings"]] == [
        ("rank_divergence", 2, "kv:2", 1, files[0])
    ]
    assert status == 88
    assert document["notes"] == ["ranks 0, 1, 2 of g were compared in the 2 ownership events that all have"]
    status, document = as_json(capsys, files[1], files[2])
    assert status == 0
    assert document["notes"] == ["ranks 0, 2 of g were compared in the 2 ownership events that all have"]


def test_ranks_of_two_runs_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = [dict(event) for event in CLEAN]
    other[2] = {**other[2], "slots": [2, 1]}
    files = [
        write(tmp_path / f"trace-{number}", events, group="g", rank=rank)
        for number, (rank, events) in enumerate(((0, CLEAN), (1, CLEAN), (0, other), (1, other)))
    ]
    status, document = as_json(capsys, *files)
    assert (status, document["findings"]) == (0, [])
    assert document["notes"] == [
        "the ranks of g were not compared, since rank 0 is there more than once: give the traces of one run "
        f"({files[0]}, {files[2]})"
    ]


def test_that_no_ranks_were_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = [write(tmp_path / f"group {group}", CLEAN, group=group, rank=0) for group in "gh"]
    plain = [write(tmp_path / f"plain {number}", CLEAN) for number in range(2)]
    lonely = "rank 0 of {} was compared with none: the other ranks' traces are not here"
    for files, notes in (
        (alone, [lonely.format("g"), lonely.format("h")]),
        ([alone[0], plain[0]], [lonely.format("g")]),
        (plain, ["each trace was judged by itself: none says that it is one rank of several"]),
        (plain[:1], []),
    ):
        status, document = as_json(capsys, *files)
        assert (status, document["notes"]) == (0, notes)


def test_a_rank_whose_trace_ends_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write(tmp_path / f"rank{rank}", CLEAN[:length], group="g", rank=rank) for rank, length in ((0, 4), (1, 2))]
    status, document = as_json(capsys, *files)
    assert (status, document["notes"]) == (0, ["ranks 0, 1 of g were compared in the 1 ownership events that all have"])


def test_expectations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = [
        write(tmp_path / "clean", CLEAN, expect={"verdict": "clean"}),
        write(tmp_path / "bug", TWO, expect={"verdict": "bug", "kind": "double_free", "at": 4}),
    ]
    status, out, err = check(capsys, "--expect", *good)
    assert (status, err) == (0, "")
    assert out.splitlines() == [f"ok    {good[0]}: clean", f"ok    {good[1]}: double_free@4", "2 of 2 as expected"]
    wrong = [
        write(tmp_path / "a", TWO, expect={"verdict": "clean"}),
        write(tmp_path / "b", CLEAN, expect={"verdict": "bug", "kind": "leak", "at": 3}),
        write(tmp_path / "c", TWO, expect={"verdict": "bug", "kind": "double_free", "at": 5}),
        write(tmp_path / "d", TWO, expect={"verdict": "bug", "kind": "race", "at": 4}),
    ]
    status, out, err = check(capsys, "--expect", *good, *wrong)
    assert status == 88
    assert out.splitlines()[2:] == [
        f"WRONG {wrong[0]}: want clean, got double_free@4",
        f"WRONG {wrong[1]}: want leak@3, got clean",
        f"WRONG {wrong[2]}: want double_free@5, got double_free@4",
        f"WRONG {wrong[3]}: want race@4, got double_free@4",
        "2 of 6 as expected",
    ]


def test_expecting_without_an_expectation_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "t", CLEAN)
    status, _, err = check(capsys, "--expect", file)
    assert (status, err) == (2, f"kvsan: error: {file}: the header has no 'expect' to compare with\n")


def test_files_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing, folder, empty, noise = (str(tmp_path / name) for name in ("missing", ".", "empty", "noise"))
    Path(empty).write_bytes(b"")
    Path(noise).write_bytes(bytes(range(128, 256)) * 8)
    for file, reason in (
        (missing, "No such file or directory"), (folder, "Is a directory"), (empty, "the file is empty"),
        (noise, "not UTF-8"),
    ):  # fmt: skip
        status, out, err = check(capsys, file)
        assert (status, out) == (2, "")
        assert err.startswith(f"kvsan: error: {file}") and reason in err and err.count("\n") == 1
        status, document = as_json(capsys, file)
        assert (status, document["exit"], document["findings"], document["events"]) == (2, 2, [], 0)


def test_a_broken_file_still_reports_what_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "t", TWO[:5])
    with open(file, "a") as stream:
        stream.write('{"op": "alloc", "pool": "kv", "slo')
    status, document = as_json(capsys, file)
    assert (status, document["exit"], document["events"]) == (2, 2, 5)
    assert [(f["kind"], f["at"]) for f in document["findings"]] == [("double_free", 4)]
    status, out, err = check(capsys, file)
    assert status == 2 and "kv:1" in out
    assert err.startswith(f"kvsan: error: {file}:7: the line is cut off")
    assert err.endswith("; 5 events up to 4 were read\n")


@pytest.mark.parametrize("format", ["sarif", "junit", "html", "json"])
def test_other_formats_are_utf_8_wherever_they_go(format: str, tmp_path: Path) -> None:
    got = subprocess.run(
        [sys.executable, "-m", "kvsan", "check", "--format", format, write(tmp_path / "t", TWO)],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, timeout=60,
    )  # fmt: skip
    assert (got.returncode, got.stderr) == (88, b"")
    assert "double_free" in got.stdout.decode("utf-8")


def test_a_trace_that_is_unusable_is_a_failure_in_other_formats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broken"
    file.write_text("no trace\n")
    status, document = as_json(capsys, str(file))
    assert (status, document["exit"], document["complete"]) == (2, 2, False)
    (failure,) = document["failures"]
    assert failure["where"] == str(file)
    _, out, _ = check(capsys, str(file), "--format", "sarif")
    assert not json.loads(out)["runs"][0]["invocations"][0]["executionSuccessful"]


def test_a_level_above_the_recorded_one_is_not_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "t", CLEAN, level="rows")
    assert as_json(capsys, file)[1]["complete"]
    assert not as_json(capsys, file, "--level", "full")[1]["complete"]


def test_a_binary_trace_that_was_cut_off_is_judged_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(write(tmp_path / "t", TWO, binary=True))
    whole = path.read_bytes()
    status, document = as_json(capsys, str(path))
    assert (status, document["complete"], document["notes"]) == (88, True, [])
    last = whole.rindex(b'{"kvsan_trace"') - 16  # the record that ends it, with its head and size
    path.write_bytes(whole[: last - 9])
    status, document = as_json(capsys, str(path))
    assert (status, document["events"], document["complete"]) == (88, 7, False)
    assert document["notes"][0].startswith(f"{path}: the trace has no end: its process was killed, or part of the file")
    assert [(f["kind"], f["at"]) for f in document["findings"]] == [("double_free", 4)]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (
            {"op": "alloc", "pool": "gpu", "slots": [1]},
            "event 1 (alloc): pool 'gpu' was never declared by a 'pool' event (declared: kv)",
        ),
        (
            {"op": "row_write", "pool": "kv", "row": 1, "pos": 0, "into": "kv", "slots": [1]},
            "event 1 (row_write): pool 'kv' is of kind 'kv', not a row pool",
        ),
        (
            {"op": "capture", "batch": "b", "pool": "kv", "row": 1, "upto": 1},
            "event 1 (capture): pool 'kv' is of kind 'kv', not a row pool",
        ),
        (KV, "event 1 (pool): pool 'kv' is declared twice; use 'reset' to empty it"),
    ],
)
def test_events_that_no_tracker_can_take(
    event: Dict, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "t", [KV, event, *TWO[1:]])
    status, _, err = check(capsys, file)
    assert (status, err) == (2, f"kvsan: error: {file}: {reason}; 1 events up to 1 were read\n")


def test_one_unusable_file_among_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = as_json(capsys, write(tmp_path / "two", TWO), str(tmp_path / "missing"))
    assert status == 2
    assert [f["kind"] for f in document["findings"]] == ["double_free", "leak"]


@pytest.mark.parametrize(
    "arguments",
    [["check"], ["check", "--level", "all", "x"], ["check", "--at", "soon", "x"], ["check", "--format", "yaml", "x"]],
)
def test_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("kvsan: error: ")


def test_names_of_clients_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "r\x1b]0;owned\x07\u202e\ud800\n\x7f"
    events = [KV, {"op": "alloc", "pool": "kv", "slots": [1], "owner": evil}, {"op": "req_end", "owner": evil}]
    status, out, _ = check(capsys, write(tmp_path / "t", events))
    assert status == 88
    assert not set(out) & set("\x1b\x07\u202e\x7f\ud800")
    status, document = as_json(capsys, str(tmp_path / "t"))
    assert document["findings"][0]["owner"] == evil


def run(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvsan", "check", *arguments], capture_output=True, text=True, timeout=60, **settings
    )


def test_in_a_process_of_its_own_with_standard_input_closed(tmp_path: Path) -> None:
    file = write(tmp_path / "t", TWO)
    done = run(file, preexec_fn=lambda: os.close(0), env={**os.environ, "COLUMNS": "100"})
    assert (done.returncode, done.stderr) == (88, "")
    assert "kv:1" in done.stdout
    for line in done.stdout.splitlines():
        assert len(line) <= 100 or " " not in line.strip() or line.startswith("REPLAY: ")


def test_into_a_pipe_that_is_closed(tmp_path: Path) -> None:
    file = write(tmp_path / "t", TWO)
    done = subprocess.run(
        ["bash", "-c", '"$0" -m kvsan check "$1" | true; echo "${PIPESTATUS[0]}"', sys.executable, file],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout in ("88\n", "141\n")


def test_without_torch_triton_or_pytest(tmp_path: Path) -> None:
    """A trace can be judged on a laptop: what an engine needs is not even tried."""
    file = write(tmp_path / "t", TWO)
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'triton', 'pytest'], None));"
        "from kvsan.cli import main; sys.exit(main(['check', sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", program, file], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (88, "")
