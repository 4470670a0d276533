"""Workloads that provoke the bugs of the host tier, of storage, of the decode side and of frees in groups.

Each builder gives the engine's configuration, what arrives, and the victims.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from . import bugs
from .config import EngineConfig
from .request import SamplingParams
from .workload import Arrival, random_text

Parts = tuple[EngineConfig, list[Arrival], tuple[str, ...]]


def _backed_up(base: EngineConfig, rng: random.Random) -> Parts:
    """One request, whose node is written through."""
    arrivals = [Arrival(0, "only", random_text(rng, rng.randint(20, 40)), SamplingParams(1))]
    return replace(base, rows=2, context_len=128, kv_tokens=128, host_tokens=128), arrivals, ()


def _evicted_and_loaded(base: EngineConfig, rng: random.Random) -> Parts:
    """`first` is cached, `second` takes its slots, `again` finds the prompt of `first` in the host tier only."""
    prompt = random_text(rng, rng.randint(36, 40))
    arrivals = [
        Arrival(0, "first", prompt, SamplingParams(1)),
        Arrival(10, "second", random_text(rng, rng.randint(44, 47)), SamplingParams(2, ignore_eos=True)),
        Arrival(30, "again", prompt + random_text(rng, rng.randint(1, 8)), SamplingParams(12, ignore_eos=True)),
    ]
    config = replace(base, rows=2, context_len=64, kv_tokens=64, host_tokens=256, chunked_prefill_size=64)
    return config, arrivals, ("again",)


def _written_back(base: EngineConfig, rng: random.Random) -> Parts:
    """The same with write-back: the eviction for `second` copies the node of `first`."""
    config, arrivals, victims = _evicted_and_loaded(base, rng)
    return replace(config, host_write="back"), arrivals, victims


def _chunked(base: EngineConfig, rng: random.Random) -> Parts:
    """The same in chunks: the first chunk is backed up while the forward has yet to compute it."""
    config, arrivals, victims = _evicted_and_loaded(base, rng)
    return replace(config, chunked_prefill_size=32), arrivals, victims


def _loaded_at_once(base: EngineConfig, rng: random.Random) -> Parts:
    """`again` waits for the slots of `second`, which is aborted while a step of it is in flight: the load of `again`
    gets the slot that this step writes."""
    config, [first, second, again], victims = _evicted_and_loaded(base, rng)
    step = 10 + rng.randint(4, 6)
    second = replace(second, sampling=SamplingParams(14, ignore_eos=True), abort_at=step)
    config = replace(config, schedule_policy="starve:fwd", loop="overlap")
    return config, [first, second, replace(again, step=step)], victims


def _prefetched(base: EngineConfig, rng: random.Random) -> Parts:
    """The prefetch for `only` finds nothing: all of it is tail."""
    config, arrivals, _ = _backed_up(base, rng)
    return replace(config, storage=True, host_tokens=256), arrivals, ()


def _aborted_in_transfer(base: EngineConfig, rng: random.Random) -> Parts:
    """`steady` decodes; `gone` is aborted while its keys and values are on their way, and `steady` gets its slots."""
    arrivals = [
        Arrival(0, "steady", random_text(rng, rng.randint(8, 10)), SamplingParams(60, ignore_eos=True)),
        Arrival(3, "gone", random_text(rng, rng.randint(36, 40)), SamplingParams(4), abort_at=5),
    ]
    tokens = 96 if base.page_size == 16 else 72
    return replace(base, rows=2, prealloc_rows=2, context_len=96, kv_tokens=tokens), arrivals, ("steady",)


def _dropped_in_transfer(base: EngineConfig, rng: random.Random) -> Parts:
    """The same, with room for both."""
    config, arrivals, _ = _aborted_in_transfer(base, rng)
    return replace(config, kv_tokens=192), arrivals, ()


def _running_in_transfer(base: EngineConfig, rng: random.Random) -> Parts:
    """One request, which begins to decode at once."""
    sampling = SamplingParams(12, ignore_eos=True)
    arrivals = [Arrival(0, "early", random_text(rng, rng.randint(20, 40)), sampling)]
    return replace(base, rows=2, prealloc_rows=2, context_len=96, kv_tokens=192), arrivals, ("early",)


def _ending_together(base: EngineConfig, rng: random.Random) -> Parts:
    """Two requests decode and end in one batch."""
    sampling = SamplingParams(rng.randint(2, 8), ignore_eos=True)
    arrivals = [Arrival(0, rid, random_text(rng, rng.randint(5, 30)), sampling) for rid in ("one", "two")]
    return replace(base, rows=2, context_len=96, kv_tokens=192, free_groups=True), arrivals, ()


BUILDERS: dict[str, Callable[[EngineConfig, random.Random], Parts]] = {
    bugs.NEVER_UNLOCKS: _backed_up,
    bugs.EVICT_UNDER_WRITE_BACK: _written_back,
    bugs.BACKUP_NOT_ORDERED: _chunked,
    bugs.LOAD_NOT_AWAITED: _evicted_and_loaded,
    bugs.LOAD_NOT_FENCED: _loaded_at_once,
    bugs.PREFETCH_TAIL: _prefetched,
    bugs.ABORT_FREES: _aborted_in_transfer,
    bugs.ABORT_LEAKS: _dropped_in_transfer,
    bugs.DECODE_BEFORE_END: _running_in_transfer,
    bugs.NESTED_GROUP: _ending_together,
}
