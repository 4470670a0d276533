"""What is installed: every module, the line that enters processes, and nothing at the top level but kvsan."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PTH = "kvsan_entry.pth"


def settings() -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return table


def test_every_folder_with_code_is_a_package_that_is_installed() -> None:
    mapped = {folder: name for name, folder in settings()["package-dir"].items()}
    found = set()
    for top, name in mapped.items():
        for file in (*(ROOT / top).rglob("*.py"), *(ROOT / top).rglob("*.cu")):
            below = file.parent.relative_to(ROOT / top).parts
            found.add(".".join((name, *below)))
    assert found == set(settings()["packages"])


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the editable wheel, built from a copy of the sources."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("building needs setuptools")
    folder = tmp_path_factory.mktemp("build")
    copy = folder / "sources"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", *settings()["package-dir"].values()):
        (copy / name).symlink_to(ROOT / name)
    code = (
        "import sys; from setuptools import build_meta as b; "
        "print(b.build_wheel(sys.argv[1]) if sys.argv[2] == 'wheel' else b.build_editable(sys.argv[1]))"
    )
    made = {}
    for kind in ("wheel", "editable"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder), kind], cwd=copy, text=True, capture_output=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        built = folder / done.stdout.splitlines()[-1]
        made[kind] = built.rename(folder / f"{kind}-{built.name}")
    return made


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_a_wheel_brings_the_line_that_enters(kind: str, wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels[kind]) as wheel:
        assert wheel.testzip() is None
        line = wheel.read(PTH).decode()
        record = next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/RECORD"))
        assert wheel.namelist().count(PTH) == 1
    assert line.count("\n") == 1
    assert line.startswith("import os; ")
    assert record.count(PTH) == 1


def test_a_wheel_holds_the_four_folders_in_one_package(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["wheel"]) as wheel:
        names = wheel.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kvsan", PTH}
    for name in ("kvsan/py.typed", "kvsan/hooks/__init__.py", "kvsan/kernels/__init__.py", "kvsan/cli.py"):
        assert name in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_works_beside_a_package_named_kernels(wheels: dict[str, Path], tmp_path: Path) -> None:
    """A serving engine depends on a top-level package of that name."""
    with zipfile.ZipFile(wheels["wheel"]) as wheel:
        wheel.extractall(tmp_path)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("NAME = 'theirs'\n")
    code = "import kernels, kvsan.kernels, kvsan.cli; print(kernels.NAME, kvsan.kernels.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        text=True, capture_output=True, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["theirs", str(tmp_path / "kvsan" / "kernels" / "__init__.py")]
