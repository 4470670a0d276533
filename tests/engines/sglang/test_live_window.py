"""A real SGLang server with a sliding window, whose attention in plain torch is put right (see `test_wrong_ids.py`)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from . import load
from .living import WHEN, frames, living, many, others
from .server import BARRIER, serving, write_own_plugin

FULL = ("--level", "full")


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize(
    ("name", "arguments", "variables"),
    [
        ("page 16 and sessions", ("--max-total-tokens", "1024", "--page-size", "16", "--enable-streaming-session"), {}),
        ("page 1, no overlap", ("--max-total-tokens", "700", "--disable-overlap-schedule"), {}),
        (
            "page 16, the core in Python, and retraction",
            ("--max-total-tokens", "1024", "--page-size", "16"),
            {"SGLANG_TEST_RETRACT": "1", "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"},
        ),
        (
            "no cache, and retraction",
            ("--max-total-tokens", "2048", "--disable-radix-cache"),
            {"SGLANG_TEST_RETRACT": "1"},
        ),
    ],
)
def test_translated_reads(
    name: str,
    arguments: tuple[str, ...],
    variables: dict[str, str],
    windowed_model: Path,
    when: str,
    tmp_path: Path,
) -> None:
    """Tombstones, their recovery, evictions."""
    write_own_plugin(tmp_path, "cpu_window")
    with serving(windowed_model, tmp_path, *arguments, options=FULL, **BARRIER, **variables, **WHEN[when]) as served:
        assert load.run(served.port, 40) == (40, [])
        if "--enable-streaming-session" in arguments:
            assert load.sessions(served.port, 3) == 9
        time.sleep(1)
        assert "flushed" in str(load.post(served.port, "/flush_cache", {}))
        assert load.run(served.port, 12) == (12, [])
    assert others(served) == []
    assert served.report["failures"] == []
    totals = {pool["pool"]: pool for pool in served.report["totals"]}
    assert set(totals) == {"rows", "kv", "swa"}
    assert totals["swa"]["events"] > 1000
    assert any("came from the device" in note for note in served.report["notes"]) is (when == "late")


@pytest.mark.parametrize("page", ["1", "16"])
def test_keys_that_were_not_written(page: str, windowed_model: Path, tmp_path: Path) -> None:
    """A decode step's attention reads a slot of the window that this tenancy has not written."""
    write_own_plugin(tmp_path, "cpu_window")
    arguments = ("--max-total-tokens", "1024", "--page-size", page)
    with living(windowed_model, tmp_path, *arguments, options=FULL) as server:
        server.serves_cleanly()
        struck = server.strike("lost_write", many)
        first = struck.found[0]
        assert (first.kind, first.pool) == ("uninit_read", "swa")
        assert set(first.slots) <= set(struck.facts["slots"])
        assert first.present.step <= struck.step
        assert first.owner
        assert "forward_decode" in frames(first.present)
        assert {each.kind for each in struck.found} == {"uninit_read"}
        server.serves_cleanly()
        server.reports_what_was_told()
