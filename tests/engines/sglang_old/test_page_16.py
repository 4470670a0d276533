"""One server with pages of sixteen slots, handed out in Triton's interpreter: clean under load, then faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..sglang.living import WHEN, Case, Living
from .living import CASES, is_clean, living, needs_rows_of_requests, reports, strikes

pytestmark = needs_rows_of_requests

PAGE = 16
ARGUMENTS = ("--max-total-tokens", "1600", "--page-size", str(PAGE))


@pytest.fixture(scope="module", params=WHEN)
def server(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    variables = WHEN[request.param]
    with living(model, tmp_path_factory.mktemp("server"), *ARGUMENTS, TRITON_INTERPRET="1", **variables) as it:
        yield it


def test_clean(server: Living) -> None:
    is_clean(server)


PAGES = [Case("double_alloc_page", "double_alloc", "alloc_paged_token_slots_extend", steps=1000)]


@pytest.mark.parametrize("case", [*CASES, *PAGES], ids=str)
def test_fault(case: Case, server: Living) -> None:
    strikes(case, server, PAGE)


def test_the_report(server: Living) -> None:
    reports(server)
