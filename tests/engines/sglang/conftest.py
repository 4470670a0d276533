"""These tests need the environment that `make test-engines` makes, and are skipped elsewhere."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

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


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder."""
    from . import model

    return model.write(tmp_path_factory.mktemp("model"))
