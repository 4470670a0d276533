"""The report's formats that other programs and browsers read: by the ending of a file, or by name."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from kvsan.findings import Report


class Renderer(Protocol):
    """What each format's module has, as `render`."""

    def __call__(self, report: Report, *, root: str = "", exit_status: int | None = None) -> str:
        """The whole document. Files below the folder `root` are written from there; `exit_status` is what the command
        ends with, None where there is none."""


FORMATS = {"json": ".json", "sarif": ".sarif", "junit": ".xml", "html": ".html"}
"""Every format by its name, and the ending of its files."""


def renderer(name: str) -> Renderer:
    """The format of that name."""
    module = import_module(f"kvsan.reporters.{name}_report")
    return cast(Renderer, module.render)


def format_of(file: str) -> str | None:
    """The format that a file's ending asks for; None for plain text."""
    return next((name for name, ending in FORMATS.items() if file.lower().endswith(ending)), None)
