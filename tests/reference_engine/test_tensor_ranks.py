"""Two ranks in two processes decide alike; where one does not, `kvsan check` says at which event."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvsan.reference_engine import bugs
from kvsan.reference_engine.bugs import BUGS
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.scenarios import scenario
from kvsan.reference_engine.tensor_ranks import WORLD, run_ranks, trace_path

from kvsan.commands.check import FOUND, check_file
from kvsan.findings import Finding
from kvsan.ranks import compare

pytest.importorskip("torch.distributed")
SEEDS = range(20)


def found(folder: Path, seed: int) -> tuple[list[Finding], list[Finding]]:
    """What each rank's trace says alone, and what their comparison says."""
    checked = [check_file(str(trace_path(folder, seed, rank))) for rank in range(WORLD)]
    assert [each.error for each in checked] == [None] * WORLD
    alone = [finding for each in checked for finding in each.findings]
    return alone, compare([each.history for each in checked if each.history is not None])


@pytest.mark.parametrize("bug", [False, True])
def test_histories_part_at_the_first_eviction_in_every_seed(
    bug: bool, tmp_path: Path, oracle: Oracle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_ranks(tmp_path, SEEDS, bug=bug) == [0] * WORLD
    for seed in SEEDS:
        alone, parted = found(tmp_path, seed)
        assert alone == [], seed
        if not bug:
            assert parted == [], seed
            continue
        [finding] = parted
        assert (finding.kind, finding.pool, finding.rank) == ("rank_divergence", "kv", 1)
        assert finding.present is not None and finding.earlier is not None
        assert finding.present.what == finding.earlier.what == "evict"
        for access, site in (
            (finding.present, BUGS[bugs.RANK_ORDER].site),
            (finding.earlier, BUGS[bugs.RANK_ORDER].earlier),
        ):
            assert site is not None and access.owner == site.owner
            assert site.functions[0] in (access.site or "")
    for rank in range(WORLD):  # each rank is right by itself: nothing but the traces tells
        answers = json.loads((tmp_path / f"answers-rank{rank}.json").read_text())
        for seed, told in zip(SEEDS, answers, strict=True):
            for arrival in scenario(bugs.RANK_ORDER, seed).arrivals:
                assert told[arrival.rid] == oracle.generate(list(arrival.prompt), arrival.sampling), (rank, seed)
    from kvsan.cli import main

    files = [str(trace_path(tmp_path, 0, rank)) for rank in range(WORLD)]
    assert main(["check", *files]) == (FOUND if bug else 0)
    assert ("rank_divergence" in capsys.readouterr().out) == bug


@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_parted_crash_at_the_next_prefix_of_one(seed: int, tmp_path: Path) -> None:
    assert run_ranks(tmp_path, range(seed, seed + 1), bug=True, biting=True) == [1] * WORLD
