"""The other files through Triton's interpreter, in one process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvsan.kernels.backend import interpreter_requested

pytest.importorskip("triton")

ELSEWHERE = {"test_aot.py", "test_interpreter.py", "test_cuda_compiles.py", "test_cuda_on_cpu.py"}


def test_every_kernel_through_the_interpreter() -> None:
    if interpreter_requested():
        pytest.skip("this is that run")
    files = [str(path) for path in sorted(Path(__file__).parent.glob("test_*.py")) if path.name not in ELSEWHERE]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
