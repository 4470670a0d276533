"""One server with streaming sessions, pages of sixteen slots, and requests that are retracted again and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import load
from .living import HARMLESS, WHEN, Case, Living, apart, comes_from, living, names

ARGUMENTS = ("--max-total-tokens", "1024", "--page-size", "16", "--enable-streaming-session")


@pytest.fixture(scope="module", params=WHEN)
def server(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    variables = WHEN[request.param]
    with living(model, tmp_path_factory.mktemp("server"), *ARGUMENTS, SGLANG_TEST_RETRACT="1", **variables) as it:
        yield it


def test_clean(server: Living) -> None:
    assert load.run(server.port, 40) == (40, [])
    assert load.sessions(server.port, 3) == 9
    server.rest()
    assert load.run(server.port, 12) == (12, [])
    server.nothing_is_wrong()
    assert "Testing retraction" in server.served.log


CASES = [
    Case("session_row_leak", "leak", "close", traffic=lambda port: load.sessions(port, 1)),
    Case("leak_page", "leak", "process_batch_result"),
    Case("double_free_page", "double_free", "free_kv_row"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault(case: Case, server: Living) -> None:
    first = names(server.strike(case.fault, case.traffic), case, page=16)
    if case.fault == "session_row_leak":
        assert (first.owner or "").startswith("session:")
    assert any(function.startswith("alloc_") for function in comes_from(first)), first
    server.serves_cleanly()


@pytest.mark.parametrize("what", HARMLESS)
def test_no_fault(what: str, server: Living) -> None:
    assert server.strike(what, apart).found == ()


def test_the_report(server: Living) -> None:
    server.reports_what_was_told()
