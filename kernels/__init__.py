"""Kernels of kvsan and its reference engine, each beside a plain torch version that says what it computes.

Importing this package imports neither torch nor triton: a name below brings its module, and a kernel's own module comes
with the first launch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention import decode_attention, extend_attention
    from .attention_reference import decode_attention_reference, extend_attention_reference
    from .backend import Backend, choose
    from .kv_store import store_kv, store_kv_reference
    from .padded_lanes import PaddedLanes, attention_lanes, state_lanes
    from .row_write import write_rows, write_rows_reference
    from .state_copy import copy_states, copy_states_reference
    from .state_scan import selective_scan, selective_scan_reference, state_update, state_update_reference

__all__ = [
    "Backend",
    "PaddedLanes",
    "attention_lanes",
    "choose",
    "copy_states",
    "copy_states_reference",
    "decode_attention",
    "decode_attention_reference",
    "extend_attention",
    "extend_attention_reference",
    "selective_scan",
    "selective_scan_reference",
    "state_lanes",
    "state_update",
    "state_update_reference",
    "store_kv",
    "store_kv_reference",
    "write_rows",
    "write_rows_reference",
]

_MODULE_OF = {
    "Backend": "backend",
    "PaddedLanes": "padded_lanes",
    "attention_lanes": "padded_lanes",
    "choose": "backend",
    "copy_states": "state_copy",
    "copy_states_reference": "state_copy",
    "decode_attention": "attention",
    "decode_attention_reference": "attention_reference",
    "extend_attention": "attention",
    "extend_attention_reference": "attention_reference",
    "selective_scan": "state_scan",
    "selective_scan_reference": "state_scan",
    "state_lanes": "padded_lanes",
    "state_update": "state_scan",
    "state_update_reference": "state_scan",
    "store_kv": "kv_store",
    "store_kv_reference": "kv_store",
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
