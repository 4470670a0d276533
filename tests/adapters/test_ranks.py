"""Which of several ranks a scheduler of SGLang is."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kvsan.hooks.adapters.sglang.ranks import rank_of


def parallel(tp: int = 0, tps: int = 1, cp: int = 0, cps: int = 1, dp: int | None = None, adp: int = 0) -> Any:
    """What SGLang says of one process."""
    return SimpleNamespace(
        attn_tp_rank=tp, attn_tp_size=tps, attn_cp_rank=cp, attn_cp_size=cps, dp_rank=dp, attn_dp_rank=adp
    )


def test_one_that_is_alone() -> None:
    """Also a replica, and one with its attention for itself among ranks that share the rest."""
    for each in (parallel(), parallel(dp=1), parallel(adp=3)):
        assert rank_of(SimpleNamespace(ps=each, random_seed=7)) is None


def test_ranks_of_one_group_have_numbers_of_their_own() -> None:
    places = [parallel(tp, 2, cp, 2) for cp in range(2) for tp in range(2)]
    found = [rank_of(SimpleNamespace(ps=each, random_seed=7)) for each in places]
    assert found == [("SGLang 00000007 DP0.0", number) for number in range(4)]


def test_groups_differ_by_replica_and_server() -> None:
    names = {
        getattr(rank_of(SimpleNamespace(ps=parallel(tps=2, dp=dp, adp=adp), random_seed=seed)), "group", None)
        for dp in (0, 1) for adp in (0, 1) for seed in (7, 8)
    }  # fmt: skip
    assert len(names - {None}) == 8


def test_where_later_releases_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = ModuleType("sglang.srt.runtime_context")
    context.get_parallel = lambda: parallel(tp=1, tps=2)
    monkeypatch.setitem(sys.modules, "sglang", ModuleType("sglang"))
    monkeypatch.setitem(sys.modules, "sglang.srt", ModuleType("sglang.srt"))
    monkeypatch.setitem(sys.modules, context.__name__, context)
    assert rank_of(SimpleNamespace(random_seed=1 << 30)) == ("SGLang 40000000 DP0.0", 1)
