"""One server without a prefix cache: clean under load, then every fault of slots and rows that a request holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import load
from .living import WHEN, Case, Living, comes_from, few, living, names
from .release import GIVES_BACK, RECORDS


@pytest.fixture(scope="module", params=WHEN)
def server(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    variables = WHEN[request.param]
    with living(
        model, tmp_path_factory.mktemp("server"), "--max-total-tokens", "2048", "--disable-radix-cache", **variables
    ) as it:
        yield it


def test_clean(server: Living) -> None:
    assert load.run(server.port, 40) == (40, [])
    server.rest()
    assert load.run(server.port, 12) == (12, [])
    server.nothing_is_wrong()
    assert server.findings() == []  # without a cache there is no fault of SGLang's own


CASES = [
    Case("leak", "leak", "process_batch_result"),
    Case("leak:inside", "leak", "process_batch_result"),
    Case("double_free", "double_free", GIVES_BACK),
    Case("double_free:inside", "double_free", "process_batch_result"),
    Case("invalid_free", "invalid_free", GIVES_BACK),
    Case("double_alloc", "double_alloc", "alloc_token_slots", steps=1),
    Case("reserved_slot:inside", "reserved_slot", "alloc_token_slots"),
    Case("early_free", "stale_capture", "pop_and_process"),
    Case("row_leak", "leak", "process_batch_result"),
    Case("row_leak:inside", "leak", "process_batch_result"),
    Case("row_double_free", "double_free", "release_kv_cache"),
    Case("row_double_free:inside", "double_free", "release_kv_cache"),
    Case("row_freed_early", "stale_row", "run_batch", traffic=few),
    Case("use_after_free", "use_after_free", "run_batch", traffic=few),
    Case("alias", "alias", "alloc_for_decode", traffic=few),
    Case("orphan", "orphan", "alloc_for_extend", traffic=few),
    *([Case("record_contract", "record_contract", "process_batch_result")] if RECORDS else []),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault(case: Case, server: Living) -> None:
    struck = server.strike(case.fault, case.traffic)
    first = names(struck, case)
    assert first.owner or first.holder or case.kind == "reserved_slot"
    if case.kind not in ("invalid_free", "reserved_slot", "record_contract"):
        assert comes_from(first) & {"alloc_token_slots", "alloc_req_slots"}, first
    server.serves_cleanly()


def test_the_report(server: Living) -> None:
    server.reports_what_was_told()
