"""Which table of probes goes with which release of SGLang, and what is known of how it fits."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from dataclasses import dataclass

from ...sanitizer import Sanitizer
from ..probes import Probe
from . import table
from .between import table as between
from .between.records import OwnRecordsWatch
from .older import table as older
from .older.watch import OlderWatch
from .watch import Watch


@dataclass(frozen=True, slots=True)
class Table:
    """The probes of the releases from `since` on, up to the next table's."""

    since: str
    probes: tuple[Probe, ...]
    watch: Callable[[Sanitizer], Watch]
    run: tuple[str, ...] = ()
    """Releases that kvsan's tests run."""
    compared: tuple[str, ...] = ()
    """Releases that no test runs, whose places were compared by source with those of a release that one does."""


_OTHERS_IN_0_5_22 = {table.EVICTED: table.EVICTED_UP_TO_0_5_22, table.ABORTED: table.ABORTED_UP_TO_0_5_22}
"""Places of 0.5.22, by those of 0.5.23 that they stand for."""

SINCE_0_5_22: tuple[Probe, ...] = tuple(
    _OTHERS_IN_0_5_22.get(each, each)
    for each in table.PROBES
    if each not in table.WINDOWED and each not in table.STATEFUL
)
"""Without sliding windows, whose publications go on with what a lookup finds, which may be less than what was inserted;
and without recurrent states, whose buffers do not say which of their places are empty."""

TABLES = (
    Table("0.5.4", older.SINCE_0_5_4, OlderWatch, run=("0.5.4",)),
    Table("0.5.6", older.SINCE_0_5_6, OlderWatch, run=("0.5.8.post1",)),
    Table("0.5.9", older.SINCE_0_5_9, OlderWatch, run=("0.5.9", "0.5.10.post1"), compared=("0.5.10",)),
    Table("0.5.11", older.SINCE_0_5_11, OlderWatch, run=("0.5.11", "0.5.12.post1"), compared=("0.5.12",)),
    Table("0.5.13", older.SINCE_0_5_13, OlderWatch, run=("0.5.13",), compared=("0.5.13.post1",)),
    Table("0.5.14", older.SINCE_0_5_14, OlderWatch, compared=("0.5.14",)),
    Table("0.5.15", older.SINCE_0_5_15, OlderWatch, run=("0.5.15.post1",), compared=("0.5.15",)),
    Table("0.5.16", between.SINCE_0_5_16, OwnRecordsWatch, run=("0.5.16",)),
    Table("0.5.17", between.SINCE_0_5_17, OwnRecordsWatch, run=("0.5.18",), compared=("0.5.17",)),
    Table("0.5.19", between.SINCE_0_5_19, Watch, run=("0.5.19",)),
    Table("0.5.20", between.SINCE_0_5_20, Watch, run=("0.5.20",)),
    Table("0.5.21", between.SINCE_0_5_21, Watch, run=("0.5.21",)),
    Table("0.5.22", SINCE_0_5_22, Watch, run=("0.5.22",)),
    Table("0.5.23", table.PROBES, Watch, run=("0.5.23",)),
)

stream_probes = table.stream_probes


def table_for(version: str) -> Table:
    """The table for a release; the first for those before it, whose places will then be missing, which is told."""
    fitting = [each for each in TABLES if _numbers(each.since) <= _numbers(version)]
    return fitting[-1] if fitting else TABLES[0]


def installed() -> Table:
    """The table for the installed release."""
    return table_for(installed_version())


def installed_version() -> str:
    """The installed release."""
    return importlib.metadata.version("sglang")


def standing(version: str) -> str | None:
    """What to know of a release that kvsan's tests do not run; None of one that they do."""
    table, release = table_for(version), version.partition("+")[0]
    if release in table.run:
        return None
    if release in table.compared:
        return f"SGLang {version} was not run by kvsan's tests; its places were compared by source"
    return f"SGLang {version} was not run by kvsan's tests; only that its places are there is checked"


def _numbers(version: str) -> tuple[int, ...]:
    """0.5.8.post1 comes after 0.5.8 and before 0.5.9; what follows a `+` is local."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))
