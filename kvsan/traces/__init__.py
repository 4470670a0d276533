"""Traces: the events of one process on disk, read and written without running anything that they contain."""

from __future__ import annotations

from pathlib import Path

from .binary import BinaryWriter, is_binary, read_binary
from .text import Header, TextWriter, Trace, event_from_dict, event_to_dict, read_text

__all__ = [
    "BinaryWriter", "Header", "TextWriter", "Trace", "event_from_dict", "event_to_dict", "read_binary", "read_text",
    "read_trace",
]  # fmt: skip


def read_trace(path: str | Path) -> Trace:
    """Opens a trace of either encoding. Raises TraceError."""
    return read_binary(path) if is_binary(path) else read_text(path)
