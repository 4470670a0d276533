"""These tests need an environment that `make test-engines-old` makes, and are skipped elsewhere."""

from __future__ import annotations

import importlib.metadata
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


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder."""
    from ..sglang import model

    return model.write(tmp_path_factory.mktemp("model"))
