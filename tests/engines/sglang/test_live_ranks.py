"""Servers of two schedulers, replicas or ranks of one model: each is watched by itself, and findings say whose they
are."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import load
from .living import frames, known, living, many


@pytest.mark.parametrize(("option", "titles"), [("--dp-size", ("DP0", "DP1")), ("--tp-size", ("TP0", "TP1"))])
def test_two_schedulers(option: str, titles: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    arguments = ("--max-total-tokens", "1024", option, "2")
    with living(model, tmp_path, *arguments, SGLANG_CPU_OMP_THREADS_BIND="0|1") as server:
        assert load.run(server.port, 24, ends=24) == (24, [])
        server.rest()
        server.nothing_is_wrong()
        struck = server.strike("row_leak", many)  # in both
        assert [each.kind for each in struck.found] == ["leak", "leak"]
        server.serves_cleanly()
        server.served.stop()
    report = server.served.report
    assert report["failures"] == []
    assert sorted(pool["pool"].partition(" ")[0] for pool in report["totals"]) == ["kv", "kv", "rows", "rows"]
    assert len({pool["pool"] for pool in report["totals"]}) == 4
    leaks = [each for each in server.served.findings if not known(each)]
    assert {(each.kind, each.pool) for each in leaks} == {("leak", "rows")}
    assert sum(each.count for each in leaks) == 2
    assert all("process_batch_result" in frames(each.present) for each in leaks)
    whose = {each.process for each in leaks}
    assert whose <= {f"sglang::scheduler_{title}" for title in titles}
    assert len(whose) == 2 or leaks[0].extra["also_in"].startswith("pid ")  # replicas may commit it at different places
