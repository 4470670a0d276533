"""These tests need an environment that `make test-engines-old` makes, and are skipped elsewhere."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tempfile
from pathlib import Path

import pytest

from ..install_sglang import OLD

collect_ignore_glob: list[str] = []
try:
    release = importlib.metadata.version("sglang")
except importlib.metadata.PackageNotFoundError:
    release = ""
if release not in OLD:
    collect_ignore_glob.append("test_*.py")
else:  # for what is imported into the tests' own process
    from . import server

    _folder = tempfile.TemporaryDirectory()
    os.environ.update(server.ON_A_CPU)
    sys.path.insert(0, str(server.write_kernels(Path(_folder.name))))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder."""
    from ..sglang import model

    return model.write(tmp_path_factory.mktemp("model"))
