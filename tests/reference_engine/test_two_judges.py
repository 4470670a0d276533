"""The slow judge, which shares no code with the tracker, agrees about the engine: silent when correct, and on bugs."""

from __future__ import annotations

import pytest
from kvsan.hooks import scope
from kvsan.reference_engine.bugs import BUGS
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.scenarios import scenario
from kvsan.reference_engine.workload import Arrival, drive, random_workload
from oracle.judge import judge

from .conftest import RecordingProbe
from .test_oracle_equality import tight


def verdicts(
    config: EngineConfig, arrivals: list[Arrival], flush_at: int | None = None
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """What the slow judge and what kvsan find, each as kinds and event indices, in the same run twice."""
    probe = RecordingProbe()
    drive(Engine(config, probe), arrivals, flush_at=flush_at)  # type: ignore[arg-type]
    with scope(level="full") as sanitizer:
        drive(Engine(config), arrivals, flush_at=flush_at)
    assert sanitizer.events == len(probe.events)
    slow = [(verdict.kind, verdict.at) for verdict in judge(probe.events)]
    return slow, [(finding.kind, finding.at) for finding in sanitizer.findings]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("loop", ["normal", "overlap"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_both_are_silent_about_the_correct_engine(page_size: int, loop: str, hybrid: bool) -> None:
    config = tight(page_size, loop, "random", 5, hybrid=hybrid)
    assert verdicts(config, random_workload(5, 12, context_len=160)) == ([], [])


@pytest.mark.parametrize(
    ("name", "page_size"),
    [(bug.name, page) for bug in BUGS.values() for page in bug.page_sizes if bug.finding != "rank_divergence"],
)
def test_both_find_the_same_first(name: str, page_size: int) -> None:
    case = scenario(name, 4, page_size=page_size)
    slow, fast = verdicts(case.config, case.arrivals, case.flush_at)
    assert slow[0] == fast[0]
    assert slow[0][0] == BUGS[name].finding
