"""The one place that decides what a kernel runs on: Triton on a GPU, Triton's interpreter, CUDA C++, or plain torch."""

from __future__ import annotations

import enum
import functools
import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# The spellings that Triton itself takes for "on".
_ON = frozenset({"1", "true", "yes", "on", "y"})


class Backend(enum.Enum):
    """What carries a kernel out."""

    TRITON = "triton"
    INTERPRETER = "interpreter"
    TORCH = "torch"
    CUDA = "cuda"
    """CUDA C++, which some kernels are written in as well; taken only when asked for."""


@functools.cache
def interpreter_requested() -> bool:
    """Whether TRITON_INTERPRET was set when this was first asked.

    Triton reads the variable once for each kernel, when its decorator runs; a later change could not be followed, so
    the first answer holds for the process.
    """
    return os.environ.get("TRITON_INTERPRET", "").lower() in _ON


@functools.cache
def triton_available() -> bool:
    """Whether triton can be imported (it has no wheels for macOS and Windows)."""
    return importlib.util.find_spec("triton") is not None


def choose(device: torch.device) -> Backend:
    """The backend for tensors on the device: the interpreter where it is asked for, Triton on a GPU, else torch."""
    if not triton_available():
        return Backend.TORCH
    if interpreter_requested():
        return Backend.INTERPRETER
    return Backend.TRITON if device.type == "cuda" else Backend.TORCH


def resolve(backend: Backend | None, device: torch.device, *, cuda: bool = False) -> Backend:
    """The backend asked for, or the chosen one; RuntimeError where the one asked for cannot run in this process.

    `cuda` says whether the kernel has a version in CUDA C++.
    """
    if backend is None:
        return choose(device)
    if backend is Backend.CUDA:
        if not cuda:
            raise RuntimeError("this kernel has no version in CUDA C++: row write and decode attention have one")
        from .cuda_ext import require

        require(device)
        return backend
    if backend is not Backend.TORCH and not triton_available():
        raise RuntimeError(f"backend {backend.value!r} needs triton: pip install 'kvsan[engine]'")
    if backend is Backend.INTERPRETER and not interpreter_requested():
        raise RuntimeError("Triton's interpreter must be asked for before the process starts: set TRITON_INTERPRET=1")
    if backend is Backend.TRITON and interpreter_requested():
        raise RuntimeError("TRITON_INTERPRET is set, so kernels are interpreted: unset it to compile them")
    if backend is Backend.TRITON and device.type != "cuda":
        raise RuntimeError(f"Triton compiles for GPUs, and the tensors are on {device}: use the interpreter or torch")
    return backend


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes the device current for a launch: Triton launches on the current device, whatever its arguments are on."""
    if device.type != "cuda":
        return nullcontext()
    import torch

    return torch.cuda.device(device)
