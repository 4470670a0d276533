"""A real SGLang server with a host tier: what is evicted from the device comes back from the host."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from . import load
from .living import WHEN, others
from .server import BARRIER, serving, write_own_plugin

TIER = (
    "--enable-hierarchical-cache", "--hicache-ratio", "3", "--hicache-io-backend", "direct",
    "--hicache-mem-layout", "layer_first",
)  # fmt: skip


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("write through", ("--max-total-tokens", "768")),
        (
            "write back, page 16, no overlap",
            (
                "--max-total-tokens", "768", "--page-size", "16", "--hicache-write-policy", "write_back",
                "--disable-overlap-schedule",
            ),
        ),
    ],
)  # fmt: skip
def test_a_host_tier(name: str, arguments: tuple[str, ...], when: str, model: Path, tmp_path: Path) -> None:
    write_own_plugin(tmp_path, "cpu_host")
    variables = {**BARRIER, **WHEN[when]}
    with serving(model, tmp_path, *TIER, *arguments, "--enable-cache-report", **variables) as served:
        assert load.run(served.port, 30, ends=30) == (30, [])
        assert load.run(served.port, 30, ends=30) == (30, [])
        loaded = sum(from_host(served.port, number) for number in range(12))
        time.sleep(1)
        assert "flushed" in str(load.post(served.port, "/flush_cache", {}))
        assert load.run(served.port, 12) == (12, [])
    assert loaded > 0
    assert others(served) == []
    assert served.report["failures"] == []
    assert any("came from the device" in note for note in served.report["notes"]) is (when == "late")
    totals = {pool["pool"]: pool for pool in served.report["totals"]}
    assert set(totals) == {"rows", "kv", "host"}
    assert totals["host"]["events"] > 50


def from_host(port: int, number: int) -> int:
    """Sends a prompt of its own, floods the device's pool, and sends it again; the tokens that came from the host."""
    body = {"text": f"{number}: " + load.PREFIX[number:200], "sampling_params": {"max_new_tokens": 4}}
    load.post(port, "/generate", body)
    for filler in range(4):
        load.post(
            port, "/generate", {"text": f"{number}/{filler} " + load.PREFIX, "sampling_params": {"max_new_tokens": 8}}
        )
    details = load.post(port, "/generate", body)["meta_info"].get("cached_tokens_details") or {}
    return int(details.get("host", 0))
