"""Runs small programs under `kvsan run` and reads what comes back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KVSAN = [sys.executable, "-m", "kvsan"]
SECONDS = 60
FAKE = Path(__file__).with_name("fake.py")


@dataclass
class Outcome:
    """What a wrapped command gave."""

    status: int
    out: str
    err: str
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> set[str]:
        """The tokens of all findings."""
        return {finding["token"] for finding in self.report["findings"]}

    @property
    def notes(self) -> str:
        """All notes, one a line."""
        return "\n".join(self.report["notes"])


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without anything of kvsan."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("KVSAN")}, **extra}


def program(folder: Path, text: str, name: str = "program.py") -> str:
    """A program that finds `fake` beside itself, also with -I."""
    shutil.copy(FAKE, folder / "fake.py")
    file = folder / name
    lines = ["import os, sys", "sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))", textwrap.dedent(text)]
    file.write_text("\n".join(lines))
    return str(file)


def command(folder: Path, argv: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """The command line of the wrapper around argv, with a JSON report in the folder."""
    return [*KVSAN, "run", "--report", str(folder / "report.json"), *options, "--", *argv]


def outcome(folder: Path, done: subprocess.Popen[str], seconds: float = SECONDS) -> Outcome:
    """Waits for the wrapper and reads the report."""
    try:
        out, err = done.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        done.kill()
        try:
            said = "\n".join(done.communicate(timeout=5))
        except subprocess.TimeoutExpired:
            said = "what it ran lives on, and keeps the pipes open"
        raise AssertionError(f"the wrapper did not end:\n{said}") from None
    report = folder / "report.json"
    return Outcome(done.returncode, out, err, json.loads(report.read_text()) if report.exists() else {})


def start(folder: Path, argv: Sequence[str], options: Sequence[str] = (), **rest: Any) -> subprocess.Popen[str]:
    """Starts the wrapper around argv."""
    rest.setdefault("env", clean_environment())
    return subprocess.Popen(
        command(folder, argv, options), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, **rest
    )


def wrapped(folder: Path, argv: Sequence[str], options: Sequence[str] = (), **rest: Any) -> Outcome:
    """Runs argv under the wrapper to its end."""
    return outcome(folder, start(folder, argv, options, **rest))


def wrapped_program(folder: Path, text: str, *, flags: Sequence[str] = (), options: Sequence[str] = ()) -> Outcome:
    """Runs a Python program under the wrapper to its end."""
    return wrapped(folder, [sys.executable, *flags, program(folder, text)], options)
