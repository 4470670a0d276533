"""Which of several ranks a scheduler is: those of one group get the same requests, and each must decide alike."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A group of ranks, and which of them this is."""

    group: str
    rank: int


def place(scheduler: Any) -> Place | None:
    """As SGLang has it: one group for each replica, of the ranks that share its attention, named by the seed that all
    ranks of a server have in common, and mostly no two servers. None for one that is alone, and in releases that say so
    elsewhere."""
    try:
        parallel = import_module("sglang.srt.runtime_context").get_parallel()
        size, rank = parallel.attn_tp_size, parallel.attn_tp_rank
        contexts, context = parallel.attn_cp_size, parallel.attn_cp_rank
        replica, seed = (parallel.dp_rank or 0, parallel.attn_dp_rank or 0), int(scheduler.random_seed)
    except (ImportError, AttributeError, RuntimeError, TypeError, ValueError):
        return None
    if size * contexts < 2:
        return None
    return Place(f"SGLang {seed:08x} DP{replica[0]}.{replica[1]}", context * size + rank)
