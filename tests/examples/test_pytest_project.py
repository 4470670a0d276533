"""The example project: what plain pytest says, and what kvsan adds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PROJECT = Path(__file__).parents[2] / "examples" / "pytest_project"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    for file in PROJECT.glob("*.py"):
        shutil.copy(file, pytester.path)
    return pytester


def test_plain_pytest_passes_all_of_it(project: pytest.Pytester) -> None:
    project.runpytest_subprocess().assert_outcomes(passed=3)


def test_kvsan_fails_the_leaking_test(project: pytest.Pytester) -> None:
    result = project.runpytest_subprocess("--kvsan")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*LEAK of 3 token slots*",
            "*blocks.py:*abort*",
            "test_blocks.py::test_an_aborted_request_is_forgotten * 1 leak",
            "test_blocks.py::test_the_leak_is_known * 1 leak  expected",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_pyfunc_call*")
