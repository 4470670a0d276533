"""These tests need the environment that `make test-engines` makes, and are skipped elsewhere."""

from __future__ import annotations

import importlib.util
import os
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


@pytest.fixture(scope="session")
def windowed_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model with a sliding window."""
    from . import model

    return model.write(tmp_path_factory.mktemp("windowed"), model.WINDOWED)
