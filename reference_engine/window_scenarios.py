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
    """`first` outruns its window and is cached with tombstones, whose window slots `steady` shares in; `again` computes
    the same tokens and recovers them."""
    prompt, sampling = random_text(rng, 17), SamplingParams(40, ignore_eos=True)
    output = Oracle(window=WIDTH).generate(list(prompt), sampling)
    steady = SamplingParams(80, ignore_eos=True)
    arrivals = [
        Arrival(0, "first", prompt, sampling),
        Arrival(1, "steady", random_text(rng, rng.randint(5, 12)), steady),
        Arrival(50, "again", prompt + tuple(output[:20]), SamplingParams(1)),
    ]
    return replace(base, rows=3, context_len=128, kv_tokens=256, window=WIDTH), arrivals, ("steady",)


def _aborted(base: EngineConfig, rng: random.Random) -> Parts:
    """Two requests outrun their windows and are aborted; `later` gets the padding slot twice."""
    sampling = SamplingParams(60, ignore_eos=True)
    gone = [Arrival(n, f"gone-{n}", random_text(rng, rng.randint(4, 12)), sampling, 45 + 2 * n) for n in range(2)]
    later = Arrival(60, "later", random_text(rng, rng.randint(20, 30)), SamplingParams(8, ignore_eos=True))
    config = replace(base, rows=3, context_len=128, kv_tokens=256, window=WIDTH)
    return config, [*gone, later], ("later",)


BUILDERS: dict[str, Callable[[EngineConfig, random.Random], Parts]] = {
    bugs.STALE_MAP: _recovered,
    bugs.TOMBSTONE_FREED: _aborted,
}
