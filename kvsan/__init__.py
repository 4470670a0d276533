"""kvsan: the sanitizer for KV caches of LLM serving engines."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # not from typing: entering a process would load that, at ten times the cost of all else
    from typing import Any

    from .hooks.sanitizer import Sanitizer
    from .memory import check_memory

__all__ = ["Sanitizer", "__version__", "check_memory"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Loads the public names on first use, so that entering a process costs nothing."""
    if name == "Sanitizer":
        from .hooks.sanitizer import Sanitizer

        return Sanitizer
    if name == "check_memory":
        from .memory import check_memory

        return check_memory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
