"""One server with pages of sixteen slots, a small pool and no overlap: clean, then faults of pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import load
from .living import HARMLESS, WHEN, Case, Living, apart, comes_from, few, living, names
from .release import GIVES_BACK

PAGE = 16
ARGUMENTS = ("--max-total-tokens", "700", "--page-size", str(PAGE), "--disable-overlap-schedule")


@pytest.fixture(scope="module", params=WHEN)
def server(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    variables = WHEN[request.param]
    with living(model, tmp_path_factory.mktemp("server"), *ARGUMENTS, **variables) as it:
        yield it


def test_clean(server: Living) -> None:
    assert load.run(server.port, 40) == (40, [])
    server.rest()
    assert load.run(server.port, 12) == (12, [])
    server.nothing_is_wrong()
    assert server.findings() == []  # without overlap there is no fault of SGLang's own


CASES = [
    Case("leak_page", "leak", "process_batch_result"),
    Case("leak_page:inside", "leak", "process_batch_result"),
    Case("double_free_page", "double_free", GIVES_BACK),
    Case("page_twice", "page_double_free", GIVES_BACK),
    Case("foreign_free", "free_not_owner", GIVES_BACK),
    Case("double_alloc_page", "double_alloc", "alloc_paged_token_slots_extend", steps=1),
    Case("stale_prefix", "stale_row", "run_batch"),
    Case("use_after_free", "use_after_free", "run_batch", traffic=few),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault(case: Case, server: Living) -> None:
    first = names(server.strike(case.fault, case.traffic), case, PAGE)
    assert first.owner or first.holder
    assert any(function.startswith("alloc_") for function in comes_from(first)), first
    server.serves_cleanly()


@pytest.mark.parametrize("what", HARMLESS)
def test_no_fault(what: str, server: Living) -> None:
    assert server.strike(what, apart).found == ()


def test_the_report(server: Living) -> None:
    server.reports_what_was_told()
