"""One server with pages of one slot: clean under load, then faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..sglang.living import WHEN, Case, Living, few, one
from . import loads
from .living import CASES, is_clean, living, needs_rows_of_requests, reports, strikes

pytestmark = needs_rows_of_requests


@pytest.fixture(scope="module", params=WHEN)
def server(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    variables = WHEN[request.param]
    with living(model, tmp_path_factory.mktemp("server"), "--max-total-tokens", "1024", **variables) as it:
        yield it


def test_clean(server: Living) -> None:
    is_clean(server)


def test_clean_when_prompts_are_aborted_between_their_chunks(server: Living) -> None:
    generated = loads.aborts_between_chunks(server.port)
    assert min(generated) <= 1, "none was aborted while it was prefilled"
    server.rest()
    server.nothing_is_wrong()


MORE = [
    Case("stale_prefix:inside", "stale_row", "run_batch"),
    Case("row_double_free", "double_free", "release_kv_cache"),
    Case("row_freed_early", "stale_row", "run_batch"),
    Case("chunk_row_freed", "stale_row", "alloc_for_extend", traffic=one),
    Case("lock_underflow", "lock_underflow", "cache_unfinished_req", traffic=one),
    Case("use_after_free", "use_after_free", "run_batch", traffic=few),
    Case("double_alloc", "double_alloc", "alloc_token_slots", steps=1000),
    Case("reserved_slot:inside", "reserved_slot", "alloc_token_slots"),
    Case("alias", "alias", "alloc_for_decode"),
    Case("orphan", "orphan", "alloc_for_extend"),
]


@pytest.mark.parametrize("case", [*CASES, *MORE], ids=str)
def test_fault(case: Case, server: Living) -> None:
    strikes(case, server)


def test_the_report(server: Living) -> None:
    reports(server)
