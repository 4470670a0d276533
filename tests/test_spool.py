"""What processes leave in the spool folder comes back whole, whatever happened to them."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvsan.findings import Access, Failure, Finding, Frame, Held, Joined, PoolTotals, Report, SlotMap
from kvsan.serialize import SerializeError, finding_from_dict, report_from_dict, to_dict
from kvsan.spool import QUEUE_LIMIT, SpoolWriter, make_spool, read_processes, read_spool

ACCESS = Access(
    "write", 7, "fwd", "b7", "kv", (1, 2), (0, 8), "12", stack=(Frame("/a/b.py", 3, "f"),), note="x\n\ud800"
)
FINDING = Finding(
    "race", 7, "kv:1", "kv", (1, 2), "b7", "a3", present=ACCESS, earlier=ACCESS, provenance=(ACCESS, ACCESS),
    generation=3, slot_map=SlotMap("kv", 0, "..!"),
    held=(Held("kv", (1,), 1, 64, ACCESS), Held("kv", (1,), 1, 64, None)),
    why="w", token="race:a:b", joined=(Joined("orphan", 9, None, ()),), extra={"k": "v"},
)  # fmt: skip
TOTALS = PoolTotals("kv", "kv", 64, 16, 1, 60, 0, 3, 0, 0, 0, 12, {"race": 1})


@pytest.fixture
def spool(tmp_path: Path) -> str:
    return make_spool(str(tmp_path))


def python(code: str, *argv: str, **rest: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *argv], text=True, stdout=subprocess.PIPE, **rest
    )


def test_a_report_survives_json() -> None:
    report = Report((FINDING,), (TOTALS,), (Failure("hook", "KeyError: 1", "no races"),), ("note",), 2, 3, 4)
    for defaults in (True, False):
        assert report_from_dict(json.loads(json.dumps(to_dict(report, defaults=defaults)))) == report
    assert "severity" not in to_dict(FINDING, defaults=False)


def test_numpy_integers_become_int() -> None:
    numpy = pytest.importorskip("numpy")
    finding = Finding("leak", numpy.int64(3), "kv:1", slots=tuple(numpy.arange(2)))
    data = to_dict(finding)
    assert type(data["at"]) is int
    assert finding_from_dict(json.loads(json.dumps(data))).slots == (0, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "Finding: an object belongs here"),
        ({"kind": "race", "at": 1}, "Finding: without object"),
        ({"kind": "race", "at": "1", "object": "kv"}, "Finding.at: an integer belongs here, not '1'"),
        ({"kind": "race", "at": 1, "object": "kv", "slots": [1, None]}, r"Finding.slots\[1\]: an integer"),
        ({"kind": "race", "at": 1, "object": "kv", "present": {"what": "w", "at": 1, "cells": [1]}}, "a list of 2"),
    ],
)
def test_what_is_no_finding_is_told_with_its_place(data: Any, message: str) -> None:
    with pytest.raises(SerializeError, match=message):
        finding_from_dict(data)


def test_everything_told_comes_back(spool: str) -> None:
    writer = SpoolWriter(spool)
    writer.active("scheduler")
    writer.finding(FINDING)
    writer.joined("race:a:b", Joined("orphan", 11, "kv", (1,)))
    writer.duplicate("race:a:b")
    writer.duplicate("race:a:b")
    writer.suppressed("s.txt:1 (race:*:*)")
    writer.failure(Failure("hook", "KeyError", "no leaks"))
    writer.totals([TOTALS], 5)
    writer.totals([TOTALS], 9)
    writer.note("a note")
    assert writer.close()
    report = read_spool(spool)
    (finding,) = report.findings
    assert (finding.count, finding.pid, finding.process) == (3, os.getpid(), "scheduler")
    assert [joined.at for joined in finding.joined] == [9, 11]
    assert (finding.present, finding.held, finding.slot_map) == (FINDING.present, FINDING.held, FINDING.slot_map)
    assert (report.totals, report.events, report.suppressed, report.processes) == ((TOTALS,), 9, 1, 1)
    assert report.failures == (Failure("hook", "KeyError", "no leaks", os.getpid()),)
    assert report.notes == ("a note", "Suppressed 1 time by s.txt:1 (race:*:*).")
    assert not report.complete


def test_a_report_is_complete_if_nothing_lacks_in_any_process(spool: str) -> None:
    writer = SpoolWriter(spool)
    writer.note("a note")
    assert writer.close()
    assert read_spool(spool).complete
    code = "import sys; from kvsan.spool import SpoolWriter; w = SpoolWriter(sys.argv[1]); w.lacks('half'); w.close()"
    assert python(code, spool).wait(30) == 0
    report = read_spool(spool)
    assert (report.complete, report.notes) == (False, ("a note", "half"))


def test_what_follows_from_one_cause_in_several_processes_is_kept(spool: str) -> None:
    for pid in (1, 2):
        with open(os.path.join(spool, f"{pid}-7.jsonl"), "w", encoding="utf-8") as file:
            for record in (
                {"type": "finding", "t": pid, "finding": to_dict(replace(FINDING, joined=()))},
                {"type": "joined", "token": FINDING.token, "joined": to_dict(Joined("orphan", 10 + pid, "kv", (1,)))},
            ):
                file.write(json.dumps(record) + "\n")
    (finding,) = read_spool(spool).findings
    assert finding.extra["also_in"] == "pid 2"
    assert [joined.at for joined in finding.joined] == [11, 12]


def test_folder_and_files_are_private(spool: str) -> None:
    SpoolWriter(spool).close()
    assert stat.S_IMODE(os.stat(spool).st_mode) == 0o700
    (name,) = os.listdir(spool)
    assert name.startswith(f"{os.getpid()}-")
    assert stat.S_IMODE(os.stat(os.path.join(spool, name)).st_mode) == 0o600


def test_a_folder_open_to_others_is_refused(spool: str) -> None:
    os.chmod(spool, 0o755)
    with pytest.raises(PermissionError, match="open to others"):
        SpoolWriter(spool)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to give a folder away")
def test_a_folder_of_somebody_else_is_refused(spool: str) -> None:
    os.chown(spool, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        SpoolWriter(spool)


def test_a_finding_survives_kill_9_and_the_report_says_so(spool: str) -> None:
    child = python(
        """
        import sys, time
        from kvsan.findings import Finding
        from kvsan.spool import SpoolWriter
        writer = SpoolWriter(sys.argv[1])
        writer.finding(Finding("race", 1, "kv:1", token="t"))
        time.sleep(60)
        """,
        spool,
    )
    deadline = time.monotonic() + 20
    while not read_spool(spool).findings and time.monotonic() < deadline:
        time.sleep(0.02)
    child.kill()
    child.wait()
    report = read_spool(spool)
    assert [finding.token for finding in report.findings] == ["t"]
    assert any(f"pid {child.pid}" in note and "ended without last words" in note for note in report.notes)
    assert not read_spool(spool, running={child.pid}).notes


def test_torn_and_broken_lines(spool: str) -> None:
    writer = SpoolWriter(spool)
    writer.finding(FINDING)
    writer.close()
    (name,) = os.listdir(spool)
    file = os.path.join(spool, name)
    with open(file, "a") as stream:
        stream.write('{"type": "totals"}\nnot json\n[]\n{"type": "from the future"}\n{"type": "findi')
    report = read_spool(spool)
    assert len(report.findings) == 1
    notes = "\n".join(report.notes)
    assert notes.count("could not be read") == 3
    assert f"{file}:5:" in notes
    assert "was killed while it wrote" in notes


def test_forked_children_write_their_own_file_and_no_thread_lives_through_the_fork(spool: str) -> None:
    child = python(
        """
        import os, sys, warnings
        warnings.simplefilter("error")
        from kvsan.findings import Finding
        from kvsan.spool import SpoolWriter
        writer = SpoolWriter(sys.argv[1])
        writer.finding(Finding("race", 1, "kv:1", token="parent"))
        pid = os.fork()
        if not pid:
            writer.finding(Finding("race", 2, "kv:1", token="child"))
            writer.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        writer.finding(Finding("race", 3, "kv:1", token="parent again"))
        assert writer.close()
        print(pid)
        """,
        spool,
    )
    (output, _) = child.communicate(timeout=30)
    assert child.returncode == 0
    by_pid = {log.pid: [f.token for f in log.collector.report().findings] for log in read_processes(spool)}
    assert by_pid == {child.pid: ["parent", "parent again"], int(output): ["child"]}


def test_a_full_queue_drops_and_counts_and_never_blocks(spool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SpoolWriter(spool)
    monkeypatch.setattr(writer, "_start", lambda: None)  # the disk hangs
    before = time.monotonic()
    for _ in range(QUEUE_LIMIT + 500):
        writer.duplicate("t")
    writer.finding(FINDING)
    assert time.monotonic() - before < 5
    monkeypatch.undo()
    assert writer.close(10)
    report = read_spool(spool)
    assert len(report.findings) == 1
    assert any("500 records" in note for note in report.notes)


def test_a_folder_that_vanished_is_said_once_and_harms_nobody(spool: str, capfd: pytest.CaptureFixture[str]) -> None:
    writer = SpoolWriter(spool)
    for name in os.listdir(spool):
        os.unlink(os.path.join(spool, name))
    os.rmdir(spool)
    writer.finding(FINDING)
    writer.flush()
    writer.finding(FINDING)
    assert writer.flush()
    assert capfd.readouterr().err.count("cannot be written") == 1


def test_findings_of_one_cause_in_several_processes_are_one(spool: str) -> None:
    code = """
    import sys
    from kvsan.findings import Finding, PoolTotals
    from kvsan.spool import SpoolWriter
    writer = SpoolWriter(sys.argv[1])
    writer.finding(Finding("race", 1, "kv:1", token="t"))
    writer.totals([PoolTotals("kv", "kv", 64, 16, 1, 60, 0, 3, 0, 0, 0, 12)], 4)
    writer.close()
    """
    children = [python(code, spool) for _ in range(2)]
    for child in children:
        assert child.wait(30) == 0
        child.communicate()
    report = read_spool(spool)
    (finding,) = report.findings
    assert finding.count == 2
    assert finding.extra["also_in"].startswith("pid ")
    assert {pool.pool for pool in report.totals} == {f"kv (pid {child.pid})" for child in children}
    assert (report.processes, report.events) == (2, 8)


def test_items_told_in_a_signal_handler_arrive(spool: str) -> None:
    child = python(
        """
        import os, signal, sys
        from kvsan.findings import Finding
        from kvsan.spool import SpoolWriter
        writer = SpoolWriter(sys.argv[1])
        signal.signal(signal.SIGALRM, lambda *_: writer.note("rang"))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for n in range(2000):
            writer.finding(Finding("race", n, "kv:1", token=str(n)))
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert writer.close(10)
        """,
        spool,
    )
    assert child.wait(60) == 0
    child.communicate()
    report = read_spool(spool)
    assert len(report.findings) == 2000
    assert report.notes == ("rang",)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
