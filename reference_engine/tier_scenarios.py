"""Workloads that provoke the bugs of the host tier, of storage, of the decode side and of frees in groups."""

from __future__ import annotations

import random
from dataclasses import replace

from . import bugs
from .config import EngineConfig
from .request import SamplingParams
from .scenario import Builder, Scenario
from .workload import Arrival, random_text


def _steady(tokens: int) -> SamplingParams:
    return SamplingParams(tokens, ignore_eos=True)


def _backed_up(base: EngineConfig, rng: random.Random) -> Scenario:
    """One request, whose node is written through."""
    arrivals = [Arrival(0, "only", random_text(rng, rng.randint(20, 40)), _steady(1))]
    return Scenario(replace(base, rows=2, context_len=128, kv_tokens=128, host_tokens=128), arrivals)


def _backups_fill_the_cache(base: EngineConfig, rng: random.Random) -> Scenario:
    """Prompts that stay locked fill the cache; the last one finds nothing that may be evicted."""
    arrivals = [Arrival(4 * n, f"r{n}", random_text(rng, rng.randint(20, 24)), _steady(1)) for n in range(5)]
    return Scenario(replace(base, rows=2, context_len=64, kv_tokens=64, host_tokens=256), arrivals)


def _evicted_and_loaded(base: EngineConfig, rng: random.Random) -> Scenario:
    """`first` is cached, `second` takes its slots, `again` finds the prompt of `first` in the host tier only."""
    prompt = random_text(rng, rng.randint(36, 40))
    arrivals = [
        Arrival(0, "first", prompt, _steady(1)),
        Arrival(10, "second", random_text(rng, rng.randint(44, 47)), _steady(2)),
        Arrival(30, "again", prompt + random_text(rng, rng.randint(1, 8)), _steady(12)),
    ]
    config = replace(base, rows=2, context_len=64, kv_tokens=64, host_tokens=256, chunked_prefill_size=64)
    return Scenario(config, arrivals, ("again",))


def _written_back(base: EngineConfig, rng: random.Random) -> Scenario:
    """The same with write-back: the eviction for `second` copies the node of `first`. `second` is aborted in its first
    batch and leaves nothing that would be evicted for `again`."""
    case = _evicted_and_loaded(base, rng)
    first, second, again = case.arrivals
    return replace(
        case, config=replace(case.config, host_write="back"), arrivals=[first, replace(second, abort_at=11), again]
    )


def _chunked(base: EngineConfig, rng: random.Random) -> Scenario:
    """The same in chunks: the first chunk of `first` is backed up while the forward has yet to compute it. `second` has
    one chunk only."""
    case = _evicted_and_loaded(base, rng)
    first, second, again = case.arrivals
    second = replace(second, prompt=random_text(rng, rng.randint(28, 31)), sampling=_steady(8))
    return replace(case, config=replace(case.config, chunked_prefill_size=32), arrivals=[first, second, again])


def _loaded_before_it_landed(base: EngineConfig, rng: random.Random) -> Scenario:
    """The copies run late."""
    return _evicted_and_loaded(replace(base, schedule_policy="starve:copy"), rng)


def _loaded_at_once(base: EngineConfig, rng: random.Random) -> Scenario:
    """`again` waits for the slots of `second`, which is aborted while a step of it is in flight: the load of `again`
    gets the slot that this step writes."""
    case = _evicted_and_loaded(base, rng)
    first, second, again = case.arrivals
    step = 10 + rng.randint(4, 6)
    second = replace(second, sampling=_steady(14), abort_at=step)
    config = replace(case.config, schedule_policy="starve:fwd", loop="overlap")
    return replace(case, config=config, arrivals=[first, second, replace(again, step=step)])


def _loaded_over_a_prefill(base: EngineConfig, rng: random.Random) -> Scenario:
    """The same, where the step in flight is the prefill of `second`, which writes most of what is loaded."""
    case = _loaded_at_once(base, rng)
    first, second, again = case.arrivals
    return replace(case, arrivals=[first, replace(second, abort_at=11), replace(again, step=11)])


def _prefetched(base: EngineConfig, rng: random.Random) -> Scenario:
    """The prefetch for `only` finds nothing: all of it is tail."""
    case = _backed_up(base, rng)
    return replace(case, config=replace(case.config, storage=True, host_tokens=256))


def _two_nodes_share_host_slots(base: EngineConfig, rng: random.Random) -> Scenario:
    """`first` and `second` are backed up into slots that the tail of the prefetch for `first` left twice in the free
    list; `again` loads what `first` left there."""
    case = _evicted_and_loaded(base, rng)
    first, second, again = case.arrivals
    second = replace(second, prompt=second.prompt[:44])
    config = replace(case.config, storage=True, host_tokens=64 if base.page_size == 1 else 32)
    return replace(case, config=config, arrivals=[first, second, again])


def _aborted_in_transfer(base: EngineConfig, rng: random.Random) -> Scenario:
    """`steady` decodes; `gone` is aborted while its keys and values are on their way, and `steady` gets its slots."""
    decodes, tokens = (84, 96) if base.page_size == 16 else (64, 76)
    arrivals = [
        Arrival(0, "steady", random_text(rng, rng.randint(8, 10)), _steady(decodes)),
        Arrival(3, "gone", random_text(rng, rng.randint(36, 40)), _steady(4), abort_at=5),
    ]
    return Scenario(replace(base, rows=2, prealloc_rows=2, context_len=96, kv_tokens=tokens), arrivals, ("steady",))


def _landing_late(base: EngineConfig, rng: random.Random) -> Scenario:
    """The transfer lands when `steady` has written the slots."""
    return _aborted_in_transfer(replace(base, schedule_policy="slow:nic"), rng)


def _dropped_in_transfer(base: EngineConfig, rng: random.Random) -> Scenario:
    """As `_aborted_in_transfer`, with room for both."""
    case = _aborted_in_transfer(base, rng)
    return replace(case, config=replace(case.config, kv_tokens=192))


def _running_in_transfer(base: EngineConfig, rng: random.Random) -> Scenario:
    """One request, which begins to decode at once."""
    arrivals = [Arrival(0, "early", random_text(rng, rng.randint(20, 40)), _steady(12))]
    return Scenario(replace(base, rows=2, prealloc_rows=2, context_len=96, kv_tokens=192), arrivals, ("early",))


def _running_before_it_landed(base: EngineConfig, rng: random.Random) -> Scenario:
    """The same, and the transfer lands late."""
    return _running_in_transfer(replace(base, schedule_policy="starve:nic"), rng)


def _ending_together(base: EngineConfig, rng: random.Random) -> Scenario:
    """Two requests decode and end in one batch."""
    sampling = _steady(rng.randint(2, 8))
    arrivals = [Arrival(0, rid, random_text(rng, rng.randint(5, 30)), sampling) for rid in ("one", "two")]
    return Scenario(replace(base, rows=2, context_len=96, kv_tokens=192, free_groups=True), arrivals)


def _ending_together_again_and_again(base: EngineConfig, rng: random.Random) -> Scenario:
    """Pairs of requests end in one batch, then comes one that needs most of the slots."""
    arrivals = [Arrival(0, f"r{n}", random_text(rng, 10), _steady(4)) for n in range(24)]
    arrivals.append(Arrival(120, "long", random_text(rng, 52), _steady(4)))
    return Scenario(replace(base, rows=2, context_len=64, kv_tokens=64, free_groups=True), arrivals)


BUILDERS: dict[str, Builder] = {
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
BITING: dict[str, Builder] = {
    bugs.NEVER_UNLOCKS: _backups_fill_the_cache,
    bugs.LOAD_NOT_AWAITED: _loaded_before_it_landed,
    bugs.LOAD_NOT_FENCED: _loaded_over_a_prefill,
    bugs.PREFETCH_TAIL: _two_nodes_share_host_slots,
    bugs.ABORT_FREES: _landing_late,
    bugs.ABORT_LEAKS: _aborted_in_transfer,
    bugs.DECODE_BEFORE_END: _running_before_it_landed,
    bugs.NESTED_GROUP: _ending_together_again_and_again,
}
