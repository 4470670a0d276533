"""Workloads that provoke the bugs of the sliding window."""

from __future__ import annotations

import random
from dataclasses import replace

from . import bugs
from .config import EngineConfig
from .oracle import Oracle
from .request import SamplingParams
from .scenario import Builder, Scenario
from .workload import Arrival, random_text

WIDTH = 8


def _steady(tokens: int) -> SamplingParams:
    return SamplingParams(tokens, ignore_eos=True)


def _recovered(base: EngineConfig, rng: random.Random) -> Scenario:
    """`first` outruns its window; `steady` is handed a window slot that `first` gave back. `first` is cached with a
    tombstone there, and `again` computes the same tokens and recovers it."""
    prompt = random_text(rng, 17)
    output = Oracle(base.model_seed, window=WIDTH).generate(list(prompt), _steady(26))
    single = base.page_size == 1
    mine, theirs, shared = (rng.randint(5, 12), 12, 1) if single else (rng.randint(24, 25), 60, 15)
    arrivals = [
        Arrival(0, "first", prompt, _steady(26)),
        Arrival(1, "steady", random_text(rng, mine), _steady(theirs)),
        Arrival(34, "again", prompt + tuple(output[:shared]), _steady(1)),
    ]
    return Scenario(replace(base, rows=3, context_len=128, kv_tokens=256, window=WIDTH), arrivals, ("steady",))


def _shared_with_others(base: EngineConfig, rng: random.Random) -> Scenario:
    """What comes late is handed the slot, in whole pages while `steady` still sees it; then some match all that
    `steady` left."""
    case = _recovered(base, rng)
    steady = case.arrivals[1]
    oracle = Oracle(base.model_seed, window=WIDTH)
    text = steady.prompt + tuple(oracle.generate(list(steady.prompt), steady.sampling))
    step = 80 if base.page_size == 1 else 38
    late = [Arrival(step + n, f"late-{n}", random_text(rng, 30), _steady(10)) for n in range(3)]
    for number in range(12):  # each sees the one slot for a few tokens only
        sampling = SamplingParams(7, temperature=1.0, seed=number, ignore_eos=True)
        late.append(Arrival(130, f"matching-{number}", text[:-1] + random_text(rng, 1), sampling))
    victims = ("steady", *(arrival.rid for arrival in late))
    return replace(case, arrivals=[*case.arrivals, *late], victims=victims)


def _aborted(base: EngineConfig, rng: random.Random) -> Scenario:
    """A request outruns its window and is aborted."""
    gone = Arrival(0, "gone", random_text(rng, rng.randint(4, 12)), _steady(60), 45 + rng.randint(0, 5))
    return Scenario(replace(base, rows=3, context_len=128, kv_tokens=256, window=WIDTH), [gone])


def _padding_handed_out(base: EngineConfig, rng: random.Random) -> Scenario:
    """Some requests do so; those that come late are handed the padding slot, more than once."""
    arrivals = [
        Arrival(n, f"gone-{n}", random_text(rng, rng.randint(4, 12)), _steady(60), 32 + 2 * n) for n in range(5)
    ]
    late = [Arrival(60, f"late-{n}", random_text(rng, rng.randint(4, 8)), _steady(16)) for n in range(6)]
    config = replace(base, rows=6, context_len=128, kv_tokens=256, window=WIDTH)
    return Scenario(config, arrivals + late, tuple(arrival.rid for arrival in late))


BUILDERS: dict[str, Builder] = {
    bugs.STALE_MAP: _recovered,
    bugs.TOMBSTONE_FREED: _aborted,
}
BITING: dict[str, Builder] = {
    bugs.STALE_MAP: _shared_with_others,
    bugs.TOMBSTONE_FREED: _padding_handed_out,
}
