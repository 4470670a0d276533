"""A real SGLang server whose drafts come from a model, as trees, in the overlapped loop: clean under load at level
`full`, then what can go wrong with slots that are taken ahead. How many drafts are accepted in each step is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import load
from . import model as models
from .living import WHEN, Case, Living, comes_from, few, living, names, one
from .server import write_own_plugin

EAGLE3 = (
    "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3", "--speculative-eagle-topk", "2",
    "--speculative-num-draft-tokens", "6", "--max-total-tokens", "2048",
)  # fmt: skip


@pytest.fixture(scope="module", params=WHEN)
def server(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    variables = WHEN[request.param]
    folder = tmp_path_factory.mktemp("server")
    write_own_plugin(folder, "cpu_speculation")
    drafts = models.write(folder / "drafts", models.EAGLE3)
    arguments = (*EAGLE3, "--speculative-draft-model-path", str(drafts))
    with living(model, folder, *arguments, options=("--level", "full"), **variables) as it:
        yield it


def test_clean(server: Living) -> None:
    assert load.run(server.port, 16) == (16, [])
    server.rest()
    assert load.run(server.port, 6) == (6, [])
    server.nothing_is_wrong()


def three(port: int) -> None:
    """Three requests at once, none of which computes what another does: of SGLang's own fault there is nothing."""
    load.warm_up(port)
    few(port)


CASES = [
    Case("tail_leak", "leak", "process_batch_result", traffic=three),
    Case("tail_twice", "double_free", "_release_overallocated_kv_indices", traffic=three),
    Case("tail_too_long", "double_free", "_release_overallocated_kv_indices", traffic=three),
    Case("ahead_alias", "alias", "alloc_for_spec_decode", traffic=three),
    Case("ahead_lost:inside", "stale_row", "run_batch", steps=4, traffic=one),
    Case("ahead_freed", "use_after_free", "run_batch", steps=8, traffic=one),
    Case("early_free", "stale_capture", "pop_and_process", traffic=one),
    Case("row_leak", "leak", "process_batch_result", traffic=three),
    Case("record_contract", "record_contract", "process_batch_result", traffic=three),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault(case: Case, server: Living) -> None:
    struck = server.strike(case.fault, case.traffic)
    first = names(struck, case)
    assert first.owner or first.holder
    if case.kind != "record_contract":
        assert comes_from(first) & {"alloc_token_slots", "alloc_req_slots"}, first
    server.serves_cleanly(three)


def test_the_report(server: Living) -> None:
    server.reports_what_was_told()
