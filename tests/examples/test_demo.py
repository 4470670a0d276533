"""The demo does what it says: the race is found and named, and the fixed server is clean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_finds_the_race_and_nothing_without_it() -> None:
    pytest.importorskip("uvicorn")
    done = subprocess.run([sys.executable, str(DEMO)], text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    bad, clean = done.stderr.split("Exit status 88.")
    assert "kvsan: RACE on req_to_token row" in bad
    assert "SUMMARY: kvsan: race on req_to_token row" in bad
    assert "no findings" in clean
    assert "exit status 88, expected 88" in done.stdout
    assert "exit status 0, expected 0" in done.stdout
