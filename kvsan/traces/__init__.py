"""Traces: the events of one process on disk, read and written without running anything that they contain."""

from .text import Header, Trace, TextWriter, event_from_dict, event_to_dict, read_text

__all__ = ["Header", "TextWriter", "Trace", "event_from_dict", "event_to_dict", "read_text"]
