"""What the kernels' tests share. `backend` runs a test on every backend that this process has.

A kernel is interpreted or compiled from its decorator on, so Triton's interpreter needs a process of its own:
`test_interpreter.py` runs the other files in one. A module with HAS_CUDA_VERSION also runs on the CUDA C++ version,
where that can be built.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch
    from kvsan.kernels import Backend

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        backends = backends_here(getattr(metafunc.module, "HAS_CUDA_VERSION", False))
        metafunc.parametrize("backend", backends, ids=lambda each: each.value)


def backends_here(cuda_version: bool) -> list[Backend]:
    import torch
    from kvsan.kernels import Backend
    from kvsan.kernels.backend import interpreter_requested
    from kvsan.kernels.cuda_ext import missing

    if interpreter_requested():
        return [Backend.INTERPRETER]
    triton = [Backend.TRITON] if torch.cuda.is_available() else []
    cuda = [Backend.CUDA] if cuda_version and missing() is None else []
    return [Backend.TORCH, *triton, *cuda]


@pytest.fixture
def device(backend: Backend) -> torch.device:
    import torch
    from kvsan.kernels import Backend

    return torch.device("cuda" if backend in (Backend.TRITON, Backend.CUDA) else "cpu")


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    """Lets a launcher pass on values that it would refuse on a CPU, as it must on a GPU, where it cannot look."""
    from kvsan.kernels import Backend, attention, kv_store, state_copy, state_scan

    if backend is Backend.TORCH:
        pytest.skip("the torch version checks instead")
    for module in (attention, kv_store, state_copy, state_scan):
        for name in ("check_range", "check_row_cells", "check_offsets", "_check_values"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda *_: None)
