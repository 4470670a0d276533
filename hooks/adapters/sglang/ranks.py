"""Which of several ranks a scheduler is: those of one group get the same requests, and each must decide alike."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kvsan.ranks import Rank


def rank_of(scheduler: Any) -> Rank | None:
    """Ranks that share the attention of one replica are a group; None for a scheduler that is alone. Raises whatever
    SGLang does where it does not know yet.

    The seed, which all ranks of a server have in common and mostly no two servers, is part of the group's name: traces
    of several runs may lie side by side.
    """
    of = scheduler.ps if hasattr(scheduler, "ps") else import_module("sglang.srt.runtime_context").get_parallel()
    if of.attn_tp_size * of.attn_cp_size == 1:
        return None
    group = f"SGLang {int(scheduler.random_seed):08x} DP{of.dp_rank or 0}.{of.attn_dp_rank or 0}"
    return Rank(group, of.attn_cp_rank * of.attn_tp_size + of.attn_tp_rank)
