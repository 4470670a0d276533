"""Feeds dictionaries, as generators and text traces have them, to the tracker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from kvsan.findings import Finding
from kvsan.traces import event_from_dict
from kvsan.tracker import Tracker

Dict = dict[str, Any]

MULTIPLIER = int(os.environ.get("KVSAN_SEEDS", "1"))
"""For soak runs: so many times the seeds."""


def seeds(count: int, first: int = 0) -> range:
    """`count` seeds, times the multiplier."""
    return range(first, first + count * MULTIPLIER)


def indexed(events: Iterable[Dict]) -> list[Dict]:
    """The events with their indices."""
    return [{**event, "i": index} for index, event in enumerate(events)]


def feed(events: Iterable[Dict], level: str = "full") -> Tracker:
    """A tracker that took the events."""
    tracker = Tracker(level)
    for index, event in enumerate(events):
        tracker.take(event_from_dict(event, index))
    return tracker


def sites(findings: Iterable[Finding]) -> list[tuple[str, int]]:
    """Kind and event index of each finding."""
    return [(finding.kind, finding.at) for finding in findings]


def facts(findings: Iterable[Finding]) -> list[tuple[str, int, str]]:
    """Kind, event index and object of each finding."""
    return [(finding.kind, finding.at, finding.object) for finding in findings]


def joined_sites(tracker: Tracker) -> set[tuple[str, int]]:
    """Kind and event index of the violations that joined an earlier finding."""
    return {(joined.kind, joined.at) for finding in tracker.findings for joined in finding.joined}


def pool(name: str, kind: str, size: int, page: int = 1, reserved: Iterable[int] = (0,), **more: Any) -> Dict:
    """A pool's declaration."""
    return {"op": "pool", "pool": name, "kind": kind, "size": size, "page": page, "reserved": list(reserved), **more}


ROW = pool("row", "row", 4)
KV = pool("kv", "kv", 16)


def batch_life(name: str, row: int, upto: int, owner: str, agent: str = "fwd") -> Iterator[Dict]:
    """A batch captures a row, is launched, and is seen to finish."""
    yield {"op": "capture", "agent": agent, "batch": name, "pool": "row", "row": row, "upto": upto, "owner": owner}
    yield {"op": "launch", "agent": agent, "batch": name, "owner": owner}
    yield {"op": "done", "batch": name}
