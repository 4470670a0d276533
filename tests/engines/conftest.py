"""In which order the tests with real engines run, two at a time, and what is left out when time is short.

First what must run: the tests without a server, and those servers that everybody's faults are armed in. Then the spare
ones: servers of a file `test_live_*`, and servers whose slot ids come late. Where the environment says that time is
short after some seconds, no spare server is started after them, and the last lines name what was left out.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from typing import Any

import pytest

SPARE_SECONDS = "KVSAN_TEST_SPARE_SECONDS"
CUT = "CUT: no time was left"
_began = time.monotonic()
_started: set[str] = set()


def _late(nodeid: str) -> bool:
    """Do its slot ids come late?"""
    return "late" in re.split(r"[-\[\]]", nodeid)


def _group(nodeid: str) -> str:
    """What one process runs, one after the other: the tests of a file, with late slot ids by themselves."""
    return f"{nodeid.partition('::')[0]}{' late' if _late(nodeid) else ''}"


def _living(item: pytest.Item) -> bool:
    """Does it start a server?"""
    return bool({"model", "windowed_model"} & {*getattr(item, "fixturenames", ())})


def _spare(item: pytest.Item) -> bool:
    """Does it start a server that may be left out?"""
    return _living(item) and (_late(item.nodeid) or item.path.name.startswith("test_live_"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts what must run first, and what one process runs together."""
    items.sort(key=lambda item: (_spare(item), not _living(item), _late(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives the next group to the process that has none."""
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    config.option.loadscopereorder = False  # the order is ours
    return Grouped(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leaves out a spare server that would be started when time is short."""
    limit = float(os.environ.get(SPARE_SECONDS) or "inf")
    shared = "server" in getattr(item, "fixturenames", ()) and _group(item.nodeid) in _started
    if _spare(item) and not shared and time.monotonic() - _began > limit:
        pytest.skip(CUT)
    _started.add(_group(item.nodeid))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names what was left out."""
    reports = terminalreporter.stats.get("skipped", [])
    cut = Counter(_group(each.nodeid) for each in reports if CUT in str(each.longrepr))
    if cut:
        what = ", ".join(f"{name} ({count})" for name, count in cut.items())
        terminalreporter.write_line(f"{CUT} for {sum(cut.values())} tests with servers that may be left out: {what}")
