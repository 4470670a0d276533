"""The kernels in CUDA C++ (the folder `cuda`), built the first time one is called.

Torch's extension builder compiles them for the GPU that is there and keeps the result in its own cache, so the first
call of the first process takes about a minute. Whether they can be built at all `missing` says beforehand.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import shutil
from pathlib import Path
from typing import Any

import torch

from .backend import on_device

SOURCES = Path(__file__).parent / "cuda"
_LOG2_E = math.log2(math.e)


@functools.cache
def missing() -> str | None:
    """What keeps the extension from being built and run in this process, or None."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "no CUDA GPU is visible"
    if nvcc() is None:
        return "no nvcc is found: set CUDA_HOME to a CUDA toolkit, or put its nvcc on PATH"
    if shutil.which("ninja") is None and importlib.util.find_spec("ninja") is None:
        return "no ninja is found: pip install ninja"
    if not (SOURCES / "binding.cpp").is_file():
        return f"the sources are not in {SOURCES}"
    return None


def nvcc() -> Path | None:
    """The CUDA compiler that torch would build with, or None."""
    from torch.utils import cpp_extension

    inside = Path(cpp_extension.CUDA_HOME) / "bin" / "nvcc" if cpp_extension.CUDA_HOME else None
    if inside is not None and inside.is_file():
        return inside
    found = shutil.which("nvcc")
    return Path(found) if found else None


def require(device: torch.device) -> None:
    """RuntimeError that says why, where the CUDA kernels cannot run for tensors on the device."""
    if reason := missing():
        raise RuntimeError(f"the CUDA C++ kernels cannot be built here: {reason}")
    if device.type != "cuda":
        raise RuntimeError(f"the CUDA C++ kernels need tensors on a GPU, not on {device}")


def write_rows_cuda(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    prefix_slots: torch.Tensor,
    prefix_offsets: torch.Tensor,
    new_slots: torch.Tensor,
    new_offsets: torch.Tensor,
) -> None:
    """`write_rows` in CUDA C++, for tensors on a GPU that have been checked."""
    with on_device(req_to_token.device):
        _extension().write_rows(
            req_to_token,
            rows.long(),
            prefix_slots.long(),
            prefix_offsets.long(),
            new_slots.long(),
            new_offsets.long(),
            torch.cuda.current_stream().cuda_stream,
        )


def decode_attention_cuda(
    out: torch.Tensor,
    queries: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    lens: torch.Tensor,
    scale: float,
) -> None:
    """`decode_attention` in CUDA C++, for tensors on a GPU that have been checked."""
    with on_device(queries.device):
        _extension().decode_attention(
            out,
            queries,
            k_pool,
            v_pool,
            req_to_token,
            rows.long(),
            lens.long(),
            scale * _LOG2_E,
            torch.cuda.current_stream().cuda_stream,
        )


@functools.cache
def _extension() -> Any:
    from torch.utils import cpp_extension

    return cpp_extension.load(
        name="kvsan_cuda_kernels",
        sources=[str(SOURCES / name) for name in ("binding.cpp", "row_write.cu", "paged_decode.cu")],
        extra_cflags=["-O2"],
        extra_cuda_cflags=["-O3"],
    )
