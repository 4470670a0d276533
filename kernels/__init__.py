"""Kernels of kvsan and its reference engine, each beside a plain torch version that says what it computes.

Importing this package imports neither torch nor triton: a name below brings its module, and a kernel's own module comes
with the first launch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import Backend, choose
    from .row_write import write_rows, write_rows_reference

__all__ = ["Backend", "choose", "write_rows", "write_rows_reference"]

_MODULE_OF = {
    "Backend": "backend",
    "choose": "backend",
    "write_rows": "row_write",
    "write_rows_reference": "row_write",
}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{module}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
