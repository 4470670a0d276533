"""Kernels of SGLang that only a GPU runs, on a CPU: Triton's interpreter executes their own source."""

from __future__ import annotations

from typing import Any

import pytest
import triton.language
from adapters.device import kernel
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction


class Launched:
    """A kernel in the interpreter: `kernel[grid](...)`, on the CPU or on the device that tests have."""

    def __init__(self, function: Any) -> None:
        self._function = InterpretedFunction(function)

    def __getitem__(self, grid: Any) -> Any:
        return kernel(self._function[grid])


def interpret(monkeypatch: pytest.MonkeyPatch, module: Any, *kernels: str) -> None:
    """From here on the interpreter runs these kernels of the module, and what they call of Triton's own."""
    for name in ("cdiv", "sum"):
        _replace(monkeypatch, triton.language, name, InterpretedFunction)
    for name in kernels:
        _replace(monkeypatch, module, name, Launched)


def _replace(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, interpreted: Any) -> None:
    function = vars(module)[name]
    if isinstance(function, JITFunction):  # else it is interpreted already
        monkeypatch.setattr(module, name, interpreted(function.fn))
