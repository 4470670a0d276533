"""Workloads that provoke one historical bug each, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
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

    `biting` gives a workload and a schedule that show the bug's consequence, where the usual ones do not. The bugs of
    the mixed chunk need the overlapped loop, as in history.
    """
    base = EngineConfig(page_size=page_size, loop=loop, schedule_policy=schedule_policy, seed=seed, bug=name)
    builders = {**_BUILDERS, **_BITING} if biting else _BUILDERS
    return builders[name](base, random.Random(seed))


def _steady(tokens: int) -> SamplingParams:
    return SamplingParams(tokens, ignore_eos=True)


def _arrivals(rng: random.Random, step: int, count: int, length: int, tokens: int) -> list[Arrival]:
    """`count` requests at once, `late-0` and so on."""
    return [Arrival(step, f"late-{n}", random_text(rng, length), _steady(tokens)) for n in range(count)]


def _and_then(builder: Builder, late: Callable[[random.Random], list[Arrival]]) -> Builder:
    """The builder's workload, and what comes late, when all of it is over; that is who the consequence shows on."""

    def build(base: EngineConfig, rng: random.Random) -> Scenario:
        case = builder(base, rng)
        arrivals = late(rng)
        return replace(case, arrivals=case.arrivals + arrivals, victims=tuple(arrival.rid for arrival in arrivals))

    return build


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
    return Scenario(config, arrivals)


def _rejected_one_after_the_other(base: EngineConfig, rng: random.Random) -> Scenario:
    """While `steady` decodes, requests are rejected in mixed batches; each costs a row, or a page."""
    config = replace(base, rows=3, mixed_chunk=True, context_len=128, kv_tokens=128)
    arrivals = [Arrival(0, "steady", random_text(rng, rng.randint(1, 10)), _steady(40))]
    for number in range(6):
        arrivals.append(Arrival(4 + 4 * number, f"too-long-{number}", random_text(rng, 125), _steady(1)))
    return Scenario(config, arrivals)


def _retracted_in_mixed_batch(base: EngineConfig, rng: random.Random) -> Scenario:
    """`a` and `b` decode; `retracted` is prefilled with them in one mixed batch, which takes the last free page, and is
    retracted in the next step."""
    page = base.page_size
    step = rng.randint(3, 8)
    held = 16 * rng.randint(1, 2)
    prompt = 16 * rng.randint(1, 3)
    rest = SamplingParams(step + 8, ignore_eos=True)
    arrivals = [
        Arrival(0, "a", random_text(rng, held - step + 1), rest),
        Arrival(0, "b", random_text(rng, held - step + 1), rest),
        Arrival(step, "retracted", random_text(rng, prompt), SamplingParams(12, ignore_eos=True)),
    ]
    config = replace(base, rows=4, mixed_chunk=True, context_len=128, kv_tokens=2 * held + prompt + 2 * page)
    return Scenario(config, arrivals)


def _profiled(base: EngineConfig, rng: random.Random) -> Scenario:
    """The longest profiled prefill has two chunks, of which the first stands in the cache when it gives back what it
    used."""
    hybrid = rng.random() < 0.5
    chunk = 16 * rng.randint(2, 4)
    config = replace(
        base,
        rows=2,
        context_len=256,
        kv_tokens=3 * chunk,
        chunked_prefill_size=chunk,
        hybrid=hybrid,
        profile_sizes=1 if hybrid else 2,
        profile_chunks=2,
    )
    short = Arrival(0, "short", random_text(rng, rng.randint(4, chunk)), SamplingParams(4))
    return Scenario(config, [short])


def _needs_profiled_pages(base: EngineConfig, rng: random.Random) -> Scenario:
    """Then comes a request that needs the pages of what was profiled."""
    case = _profiled(base, rng)
    length = 2 * case.config.chunked_prefill_size + rng.randint(8, 20)
    return replace(case, arrivals=[*case.arrivals, Arrival(40, "long", random_text(rng, length), SamplingParams(4))])


def _retracted_once(base: EngineConfig, rng: random.Random) -> Scenario:
    """`first` and `victim` decode until `victim` is retracted; it goes on when `first` is done."""
    arrivals = [
        Arrival(0, rid, random_text(rng, 16 + rng.randint(0, 8)), SamplingParams(44, ignore_eos=True))
        for rid in ("first", "victim")
    ]
    return Scenario(replace(base, rows=2, context_len=128, kv_tokens=96), arrivals)


def _retracted_when_sparse(base: EngineConfig, rng: random.Random) -> Scenario:
    """The same with sparse attention."""
    return _retracted_once(replace(base, sparse=True), rng)


def _retracted_one_after_the_other(base: EngineConfig, rng: random.Random) -> Scenario:
    """Of three requests, two are retracted one after the other."""
    arrivals = [Arrival(0, rid, random_text(rng, 16 + rng.randint(0, 8)), _steady(44)) for rid in "abc"]
    return Scenario(replace(base, rows=3, context_len=128, kv_tokens=96, sparse=True), arrivals)


def _equal_prompts(base: EngineConfig, rng: random.Random) -> Scenario:
    """`first` and `victim` are prefilled in one batch with the same prompt, long enough for a tracked state."""
    prompt = random_text(rng, rng.randint(17, 60))
    arrivals = [
        Arrival(0, rid, prompt, SamplingParams(rng.randint(2, 9), ignore_eos=True)) for rid in ("first", "victim")
    ]
    return Scenario(replace(base, hybrid=True, chunked_prefill_size=128), arrivals)


def _cached_prompt(base: EngineConfig, rng: random.Random) -> Scenario:
    """`victim` has the prompt of `first`, whole pages, when all of it is in the cache."""
    prompt = random_text(rng, 16 * rng.randint(1, 4))
    arrivals = [
        Arrival(0, "first", prompt, SamplingParams(3, ignore_eos=True)),
        Arrival(10, "victim", prompt, SamplingParams(rng.randint(2, 9), ignore_eos=True)),
    ]
    return Scenario(base, arrivals)


def _first_in_its_state(base: EngineConfig, rng: random.Random) -> Scenario:
    """One request, whose state nobody has cleared."""
    arrival = Arrival(0, "victim", random_text(rng, rng.randint(2, 40)), SamplingParams(rng.randint(2, 9)))
    return Scenario(replace(base, hybrid=True), [arrival], ("victim",))


def _donor(base: EngineConfig, rng: random.Random) -> Scenario:
    """`donor` leaves its tracked state in the cache and gives its slot back."""
    prompt = random_text(rng, 16 * rng.randint(1, 3) + 1)
    donor = Arrival(0, "donor", prompt, SamplingParams(rng.randint(2, 6), ignore_eos=True))
    return Scenario(replace(base, hybrid=True, rows=1, cached_states=1, context_len=128), [donor])


def _begins_from_the_donated(base: EngineConfig, rng: random.Random) -> Scenario:
    """Then come others, who are given the slot, and victims, which begin from it."""
    case = _donor(base, rng)
    prompt = case.arrivals[0].prompt[:-1]
    others = [Arrival(20 + 10 * n, f"other-{n}", random_text(rng, 12), SamplingParams(3)) for n in range(5)]
    victims = ("victim-0", "victim-1", "victim-2")
    late = [Arrival(80 + 10 * n, rid, prompt + random_text(rng, 1), _steady(6)) for n, rid in enumerate(victims)]
    return replace(case, arrivals=[*case.arrivals, *others, *late], victims=victims)


def _aborted_in_the_queue(base: EngineConfig, rng: random.Random) -> Scenario:
    """`first` has most token slots; `aborted` is matched, has its states, waits for room, and is aborted."""
    step = rng.randint(1, 5)
    arrivals = [
        Arrival(0, "first", random_text(rng, 48), SamplingParams(30, ignore_eos=True)),
        Arrival(step, "aborted", random_text(rng, 60), SamplingParams(4), abort_at=step + rng.randint(1, 12)),
    ]
    return Scenario(replace(base, hybrid=True, rows=2, context_len=128, kv_tokens=96), arrivals)


def _aborted_one_after_the_other(base: EngineConfig, rng: random.Random) -> Scenario:
    """While `first` has most token slots, requests are aborted in the queue; each costs three states."""
    arrivals = [Arrival(0, "first", random_text(rng, 48), _steady(30))]
    for number in range(4):
        step = 3 + 6 * number
        arrivals.append(Arrival(step, f"aborted-{number}", random_text(rng, 60), _steady(4), abort_at=step + 3))
    return Scenario(replace(base, hybrid=True, rows=3, context_len=128, kv_tokens=96, cached_states=1), arrivals)


_BUILDERS: dict[str, Builder] = {
    bugs.ROW_REALLOC: _row_realloc,
    bugs.ABORT_KEEPS_ROW: _rejected_in_mixed_batch,
    bugs.ABORT_STILL_LEAKS: _rejected_in_mixed_batch,
    bugs.ABORT_DOUBLE_RELEASE: _retracted_in_mixed_batch,
    bugs.PROFILING_BY_HAND: _profiled,
    bugs.REUSE_FROM_LENGTH: _retracted_once,
    bugs.STAYS_REGISTERED: _retracted_when_sparse,
    bugs.CAPTURE_BEFORE_PUBLICATION: _equal_prompts,
    bugs.PUBLICATION_REMAPS: _cached_prompt,
    bugs.STATE_NOT_CLEARED: _first_in_its_state,
    bugs.DONATED_NOT_REPLACED: _donor,
    bugs.STATE_WITH_ROW: _aborted_in_the_queue,
    **cache_scenarios.BUILDERS,
    **release_scenarios.BUILDERS,
    **tier_scenarios.BUILDERS,
    **window_scenarios.BUILDERS,
}
_BITING: dict[str, Builder] = {
    # Requests for all rows, of which one is left; and one that needs all slots.
    bugs.ABORT_KEEPS_ROW: _and_then(_rejected_one_after_the_other, lambda rng: _arrivals(rng, 60, 9, 4, 36)),
    bugs.ABORT_STILL_LEAKS: _and_then(_rejected_one_after_the_other, lambda rng: _arrivals(rng, 60, 1, 120, 8)),
    # One request more than rows that are free, of which one is in the list twice.
    bugs.ABORT_DOUBLE_RELEASE: _and_then(_retracted_in_mixed_batch, lambda rng: _arrivals(rng, 100, 5, 6, 6)),
    bugs.PROFILING_BY_HAND: _needs_profiled_pages,
    bugs.REUSE_FROM_LENGTH: _and_then(_retracted_once, lambda rng: _arrivals(rng, 200, 3, 6, 6)),
    bugs.DONATED_NOT_REPLACED: _begins_from_the_donated,
    # Requests for all buffers, of which those of one row are left.
    bugs.STAYS_REGISTERED: _and_then(_retracted_one_after_the_other, lambda rng: _arrivals(rng, 160, 9, 4, 30)),
    # Requests for all states, of which those of one are left.
    bugs.STATE_WITH_ROW: _and_then(_aborted_one_after_the_other, lambda rng: _arrivals(rng, 60, 9, 4, 36)),
    **cache_scenarios.BITING,
    **release_scenarios.BITING,
    **tier_scenarios.BITING,
    **window_scenarios.BITING,
}
