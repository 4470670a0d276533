"""Servers of two schedulers, replicas or ranks of one model: each is watched by itself, findings say whose they are,
and the traces of ranks are compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvsan.commands.check import check_file
from kvsan.ranks import RankHistory, compare, comparison_notes

from . import load
from .living import frames, known, living, many
from .server import Served, write_own_plugin
from .test_live_host import TIER

TWO = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}


@pytest.mark.parametrize(("option", "titles"), [("--dp-size", ("DP0", "DP1")), ("--tp-size", ("TP0", "TP1"))])
def test_two_schedulers(option: str, titles: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    arguments = ("--max-total-tokens", "1024", option, "2")
    with living(model, tmp_path, *arguments, options=recording(tmp_path), **TWO) as server:
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
    ranks = histories(tmp_path, server.served)
    if option == "--dp-size":
        assert ranks == []
    else:
        assert [each.rank for each in ranks] == [0, 1]
        assert compare(ranks) == []
        (note,) = comparison_notes(ranks)
        assert re.match(r"ranks 0, 1 of SGLang [0-9a-f]{8} DP0\.0 were compared in the [0-9,]+ ownership events", note)


def test_ranks_that_part(model: Path, tmp_path: Path) -> None:
    """With a host tier, whose copies come and go while requests are served, ranks agree, until one turns its free list
    around: each by itself does nothing wrong."""
    write_own_plugin(tmp_path, "cpu_host")
    arguments = ("--max-total-tokens", "768", "--tp-size", "2", *TIER)
    with living(model, tmp_path, *arguments, options=recording(tmp_path), **TWO) as server:
        assert load.run(server.port, 30, ends=30) == (30, [])
        assert load.run(server.port, 30, ends=30) == (30, [])
        server.rest()
        ranks = histories(tmp_path)
        assert compare(ranks) == []
        agreed = lowest(ranks)
        assert min(map(len, agreed.pools.values())) > 50
        assert agreed.pools.keys() == {"rows", "kv", "host"}
        struck = server.strike("rank_order", many)
        assert struck.found == ()
        server.served.stop()
    assert server.served.report["failures"] == []
    ranks = histories(tmp_path, server.served)
    (finding,) = compare(ranks)
    assert (finding.kind, finding.pool, finding.rank) == ("rank_divergence", "kv", 1)
    changes = lowest(ranks).pools["kv"]
    at = next(number for number, change in enumerate(changes) if change.at == finding.earlier.at)
    assert at >= len(agreed.pools["kv"])
    assert finding.present.what == finding.earlier.what == "alloc"
    assert finding.present.slots != finding.earlier.slots
    assert f"Event {at} of pool kv is alloc" in finding.why


def recording(folder: Path) -> tuple[str, ...]:
    """Options with which every process leaves a trace in the folder."""
    return ("--record", str(folder / "trace-%p.kvt"))


def histories(folder: Path, stopped: Served | None = None) -> list[RankHistory]:
    """What the folder's two traces say of the ranks whose they are, the lowest first. Replayed, they give what the
    server reports, once it has."""
    checked = [check_file(str(file)) for file in folder.glob("trace-*.kvt")]
    assert [each.error for each in checked] == [None, None]
    if stopped is not None:
        replayed = {finding.kind for each in checked for finding in each.findings}
        assert replayed == {finding.kind for finding in stopped.findings}
    return sorted((each.history for each in checked if each.history is not None), key=lambda each: each.rank)


def lowest(ranks: list[RankHistory]) -> RankHistory:
    """The first of two."""
    assert [each.rank for each in ranks] == [0, 1]
    return ranks[0]
