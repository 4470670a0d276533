"""What the reporters' tests share: rendering to text, and snapshots."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from kvsan.findings import Report
from kvsan.reporters import terminal

SNAPSHOTS = Path(__file__).parent / "snapshots"


def render(report: Report, width: int = 100, *, tty: bool = False, colour: bool = False, root: str = "") -> str:
    """The report as a terminal (`tty`) or a pipe gets it."""
    stream = io.StringIO()
    system = "standard" if colour else None
    console = Console(file=stream, width=width, force_terminal=tty, color_system=system)  # type: ignore[arg-type]
    terminal.render(report, console, root=root)
    return stream.getvalue()


def flat(text: str) -> str:
    """The words alone, wherever lines were broken."""
    return " ".join(text.split())


@pytest.fixture
def snapshot() -> Callable[[str, str], None]:
    """Compares a text with the file of that name; KVSAN_UPDATE_SNAPSHOTS=1 writes it instead."""

    def check(name: str, text: str) -> None:
        file = SNAPSHOTS / f"{name}.txt"
        if os.environ.get("KVSAN_UPDATE_SNAPSHOTS") == "1":
            file.write_text(text, encoding="utf-8")
        assert text == file.read_text(encoding="utf-8"), f"{file.name} differs; KVSAN_UPDATE_SNAPSHOTS=1 accepts it"

    return check
