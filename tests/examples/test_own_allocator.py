"""The allocator of one's own: each bug gives its finding, and without one there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_allocator.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, check=False)


def test_without_a_bug_it_is_clean() -> None:
    ran = run()
    assert ran.returncode == 0, ran.stderr
    assert "SUMMARY" not in ran.stdout


@pytest.mark.parametrize(("bug", "kind"), [("double-free", "double_free"), ("leak", "leak")])
def test_a_bug_gives_its_finding_and_no_other(bug: str, kind: str) -> None:
    ran = run("--bug", bug)
    assert ran.returncode == 88, ran.stderr
    summaries = [line for line in ran.stdout.splitlines() if line.startswith("SUMMARY:")]
    assert len(summaries) == 1
    assert summaries[0].startswith(f"SUMMARY: kvsan: {kind.replace('_', '-')}") or kind in summaries[0]
    assert "req-2" in ran.stdout and "own_allocator.py" in ran.stdout
