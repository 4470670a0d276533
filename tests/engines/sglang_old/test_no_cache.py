"""One server without a prefix cache and without overlap: clean under load, then faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..sglang.living import WHEN, Case, Living, few, one
from .living import is_clean, living, needs_rows_of_requests, reports, strikes

pytestmark = needs_rows_of_requests

ARGUMENTS = ("--max-total-tokens", "1024", "--disable-radix-cache", "--disable-overlap-schedule")


@pytest.fixture(scope="module", params=WHEN)
def server(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    variables = WHEN[request.param]
    with living(model, tmp_path_factory.mktemp("server"), *ARGUMENTS, **variables) as it:
        yield it


def test_clean(server: Living) -> None:
    is_clean(server)
    assert server.findings() == []  # without overlap there is no fault of SGLang's own


CASES = [
    Case("row_leak", "leak", "event_loop_normal", steps=2, traffic=few),
    Case("row_double_free", "double_free", "release_kv_cache"),
    Case("row_freed_early", "stale_row", "run_batch"),
    Case("chunk_row_freed", "stale_row", "alloc_for_extend", traffic=one),
    Case("use_after_free", "use_after_free", "run_batch", traffic=few),
    Case("orphan", "orphan", "alloc_for_extend"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault(case: Case, server: Living) -> None:
    strikes(case, server)


def test_the_report(server: Living) -> None:
    reports(server)
