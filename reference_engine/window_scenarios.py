"""Workloads that provoke the bugs of the sliding window."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from . import bugs
from .config import EngineConfig
from .oracle import Oracle
from .request import SamplingParams
from .tier_scenarios import Parts
from .workload import Arrival, random_text

WIDTH = 8


def _recovered(base: EngineConfig, rng: random.Random) -> Parts:
    """`first` outruns its window; `steady` is handed a window slot that `first` gave back. `first` is cached with a
    tombstone there, and `again` computes the same tokens and recovers it."""
    prompt = random_text(rng, 17)
    output = Oracle(base.model_seed, window=WIDTH).generate(list(prompt), SamplingParams(26, ignore_eos=True))
    single = base.page_size == 1
    mine, theirs, shared = (rng.randint(5, 12), 12, 1) if single else (rng.randint(24, 25), 60, 15)
    arrivals = [
        Arrival(0, "first", prompt, SamplingParams(26, ignore_eos=True)),
        Arrival(1, "steady", random_text(rng, mine), SamplingParams(theirs, ignore_eos=True)),
        Arrival(34, "again", prompt + tuple(output[:shared]), SamplingParams(1)),
    ]
    return replace(base, rows=3, context_len=128, kv_tokens=256, window=WIDTH), arrivals, ("steady",)


def _aborted(base: EngineConfig, rng: random.Random) -> Parts:
    """A request outruns its window and is aborted."""
    sampling = SamplingParams(60, ignore_eos=True)
    gone = Arrival(0, "gone", random_text(rng, rng.randint(4, 12)), sampling, 45 + rng.randint(0, 5))
    return replace(base, rows=3, context_len=128, kv_tokens=256, window=WIDTH), [gone], ()


BUILDERS: dict[str, Callable[[EngineConfig, random.Random], Parts]] = {
    bugs.STALE_MAP: _recovered,
    bugs.TOMBSTONE_FREED: _aborted,
}
