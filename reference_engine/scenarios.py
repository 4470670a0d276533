"""Workloads that provoke one historical bug each, from a seed."""

from __future__ import annotations

import random
from dataclasses import replace

from . import bugs, cache_scenarios, release_scenarios, tier_scenarios, window_scenarios
from .config import EngineConfig
from .request import SamplingParams
from .scenario import Builder, Scenario
from .workload import Arrival, random_text

__all__ = ["Scenario", "scenario"]


def scenario(
    name: str,
    seed: int,
    *,
    page_size: int = 1,
    loop: str = "overlap",
    schedule_policy: str = "late",
    biting: bool = False,
) -> Scenario:
    """The workload for the bug of that name; KeyError if there is none.

    `biting` gives a workload that shows the bug's consequence, where the usual one ends before it would. The bugs of the
    mixed chunk need the overlapped loop, as in history.
    """
    base = EngineConfig(page_size=page_size, loop=loop, schedule_policy=schedule_policy, seed=seed, bug=name)
    for builders in (tier_scenarios.BUILDERS, window_scenarios.BUILDERS):
        if name in builders:
            return Scenario(*builders[name](base, random.Random(seed)))
    builders = {**_BUILDERS, **_BITING} if biting else _BUILDERS
    return builders[name](base, random.Random(seed))


def _row_realloc(base: EngineConfig, rng: random.Random) -> Scenario:
    """`first` leaves a prefix in the cache. `victim` has two chunks; `other` matches the prefix, joins the second chunk
    and is handed the row of the first."""
    chunk = 32
    prefix = random_text(rng, 16 * rng.randint(1, 3))
    tail = rng.randint(1, 10)
    arrivals = [
        Arrival(0, "first", prefix + random_text(rng, 3), SamplingParams(1)),
        Arrival(10, "victim", random_text(rng, chunk + tail), SamplingParams(16, ignore_eos=True)),
        Arrival(10, "other", prefix + random_text(rng, rng.randint(8, 20)), SamplingParams(rng.randint(1, 6))),
    ]
    config = replace(base, rows=2, chunked_prefill_size=chunk, context_len=128, kv_tokens=512)
    return Scenario(config, arrivals, ("victim",))


def _rejected_in_mixed_batch(base: EngineConfig, rng: random.Random) -> Scenario:
    """`steady` decodes all the time; `too-long` passes the front end and is rejected by the scheduler."""
    config = replace(base, rows=4, mixed_chunk=True, context_len=128, kv_tokens=512)
    too_long = config.max_input_len + rng.randint(1, 4)
    arrivals = [
        Arrival(0, "steady", random_text(rng, rng.randint(1, 40)), SamplingParams(24, ignore_eos=True)),
        Arrival(rng.randint(2, 16), "too-long", random_text(rng, too_long), SamplingParams(1)),
        Arrival(rng.randint(2, 20), "later", random_text(rng, rng.randint(1, 40)), SamplingParams(5)),
    ]
    return Scenario(config, arrivals, ())


def _retracted_in_mixed_batch(base: EngineConfig, rng: random.Random) -> Scenario:
    """`a` and `b` decode; `retracted` is prefilled with them in one mixed batch, which takes the last free page, and is
    retracted in the next step. When all is over, four requests come at once for three rows, of which one is in the free
    list twice: two requests share it."""
    page = base.page_size
    step = rng.randint(3, 8)
    held = 16 * rng.randint(1, 2)
    prompt = 16 * rng.randint(1, 3)
    rest = SamplingParams(12, ignore_eos=True)
    arrivals = [
        Arrival(0, "a", random_text(rng, held - step + 1), rest),
        Arrival(0, "b", random_text(rng, held - step + 1), rest),
        Arrival(step, "retracted", random_text(rng, prompt), SamplingParams(12, ignore_eos=True)),
    ]
    late = tuple(f"late-{number}" for number in range(4))
    arrivals += [Arrival(100, rid, random_text(rng, 6), SamplingParams(6, ignore_eos=True)) for rid in late]
    config = replace(base, rows=3, mixed_chunk=True, context_len=128, kv_tokens=2 * held + prompt + 2 * page)
    return Scenario(config, arrivals, late)


_BUILDERS: dict[str, Builder] = {
    bugs.ROW_REALLOC: _row_realloc,
    bugs.ABORT_KEEPS_ROW: _rejected_in_mixed_batch,
    bugs.ABORT_STILL_LEAKS: _rejected_in_mixed_batch,
    bugs.ABORT_DOUBLE_RELEASE: _retracted_in_mixed_batch,
    **cache_scenarios.BUILDERS,
    **release_scenarios.BUILDERS,
}
_BITING: dict[str, Builder] = {**cache_scenarios.BITING, **release_scenarios.BITING}
