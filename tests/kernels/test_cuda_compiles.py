"""The CUDA C++ sources: compiled where there is an nvcc, and a clear word where they cannot be built and run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from kvsan.kernels import Backend, cuda_ext, decode_attention, write_rows
from kvsan.kernels.cuda_ext import SOURCES

# Those of torch's builder that change what compiles.
TORCH_FLAGS = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
    "--expt-relaxed-constexpr",
)


@pytest.mark.parametrize("source", sorted(path.name for path in SOURCES.glob("*.cu")))
def test_the_kernels_compile_without_torch(source: str, tmp_path: Path) -> None:
    nvcc = cuda_ext.nvcc()
    if nvcc is None:
        pytest.skip("no nvcc: neither CUDA_HOME nor PATH has one")
    built = tmp_path / "kernel.o"
    strict = ("-std=c++17", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra")
    ran = subprocess.run(
        [nvcc, "-c", "-arch=sm_90", *strict, *TORCH_FLAGS, SOURCES / source, "-o", built],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert built.stat().st_size > 1000


def test_only_the_binding_knows_torch() -> None:
    users = {path.name for path in SOURCES.iterdir() if re.search(r"#include\s*<(torch|ATen|c10)/", path.read_text())}
    assert users == {"binding.cpp"}


def test_where_it_cannot_be_built_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    slots, offsets = torch.tensor([3]), torch.tensor([0, 1])
    monkeypatch.setattr(cuda_ext, "missing", lambda: "no CUDA GPU is visible")
    with pytest.raises(RuntimeError, match=r"the CUDA C\+\+ kernels cannot be built here: no CUDA GPU is visible"):
        write_rows(
            torch.zeros(2, 4, dtype=torch.int32), slots - 2, slots, offsets, slots, offsets, backend=Backend.CUDA
        )


def test_tensors_on_a_cpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, one = torch.zeros(4, 2, 8), torch.tensor([1])
    monkeypatch.setattr(cuda_ext, "missing", lambda: None)
    with pytest.raises(RuntimeError, match="need tensors on a GPU, not on cpu"):
        decode_attention(pool[:1], pool, pool, torch.zeros(2, 4, dtype=torch.int32), one, one, backend=Backend.CUDA)


def test_this_machine_either_builds_it_or_has_a_reason() -> None:
    reason = cuda_ext.missing()
    assert (reason is None) == (torch.cuda.is_available() and reason is None)
    if torch.version.cuda is None:
        assert reason == f"torch {torch.__version__} is built without CUDA"
