"""Servers whose prefix cache has its core in Python, with requests that are retracted again and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import load
from .living import HARMLESS, Case, Living, apart, comes_from, frames, living, many, names, too_many
from .release import EVICTS, GIVES_BACK, LOCKS

VARIABLES = {"SGLANG_TEST_RETRACT": "1", "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    with living(model, tmp_path_factory.mktemp("server"), "--max-total-tokens", "1024", **VARIABLES) as it:
        yield it


def test_clean(server: Living) -> None:
    assert load.run(server.port, 40) == (40, [])
    server.rest()
    assert load.run(server.port, 12) == (12, [])
    server.nothing_is_wrong()
    assert "Testing retraction" in server.served.log


CASES = [
    Case("foreign_free", "free_not_owner", GIVES_BACK),
    Case("stale_prefix", "stale_row", "run_batch"),
    Case("lock_leak", "lock_leak", "process_batch_result", steps=1000),
    Case("evict_leak:inside", "leak", EVICTS, traffic=too_many),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault(case: Case, server: Living) -> None:
    first = names(server.strike(case.fault, case.traffic), case)
    if case.kind == "lock_leak":
        assert LOCKS & {*frames(first.earlier)}
        assert first.owner
    else:
        assert any(function.startswith("alloc_") for function in comes_from(first)), first
    server.serves_cleanly()


@pytest.mark.parametrize("what", HARMLESS)
def test_no_fault(what: str, server: Living) -> None:
    assert server.strike(what, apart).found == ()


def test_the_report(server: Living) -> None:
    server.reports_what_was_told()


def test_pages_of_sixteen_slots(model: Path, tmp_path: Path) -> None:
    arguments = ("--max-total-tokens", "1024", "--page-size", "16")
    with living(model, tmp_path, *arguments, **VARIABLES) as server:
        assert load.run(server.port, 40) == (40, [])
        server.rest()
        server.nothing_is_wrong()
        for what in HARMLESS:
            assert server.strike(what, apart).found == ()
        case = Case("leak_page", "leak", "process_batch_result")
        names(server.strike(case.fault, many), case, page=16)
        server.serves_cleanly()
        server.reports_what_was_told()
