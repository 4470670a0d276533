"""Kernels of SGLang that only a GPU runs, on a CPU: Triton's interpreter executes their own source."""

from __future__ import annotations

from typing import Any

import pytest
import triton.language
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction


def interpret(monkeypatch: pytest.MonkeyPatch, module: Any, *kernels: str) -> None:
    """From here on the interpreter runs these kernels of the module, and what they call of Triton's own."""
    for name in ("cdiv", "sum"):
        _replace(monkeypatch, triton.language, name)
    for name in kernels:
        _replace(monkeypatch, module, name)


def _replace(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    function = vars(module)[name]
    if isinstance(function, JITFunction):  # else it is interpreted already
        monkeypatch.setattr(module, name, InterpretedFunction(function.fn))
