"""Workloads that provoke the bugs of the prefix cache: its locks, its eviction and its totals."""

from __future__ import annotations

import random
from dataclasses import replace

from . import bugs
from .config import EngineConfig
from .oracle import Oracle
from .request import SamplingParams
from .scenario import Builder, Scenario
from .workload import Arrival, random_text


def _steady(tokens: int) -> SamplingParams:
    return SamplingParams(tokens, ignore_eos=True)


def _flush_while_it_runs(base: EngineConfig, rng: random.Random) -> Scenario:
    """`victim` is in the cache and runs when the cache is flushed; it is aborted before its slots are handed out."""
    prompt = random_text(rng, rng.randint(32, 60))
    arrivals = [Arrival(0, "victim", prompt, _steady(40), abort_at=rng.randint(12, 20))]
    return Scenario(replace(base, context_len=128, kv_tokens=512), arrivals, flush_at=rng.randint(5, 9))


def _pressure_while_it_runs(base: EngineConfig, rng: random.Random) -> Scenario:
    """`other` leaves a prefix that nobody uses; `late` needs room, for which `victim`'s older prefix goes."""
    arrivals = [
        Arrival(0, "victim", random_text(rng, 32), _steady(48)),
        Arrival(4, "other", random_text(rng, 48), _steady(1)),
        Arrival(28, "late", random_text(rng, 40), _steady(2)),
    ]
    return Scenario(replace(base, context_len=128, kv_tokens=144), arrivals, ("victim",))


def _aborted(base: EngineConfig, rng: random.Random) -> Scenario:
    """`gone` is aborted while it decodes, after its prompt went into the cache."""
    arrivals = [
        Arrival(0, "gone", random_text(rng, rng.randint(33, 60)), _steady(40), abort_at=rng.randint(4, 20)),
        Arrival(rng.randint(0, 30), "other", random_text(rng, rng.randint(1, 30)), _steady(4)),
    ]
    return Scenario(replace(base, context_len=128, kv_tokens=512), arrivals)


def _prefix_of_an_aborted_one(base: EngineConfig, rng: random.Random) -> Scenario:
    """`gone` leaves a prefix; `victim` matches it, and `late`, admitted in the same batch, needs room."""
    prefix = random_text(rng, 48)
    arrivals = [
        Arrival(0, "gone", prefix, _steady(20), abort_at=6),
        Arrival(20, "victim", prefix + random_text(rng, 8), _steady(8)),
        Arrival(20, "late", random_text(rng, 45), _steady(2)),
    ]
    config = replace(base, context_len=96, kv_tokens=96, chunked_prefill_size=128)
    return Scenario(config, arrivals, ("victim",))


def _no_room_left(base: EngineConfig, rng: random.Random) -> Scenario:
    """`gone` leaves a prefix that stays locked; `waits` fits only if it can be evicted."""
    arrivals = [
        Arrival(0, "gone", random_text(rng, 48), _steady(20), abort_at=6),
        Arrival(12, "waits", random_text(rng, 60), _steady(2)),
    ]
    return Scenario(replace(base, context_len=96, kv_tokens=96), arrivals)


def _matched_under_pressure(base: EngineConfig, rng: random.Random) -> Scenario:
    """`first` leaves a prefix, `running` fills the pool and ends soon; `victim` matches the prefix and needs room."""
    prefix = random_text(rng, 48)
    arrivals = [
        Arrival(0, "first", prefix, _steady(1)),
        Arrival(3, "running", random_text(rng, 60), _steady(7)),
        Arrival(10, "victim", prefix + random_text(rng, 48), _steady(8)),
    ]
    return Scenario(replace(base, context_len=144, kv_tokens=144), arrivals, ("victim",))


def _matched_and_aborted(base: EngineConfig, rng: random.Random) -> Scenario:
    """`first` leaves a prefix; `large` and `victim` are admitted in one batch, and `victim`, which matches the prefix,
    gets all that is left, the prefix's slots too. It is aborted before its first token is seen."""
    prefix = random_text(rng, 48)
    arrivals = [
        Arrival(0, "first", prefix, _steady(1)),
        Arrival(8, "large", random_text(rng, 64), _steady(rng.randint(2, 8))),
        Arrival(8, "victim", prefix + random_text(rng, 64), _steady(2), abort_at=9),
    ]
    config = replace(base, context_len=128, kv_tokens=128, chunked_prefill_size=256)
    return Scenario(config, arrivals)


def _one_split(base: EngineConfig, rng: random.Random) -> Scenario:
    """`second` shares the first 32 tokens of what `first` left."""
    prompt = random_text(rng, 48)
    arrivals = [
        Arrival(0, "first", prompt, _steady(1)),
        Arrival(5, "second", prompt[:32] + random_text(rng, rng.randint(8, 20)), _steady(rng.randint(1, 6))),
    ]
    return Scenario(replace(base, context_len=96, kv_tokens=512), arrivals)


def _counts_on_too_much(base: EngineConfig, rng: random.Random) -> Scenario:
    """After the split, `running` holds slots and `late` needs more than the rest."""
    case = _one_split(base, rng)
    arrivals = [
        *case.arrivals,
        Arrival(30, "running", random_text(rng, 40), _steady(40)),
        Arrival(31, "late", random_text(rng, 60), _steady(2)),
    ]
    return replace(case, config=replace(case.config, kv_tokens=96), arrivals=arrivals)


def _one_prompt_two_adapters(base: EngineConfig, rng: random.Random) -> Scenario:
    """`first` leaves a prefix; `victim` has the same prompt and an adapter."""
    prompt = random_text(rng, rng.randint(33, 60))
    arrivals = [
        Arrival(0, "first", prompt, _steady(1)),
        Arrival(8, "victim", prompt + random_text(rng, 4), _steady(8), adapter=f"adapter-{rng.randint(0, 9)}"),
    ]
    return Scenario(replace(base, context_len=96, kv_tokens=512), arrivals, ("victim",))


def _evicted_on_every_rank(base: EngineConfig, rng: random.Random) -> Scenario:
    """Four prefixes of one length fill the cache; `late` needs the room of one."""
    arrivals = [Arrival(5 * n, f"prefix-{n}", random_text(rng, 32), _steady(1)) for n in range(4)]
    arrivals.append(Arrival(30, "late", random_text(rng, rng.randint(28, 36)), _steady(4)))
    return Scenario(replace(base, context_len=96, kv_tokens=144), arrivals)


def _matched_on_one_rank(base: EngineConfig, rng: random.Random) -> Scenario:
    """Then each of the four prefixes is asked for again."""
    case = _evicted_on_every_rank(base, rng)
    again = [
        Arrival(50 + 8 * n, f"again-{n}", arrival.prompt + random_text(rng, 4), _steady(2))
        for n, arrival in enumerate(case.arrivals[:4])
    ]
    return replace(case, arrivals=[*case.arrivals, *again])


def _one_block(base: EngineConfig, rng: random.Random) -> Scenario:
    """`first` generates one block, which fills a page, and is over."""
    arrivals = [Arrival(0, "first", random_text(rng, 16 * rng.randint(1, 3) + 7), _steady(1 + 12))]
    config = replace(base, context_len=96, kv_tokens=512, block_size=12, refine_steps=4)
    return Scenario(config, arrivals)


def _matches_the_unfinished(base: EngineConfig, rng: random.Random) -> Scenario:
    """`victim` has the text that `first`'s block was after one step as its prompt."""
    case = _one_block(base, rng)
    [first] = case.arrivals
    once = Oracle(base.model_seed).refine(list(first.prompt), first.sampling, case.config.block_size, 1)
    prompt = (*first.prompt, *once[: case.config.block_size], *random_text(rng, 5))
    victim = Arrival(20, "victim", prompt, _steady(1 + 3 * 12))
    return replace(case, config=replace(case.config, context_len=128), arrivals=[first, victim], victims=("victim",))


BUILDERS: dict[str, Builder] = {
    bugs.EVICTS_LOCKED: _flush_while_it_runs,
    bugs.UNLOCKS_TWICE: _aborted,
    bugs.KEEPS_LOCK: _aborted,
    bugs.LATE_LOCK: _matched_and_aborted,
    bugs.ADAPTER_NOT_IN_KEY: _one_prompt_two_adapters,
    bugs.RANK_ORDER: _evicted_on_every_rank,
    bugs.TWO_KEYS: _one_block,
    bugs.EVICTABLE_DRIFTS: _one_split,
}
BITING: dict[str, Builder] = {
    bugs.EVICTS_LOCKED: _pressure_while_it_runs,
    bugs.UNLOCKS_TWICE: _prefix_of_an_aborted_one,
    bugs.KEEPS_LOCK: _no_room_left,
    bugs.LATE_LOCK: _matched_under_pressure,
    bugs.RANK_ORDER: _matched_on_one_rank,
    bugs.TWO_KEYS: _matches_the_unfinished,
    bugs.EVICTABLE_DRIFTS: _counts_on_too_much,
}
