"""The parts of the comparison that need no server: the meter's account, the log's reader, the words of a cell."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from .detection import Seen, Tail, _words
from .meter import Meter
from .servers import CANARY, KVSAN, STRICT


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_the_meter_counts_steps_that_launch_a_batch(tmp_path: Path) -> None:
    meter = Meter(str(tmp_path / "meter"))
    meter.begin(None)
    burn(0.05)  # idle: no step
    meter.begin("batch")
    burn(0.03)
    meter.begin("batch")
    burn(0.03)
    meter.begin(None)
    meter.tell()
    told = json.loads((tmp_path / "meter").read_text())
    assert told["steps"] == 2
    assert 0.06 <= told["step_s"] < 0.1


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\nsec")
    tail = Tail(log)
    time.sleep(0.1)
    middle = time.monotonic()
    with log.open("a") as file:
        file.write("ond\nthird without an end")
    tail.close()
    assert [line.text for line in tail.lines] == ["first", "second"]
    assert tail.lines[0].at < middle <= tail.lines[1].at


@pytest.mark.parametrize(
    ("checker", "line", "words"),
    [
        (STRICT, "AssertionError: Full Pool Mem Leak Detected! total=500", "`Full Pool Mem Leak Detected! total=500`"),
        (STRICT, '    assert not full_leak, f"Full Pool Mem Leak Detected! {msg}"', None),
        (STRICT, "[2026] Decode batch, #running-req: 3", None),
        (CANARY, "kv_canary violation: launch_tag=HEAD slot_idx=3", "`launch_tag=HEAD slot_idx=3`"),
        (CANARY, "[2026] [canary] step=100 sweep_passes=21 violations=0", None),
        (KVSAN, "kvsan: LEAK on kv:3 by r1 at a.py:3 free (report at exit)", "`LEAK on kv:3 by r1 at a.py:3 free`"),
        (KVSAN, "kvsan: STALE CAPTURE on kv:3 at tree.py:3 checkpoint_into_tree (report at exit)", None),
    ],
)
def test_who_says_what(checker: object, line: str, words: str | None) -> None:
    assert (_words(line) if checker.says.search(line) else None) == words  # type: ignore[attr-defined]


def test_a_cell_says_when_and_whether_the_server_lives() -> None:
    assert str(Seen(False)) == "had no chance to strike"
    assert str(Seen(True)) == "**no**"
    assert str(Seen(True, died=True)) == "**no**, the server died"
    assert str(Seen(True, 0.04, "`leak`")) == "after 0.0 s: `leak`"
    assert str(Seen(True, 3.0, "`leak`", at_idle=True, died=True)) == "when idle: `leak`; the scheduler dies"
