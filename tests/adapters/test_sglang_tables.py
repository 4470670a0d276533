"""Which table of probes goes with which release."""

from __future__ import annotations

import inspect

import pytest
from kvsan.hooks.adapters.sglang.older.watch import OlderWatch
from kvsan.hooks.adapters.sglang.tables import TABLES, table_for
from kvsan.hooks.adapters.sglang.watch import Watch


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("0.5.3", "0.5.4"),
        ("0.5.4", "0.5.4"),
        ("0.5.4.post3", "0.5.4"),
        ("0.5.5.post1", "0.5.4"),
        ("0.5.6", "0.5.6"),
        ("0.5.8.post1", "0.5.6"),
        ("0.5.9", "0.5.9"),
        ("0.5.9.post1", "0.5.9"),
        ("0.5.10", "0.5.10"),
        ("0.5.23", "0.5.10"),
        ("0.6.0.dev1+g0123abc", "0.5.10"),
    ],
)
def test_the_table_for_a_release(version: str, since: str) -> None:
    assert table_for(version).since == since


def test_old_releases_have_a_watch_of_their_own() -> None:
    assert [table.watch for table in TABLES] == [OlderWatch, OlderWatch, OlderWatch, Watch]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.since)
def test_a_place_stands_once_in_a_table(table: object) -> None:
    places = [probe.where for probe in table.probes]  # type: ignore[attr-defined]
    assert len(places) == len(set(places))
    assert all(inspect.isgeneratorfunction(probe.read) for probe in table.probes)  # type: ignore[attr-defined]
