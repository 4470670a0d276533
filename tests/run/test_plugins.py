"""Plugins of other packages: the entry point group `kvsan.plugins`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .wrapped import clean_environment, command, outcome, program

COUNTS = """
from kvsan.hooks.specification import hookimpl

class Counter:
    @hookimpl
    def kvsan_alloc(self, event):
        print("plugin:", event.owner, event.slots.tolist(), flush=True)

one = Counter()
"""
ALLOCATES = """
from kvsan import hooks

def allocate():
    hooks.current().pool("blocks", kind="kv", size=16, page=1, reserved=[0])
    hooks.current().alloc("blocks", [1, 2], owner="a")
    hooks.current().free("blocks", [1, 2], owner="a")
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH in which a package with plugins is installed."""
    site = tmp_path / "site"
    info = site / "counts-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counts\nVersion: 1.0\n")
    (site / "counts.py").write_text(COUNTS)
    (site / "allocates.py").write_text(ALLOCATES)
    return site


def installs(site: Path, *lines: str) -> None:
    text = "\n".join(("[kvsan.plugins]", *lines, ""))
    (site / "counts-1.0.dist-info" / "entry_points.txt").write_text(text)


@pytest.mark.parametrize("what", ["counts:one", "counts:Counter"])
def test_kvsan_run_loads_what_packages_name(what: str, site: Path, tmp_path: Path) -> None:
    installs(site, f"counter = {what}")
    argv = command(tmp_path, [sys.executable, program(tmp_path, "import allocates; allocates.allocate()")])
    done = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(PYTHONPATH=str(site))
    )
    got = outcome(tmp_path, done)
    assert (got.status, got.out) == (0, "plugin: a [1, 2]\n")
    assert got.report["failures"] == []


def test_a_plugin_that_does_not_load_costs_itself_alone(site: Path, tmp_path: Path) -> None:
    installs(site, "broken = counts:missing", "counter = counts:one")
    argv = command(tmp_path, [sys.executable, program(tmp_path, "import allocates; allocates.allocate()")])
    done = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(PYTHONPATH=str(site))
    )
    got = outcome(tmp_path, done)
    assert got.out == "plugin: a [1, 2]\n"
    (failure,) = got.report["failures"]
    assert failure["where"] == "plugin broken (counts:missing)"
    assert "no attribute 'missing'" in failure["error"]
    assert failure["cost"] == "this plugin is left out"


def test_pytest_loads_them_for_every_test(site: Path, tmp_path: Path) -> None:
    installs(site, "counter = counts:Counter")
    test = tmp_path / "test_it.py"
    test.write_text("from allocates import allocate\ndef test_a():\n    allocate()\ndef test_b():\n    allocate()\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--kvsan", "-s", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(test)],
        text=True, capture_output=True, cwd=tmp_path, env=clean_environment(PYTHONPATH=str(site)), timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("plugin: a [1, 2]") == 2
