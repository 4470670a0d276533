"""The engine's kernels through Triton's interpreter, which needs a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")


def test_the_engine_on_interpreted_kernels() -> None:
    from kvsan.kernels.backend import interpreter_requested

    if interpreter_requested():
        pytest.skip("this is that run")
    file = Path(__file__).with_name("test_kernel_engine.py")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
