"""Which table of probes goes with which release of SGLang."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from dataclasses import dataclass

from ...sanitizer import Sanitizer
from ..probes import Probe
from . import table
from .older import table as older
from .older.watch import OlderWatch
from .watch import Watch


@dataclass(frozen=True, slots=True)
class Table:
    """The probes of the releases from `since` on, up to the next table's."""

    since: str
    probes: tuple[Probe, ...]
    watch: Callable[[Sanitizer], Watch]


TABLES = (
    Table("0.5.4", older.SINCE_0_5_4, OlderWatch),
    Table("0.5.6", older.SINCE_0_5_6, OlderWatch),
    Table("0.5.9", older.SINCE_0_5_9, OlderWatch),
    Table("0.5.10", table.PROBES, Watch),
)

stream_probes = table.stream_probes


def table_for(version: str) -> Table:
    """The table for a release; the first for those before it, whose places will then be missing, which is told."""
    fitting = [each for each in TABLES if _numbers(each.since) <= _numbers(version)]
    return fitting[-1] if fitting else TABLES[0]


def installed() -> Table:
    """The table for the installed release."""
    return table_for(importlib.metadata.version("sglang"))


def _numbers(version: str) -> tuple[int, ...]:
    """0.5.8.post1 comes after 0.5.8 and before 0.5.9; what follows a `+` is local."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))
