"""A living server of an old release that takes faults one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..sglang import load
from ..sglang.faults import VARIABLE
from ..sglang.living import LATE, LATE_STEPS, Case, Living, comes_from, few, names
from ..sglang.server import NOT_FATAL
from .bugs import HAS_ROW_RACE
from .server import serving

needs_rows_of_requests = pytest.mark.skipif(
    HAS_ROW_RACE, reason="the faults are for rows that requests hold themselves"
)

ARGUMENTS = ("--max-running-requests", "8", "--chunked-prefill-size", "64", "--enable-mixed-chunk")
LOOP = "event_loop_overlap"
CASES = [
    Case("leak", "leak", LOOP, steps=2),
    Case("double_free", "double_free", "release_kv_cache"),
    Case("foreign_free", "free_not_owner", "release_kv_cache"),
    Case("stale_prefix", "stale_row", "run_batch"),
    Case("row_leak", "leak", LOOP, steps=2, traffic=few),
    Case("lock_leak", "lock_leak", LOOP, steps=1000),
]
"""Faults that pages of any size have."""


@contextmanager
def living(model: Path, folder: Path, *arguments: str, **variables: str) -> Iterator[Living]:
    """A server under kvsan whose findings can be read while it lives."""
    control = folder / "fault"
    control.write_text("")
    with serving(model, folder, *ARGUMENTS, *arguments, **{VARIABLE: str(control)}, **NOT_FATAL, **variables) as served:
        yield Living(served, control, LATE_STEPS if variables.keys() >= LATE.keys() else 0)


def is_clean(server: Living) -> None:
    """Asserts that nothing is found under load but SGLang's own fault."""
    assert load.run(server.port, 40) == (40, [])
    server.rest()
    assert load.run(server.port, 12) == (12, [])
    server.rest()
    server.nothing_is_wrong()


def strikes(case: Case, server: Living, page: int = 1) -> None:
    """Asserts that the fault is named as it should be, and that afterwards the server is as sound as before."""
    first = names(server.strike(case.fault, case.traffic), case, page)
    if case.kind != "reserved_slot":  # that nobody has had before
        assert first.owner or first.holder
    if case.kind == "lock_leak":
        assert first.earlier is not None
        assert first.earlier.what == "lock"
    elif first.slots and case.kind != "reserved_slot":
        assert any(function.startswith("alloc_") for function in comes_from(first)), first
    server.serves_cleanly()


def reports(server: Living) -> None:
    """Stops the server; asserts that its report has every kind of finding at every pair of sites, and no failure of
    kvsan itself."""
    told = {(finding.kind, finding.token) for finding in server.findings()}
    server.served.stop()
    assert {(finding["kind"], finding["token"]) for finding in server.served.report["findings"]} == told
    assert server.served.report["failures"] == []
    assert any("read when they have arrived" in note for note in server.served.report["notes"]) is (server.behind > 0)
