"""The report as SARIF 2.1.0, which editors and code hosts show beside the code.

Source: docs.oasis-open.org/sarif/sarif/v2.1.0.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from kvsan.explain import hint_text, references, why_text
from kvsan.explanations import EXPLANATIONS
from kvsan.findings import Access, Finding, Frame, Report, frame_of
from kvsan.reporters import finding as layout
from kvsan.reporters.escape import PROSE_LIMIT, visible
from kvsan.reporters.places import Places
from kvsan.reporters.text import GLUE, sentence

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "SRCROOT"
"""What paths below the root are relative to."""

_LEVELS = {"error": "error", "warning": "warning"}


def render(report: Report, *, root: str = "", exit_status: int | None = None) -> str:
    """The document as ASCII text. A finding's place is where its access came from; the earlier access and the events
    of the slot's history are related places, and the stacks of both accesses are there whole."""
    places = Places.of(report, root)
    kinds = list(dict.fromkeys(each.kind for each in report.findings))
    said = [("note", note) for note in report.notes]
    said += [] if report.complete else [("warning", "Not everything was watched.")]
    said += [("error", f"{each.where}: {each.error}; {each.cost}") for each in report.failures]
    invocation: dict[str, Any] = {
        "executionSuccessful": not report.failures,
        "toolExecutionNotifications": [
            {"level": level, "message": {"text": visible(text, PROSE_LIMIT)}} for level, text in said
        ],
    }
    if exit_status is not None:
        invocation["exitCode"] = exit_status
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "kvsan", "version": version("kvsan"), "rules": [_rule(kind) for kind in kinds]}},
        "invocations": [invocation],
        "results": [_result(each, places, kinds.index(each.kind), root) for each in report.findings],
        "columnKind": "unicodeCodePoints",
    }
    if root:
        run["originalUriBaseIds"] = {ROOT: {"uri": f"file://{_quoted(PurePath(root)).rstrip('/')}/"}}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(kind: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"id": kind, "help": {"text": f"{why_text(kind)} Mend it: {hint_text(kind)}"}}
    if kind in EXPLANATIONS:
        rule["shortDescription"] = {"text": EXPLANATIONS[kind].title}
        rule["fullDescription"] = {"text": EXPLANATIONS[kind].rule}
        rule["properties"] = {"references": references(kind)}
    return rule


def _result(each: Finding, places: Places, rule: int, root: str) -> dict[str, Any]:
    reasons = [each.why or why_text(each.kind), each.missing, each.hint or hint_text(each.kind)]
    summary = layout.summary(each, places).replace(GLUE, " ")
    related = []
    for access in filter(None, [each.earlier, *each.provenance, *(held.allocated for held in each.held)]):
        related += [place for place in _places(access, _words(access), root) if place not in related]  # each once
    text = " ".join(sentence(part) for part in [summary, *reasons] if part)
    result: dict[str, Any] = {
        "ruleId": each.kind,
        "ruleIndex": rule,
        "level": _LEVELS.get(each.severity, "note"),
        "message": {"text": visible(text, PROSE_LIMIT)},
        "locations": _places(each.present, "", root),
        "relatedLocations": related,
        "stacks": [
            {
                "message": {"text": _words(access)},
                "frames": [{"location": _place(frame, "", root)} for frame in _frames(access)],
            }
            for access in (each.present, each.earlier)
            if access is not None and _frames(access)
        ],
        "occurrenceCount": each.count,
    }
    if each.token:
        result["partialFingerprints"] = {"kvsanToken/v1": each.token}
    return result


def _words(access: Access) -> str:
    by = f" by {access.owner}" if access.owner is not None else ""
    return visible(f"{access.what}{by}, event {access.at}")


def _places(access: Access | None, said: str, root: str) -> list[dict[str, Any]]:
    """Where the access came from; nothing if that is not known."""
    frames = _frames(access) if access is not None else ()
    return [_place(frames[0], said, root)] if frames else []


def _frames(access: Access) -> tuple[Frame, ...]:
    """The access's stack; of one that was read from a trace the innermost frame, where the trace names it."""
    frame = frame_of(access.site or "") if not access.stack else None
    return access.stack if frame is None else (frame,)


def _place(frame: Frame, said: str, root: str) -> dict[str, Any]:
    place: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": visible(frame.function)}]}
    if not frame.file.startswith("<"):  # the text of a command is no file
        place["physicalLocation"] = {"artifactLocation": _artifact(frame.file, root)}
        if frame.line > 0:
            place["physicalLocation"]["region"] = {"startLine": frame.line}
    if said:
        place["message"] = {"text": said}
    return place


def _artifact(file: str, root: str) -> dict[str, Any]:
    path = PurePath(file)
    if root and path.is_relative_to(root):
        return {"uri": _quoted(path.relative_to(root)), "uriBaseId": ROOT}
    return {"uri": f"file://{_quoted(path)}" if path.is_absolute() else _quoted(path)}


def _quoted(path: PurePath) -> str:
    text = path.as_posix()
    try:
        return quote(os.fsencode(text))  # the bytes that the file system has
    except UnicodeEncodeError:
        return quote(text, errors="backslashreplace")
