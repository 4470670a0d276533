"""Which of several ranks a scheduler is: those of one group get the same requests, and each must decide alike."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple


class Place(NamedTuple):
    """A group of ranks, and which of them this is."""

    group: str
    rank: int


def place() -> Place | None:
    """As SGLang has it: one group for each replica, of the ranks that share its attention. None for one that is alone,
    and in releases that say so elsewhere."""
    try:
        parallel = import_module("sglang.srt.runtime_context").get_parallel()
        size, rank = parallel.attn_tp_size, parallel.attn_tp_rank
        contexts, context = parallel.attn_cp_size, parallel.attn_cp_rank
        replica = (parallel.dp_rank or 0, parallel.attn_dp_rank or 0)
    except (ImportError, AttributeError, RuntimeError, ValueError):
        return None
    if size * contexts < 2:
        return None
    return Place(f"SGLang DP{replica[0]}.{replica[1]}", context * size + rank)
