"""Faults in a living server of each release whose requests hold their rows themselves: clean under load first, then one
fault after the other. Pages of sixteen slots run on a CPU in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..sglang import load
from ..sglang.faults import VARIABLE
from ..sglang.living import NOT_FATAL, Case, Living, comes_from, few, names, one
from .bugs import HAS_ROW_RACE
from .server import serving

pytestmark = pytest.mark.skipif(HAS_ROW_RACE, reason="the faults are written for rows that requests hold themselves")

ARGUMENTS = (
    "--max-running-requests", "8", "--chunked-prefill-size", "64", "--enable-mixed-chunk", "--max-total-tokens",
)  # fmt: skip
PAGES = {1: ("1024",), 16: ("1600", "--page-size", "16")}


@pytest.fixture(scope="module", params=PAGES)
def page(request: pytest.FixtureRequest) -> int:
    """How many slots a page has."""
    return int(request.param)


@pytest.fixture(scope="module")
def server(page: int, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    folder = tmp_path_factory.mktemp("server")
    control = folder / "fault"
    control.write_text("")
    variables = {VARIABLE: str(control), **NOT_FATAL, **({"TRITON_INTERPRET": "1"} if page > 1 else {})}
    with serving(model, folder, *ARGUMENTS, *PAGES[page], **variables) as served:
        yield Living(served, control)


def test_clean(server: Living) -> None:
    assert load.run(server.port, 40) == (40, [])
    server.rest()
    assert load.run(server.port, 12) == (12, [])
    server.rest()
    server.nothing_is_wrong()


LOOP = "event_loop_overlap"
CASES = [
    Case("leak", "leak", LOOP, steps=2),
    Case("double_free", "double_free", "release_kv_cache"),
    Case("foreign_free", "free_not_owner", "release_kv_cache"),
    Case("stale_prefix", "stale_row", "run_batch"),
    Case("stale_prefix:inside", "stale_row", "run_batch"),
    Case("row_leak", "leak", LOOP, steps=2),
    Case("row_double_free", "double_free", "release_kv_cache"),
    Case("row_freed_early", "stale_row", "run_batch"),
    Case("chunk_row_freed", "stale_row", "alloc_for_extend", traffic=one),
    Case("lock_leak", "lock_leak", LOOP, steps=1000),
    Case("lock_underflow", "lock_underflow", "cache_unfinished_req", traffic=one),
]
ONLY_PAGES_OF_ONE = [
    Case("double_alloc", "double_alloc", "alloc_token_slots", steps=1000),
    Case("reserved_slot:inside", "reserved_slot", "alloc_token_slots"),
    Case("use_after_free", "use_after_free", "run_batch", traffic=few),
    Case("alias", "alias", "alloc_for_decode"),
    Case("orphan", "orphan", "alloc_for_extend"),
]
ONLY_LARGER_PAGES = [Case("double_alloc_page", "double_alloc", "alloc_paged_token_slots_extend", steps=1000)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault(case: Case, server: Living, page: int) -> None:
    strikes(case, server, page)


@pytest.mark.parametrize("case", ONLY_PAGES_OF_ONE, ids=str)
@pytest.mark.parametrize("page", [1], indirect=True)
def test_fault_of_slots(case: Case, server: Living, page: int) -> None:
    strikes(case, server, page)


@pytest.mark.parametrize("case", ONLY_LARGER_PAGES, ids=str)
@pytest.mark.parametrize("page", [16], indirect=True)
def test_fault_of_pages(case: Case, server: Living, page: int) -> None:
    strikes(case, server, page)


def strikes(case: Case, server: Living, page: int) -> None:
    """The fault is named as it should be, and afterwards the server is as sound as before."""
    first = names(server.strike(case.fault, case.traffic), case, page)
    assert first.owner or first.holder or case.kind == "reserved_slot"
    if case.kind == "lock_leak":
        assert first.earlier is not None
        assert first.earlier.what == "lock"
    elif first.pool is not None and first.slots:
        assert any(function.startswith("alloc_") for function in comes_from(first)), first
    server.serves_cleanly()


def test_the_report(server: Living) -> None:
    told = {(finding.kind, finding.token) for finding in server.findings()}
    server.served.stop()
    assert {(finding["kind"], finding["token"]) for finding in server.served.report["findings"]} == told
    assert server.served.report["failures"] == []
