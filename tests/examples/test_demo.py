"""The demo does what it says: the founding bugs are found and named, and the fixed server is clean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.parametrize(
    ("bug", "title", "summary"),
    [
        ("row-realloc-between-chunks", "RACE on req_to_token row", "race on req_to_token row"),
        ("mixed-chunk-abort-keeps-row", "LEAK", "leak"),
        ("profiling-frees-by-hand", "RECORD CONTRACT", 'record_contract of request "profile-128"'),
        ("reuse-inferred-from-length", "STALE ROW", "stale_row"),
        ("capture-before-publication", "STALE CAPTURE", "stale_capture"),
    ],
)
def test_the_demo_finds_the_bug_and_nothing_without_it(bug: str, title: str, summary: str) -> None:
    pytest.importorskip("uvicorn")
    done = subprocess.run([sys.executable, str(DEMO), "--bug", bug], text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    bad, clean = done.stderr.split("Exit status 88.")
    assert f"kvsan: {title}" in bad
    assert f"SUMMARY: kvsan: {summary}" in bad
    assert "no findings" in clean
    assert "exit status 88, expected 88" in done.stdout
    assert "exit status 0, expected 0" in done.stdout
