"""These tests need the environment that `make test-engines` makes, and are skipped elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob.append("test_*.py")
else:  # tests without a server import SGLang themselves
    from .release import unfit
    from .server import write_stand_ins

    collect_ignore_glob.extend(unfit({file.name for file in Path(__file__).parent.glob("test_*.py")}))

    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    sys.path.insert(0, str(write_stand_ins(Path(tempfile.mkdtemp(prefix="kvsan-stand-ins-")))))


ALL_LATE = "KVSAN_TEST_ALL_LATE"
IN_SHORT: dict[str, tuple[str, ...]] = {
    "test_no_cache.py": ("test_clean", "test_the_report", "alias", "orphan"),
    "test_page_16.py": ("test_clean", "test_the_report"),
    "test_sessions.py": ("test_clean", "test_the_report"),
    "test_live_drafts.py": (),
    "test_live_host.py": (),
    "test_live_prefill.py": (),
    "test_live_window.py": (),
}
"""Of these files' living servers whose slot ids come late, only what has one of these in its name is always tested."""
_cut: list[pytest.Item] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the other ones out, unless the environment asks for all."""
    if os.environ.get(ALL_LATE) == "1":
        return
    kept = []
    for item in items:
        always = IN_SHORT.get(item.path.name) if item.path.parent == Path(__file__).parent else None
        late = "late" in re.split(r"[-\[\]]", item.name)
        cut = late and always is not None and not any(name in item.name for name in always)
        (_cut if cut else kept).append(item)
    config.hook.pytest_deselected(items=_cut)
    items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was left out is said."""
    if _cut:
        files = ", ".join(sorted({item.path.name for item in _cut}))
        terminalreporter.write_line(
            f"CUT: {len(_cut)} tests with late slot ids of {files} ({ALL_LATE}=1, make test-engines-late, runs them)"
        )


@pytest.fixture(params=["at once", "late", "on a device"])
def way(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Where the engine has its slot ids, and whether they come late (`watching.Way`)."""
    from .watching import going

    with going(request.param) as way:
        yield way


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder."""
    from . import model

    return model.write(tmp_path_factory.mktemp("model"))
