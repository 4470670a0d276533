"""From 0.5.11 on SGLang has plugins, and kvsan is one: switched on it waits for the scheduler, else it is inert."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .server import ON_A_CPU, write_kernels

pytestmark = pytest.mark.skipif(find_spec("sglang.srt.plugins") is None, reason="it has no plugins")

CODE = (
    "from sglang.srt.managers.scheduler import Scheduler; from sglang.srt.plugins import load_plugins; "
    "load_plugins(); print('_kvsan_arrival' in vars(Scheduler))"
)


@pytest.mark.parametrize("on", [True, False])
def test_as_a_plugin(on: bool, tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("KVSAN")}
    variables |= {**ON_A_CPU, "PYTHONPATH": str(write_kernels(tmp_path)), **({"KVSAN": "1"} if on else {})}
    got = subprocess.run(
        [sys.executable, "-c", CODE], text=True, capture_output=True, check=True, env=variables, timeout=240
    )
    assert got.stdout.splitlines()[-1] == str(on)
