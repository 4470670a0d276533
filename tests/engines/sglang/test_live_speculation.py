"""A real SGLang server that decodes with drafts: a random number of them is accepted in each step."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from . import load
from .living import BARRIER, others
from .server import HERE, serving, write_plugin

NGRAM = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4")


@pytest.mark.parametrize(
    ("name", "arguments", "variables"),
    [
        ("overlapped", ("--max-total-tokens", "2048"), {}),
        (
            "page 16, no overlap, and retraction",
            (
                "--max-total-tokens", "1024", "--page-size", "16", "--speculative-ngram-max-bfs-breadth", "1",
                "--disable-overlap-schedule",
            ),
            {"SGLANG_TEST_RETRACT": "1"},
        ),
    ],
)  # fmt: skip
def test_drafts(name: str, arguments: tuple[str, ...], variables: dict[str, str], model: Path, tmp_path: Path) -> None:
    write_plugin(tmp_path, "cpu_speculation", (HERE / "cpu_speculation.py").read_text(encoding="utf-8"))
    level = ("--level", "full")
    with serving(model, tmp_path, *NGRAM, *arguments, options=level, **BARRIER, **variables) as served:
        assert load.run(served.port, 30) == (30, [])
        time.sleep(1)
        assert "flushed" in str(load.post(served.port, "/flush_cache", {}))
        assert load.run(served.port, 12) == (12, [])
    assert others(served) == []
    assert served.report["failures"] == []
    totals = {pool["pool"]: pool for pool in served.report["totals"]}
    assert set(totals) == {"rows", "kv"}
    assert totals["kv"]["events"] > 500
