"""The report as one JSON document; `kvsan check --format json` prints the same."""

from __future__ import annotations

import json
from typing import Any

from kvsan.findings import Report
from kvsan.serialize import to_dict

FORMAT = 1
"""Version of the document. It grows when a field is renamed or dropped, not when one is added."""

FOUND = 88


def render(report: Report, *, root: str = "", exit_status: int | None = None) -> str:
    """The document as ASCII text, every finding and every pool on a line of its own, a newline at the end.

    `exit` is what the command ends with: `exit_status`, by default 88 with findings and 0 without.
    """
    document: dict[str, Any] = {"kvsan_report": FORMAT, "findings": [], "totals": [], "failures": [], "notes": []}
    document.update(to_dict(report))
    document["exit"] = (FOUND if report.findings else 0) if exit_status is None else exit_status
    return "{\n" + ",\n".join(f"{_dump(key)}: {_field(value)}" for key, value in document.items()) + "\n}\n"


def _field(value: Any) -> str:
    if isinstance(value, (list, tuple)) and value:
        return "[\n" + ",\n".join(f"  {_dump(item)}" for item in value) + "\n]"
    return _dump(value)


def _dump(value: Any) -> str:
    # ASCII keeps control and bidirectional characters of names out of a terminal; DEL is the one that it lets through.
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")
