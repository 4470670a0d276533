"""Workloads that provoke the bugs of handing out and giving back: rows, states, pages and slots of a batch."""

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


def _decodes_with_padding(base: EngineConfig, rng: random.Random) -> Scenario:
    """`victim` comes first and gets the first state; its decodes run with padding lanes."""
    arrivals = [
        Arrival(0, "victim", random_text(rng, rng.randint(8, 40)), _steady(16)),
        Arrival(3, "other", random_text(rng, rng.randint(8, 40)), _steady(4)),
    ]
    return Scenario(replace(base, hybrid=True, context_len=96, kv_tokens=512), arrivals, ("victim",))


def _two_end_together(base: EngineConfig, rng: random.Random) -> Scenario:
    """`a` and `b` end in one step, then `c` and `d` begin in one."""
    length, lasts = rng.randint(4, 20), rng.randint(2, 6)
    arrivals = [Arrival(0, rid, random_text(rng, length), _steady(lasts)) for rid in "ab"]
    arrivals += [Arrival(40, rid, random_text(rng, length), _steady(12)) for rid in "cd"]
    return Scenario(replace(base, rows=2, context_len=96, kv_tokens=512), arrivals, ("c", "d"))


def _ends_inside_a_page(base: EngineConfig, rng: random.Random) -> Scenario:
    """`first` ends with a token in flight whose slot is in the page of the last one computed."""
    length = 16 + rng.randint(2, 6)
    arrivals = [Arrival(0, "first", random_text(rng, length), _steady(rng.randint(2, 8)))]
    return Scenario(replace(base, rows=4, context_len=64, kv_tokens=512), arrivals)


def _page_handed_out_twice(base: EngineConfig, rng: random.Random) -> Scenario:
    """After `first`, `late` ones take all pages that are free."""
    case = _ends_inside_a_page(base, rng)
    late = [Arrival(30, rid, random_text(rng, 20), _steady(12)) for rid in ("late-0", "late-1")]
    config = replace(case.config, context_len=64, kv_tokens=64)
    return Scenario(config, [*case.arrivals, *late], ("late-0", "late-1"))


def _rejected_before_a_longer_one(base: EngineConfig, rng: random.Random) -> Scenario:
    """`steady` decodes; `too-long`, to be rejected, and `victim`, a long prompt, join in one batch."""
    config = replace(base, rows=5, mixed_chunk=True, context_len=128, kv_tokens=512)
    step = rng.randint(2, 8)
    arrivals = [
        Arrival(0, "steady", random_text(rng, 5), _steady(30)),
        Arrival(step, "too-long", random_text(rng, 125), _steady(1)),
        Arrival(step, "victim", random_text(rng, 33), _steady(rng.randint(1, 4))),
    ]
    return Scenario(config, arrivals, ("victim",))


def _freed_slot_handed_out(base: EngineConfig, rng: random.Random) -> Scenario:
    """As `_rejected_before_a_longer_one`, with three that are rejected; what comes `late` takes all slots that are
    free."""
    case = _rejected_before_a_longer_one(base, rng)
    steady, too_long, victim = case.arrivals
    rejected = [replace(too_long, rid=f"too-long-{n}") for n in range(3)]
    late = Arrival(victim.step + 2, "late", random_text(rng, 60 if base.page_size == 1 else 16), _steady(40))
    arrivals = [steady, *rejected, replace(victim, sampling=_steady(40)), late]
    return replace(case, config=replace(case.config, kv_tokens=128), arrivals=arrivals)


def _second_turn(base: EngineConfig, rng: random.Random) -> Scenario:
    """The first turn ends at a page's end, with slots beyond it; the second goes on."""
    new = rng.randint(2, 8)
    first = random_text(rng, 16 * rng.randint(2, 3) + 1 - new)
    arrivals = [
        Arrival(0, "first", first, _steady(new), session="s"),
        Arrival(30, "second", random_text(rng, rng.randint(2, 10)), _steady(1), session="s"),
    ]
    return Scenario(replace(base, context_len=96, kv_tokens=512), arrivals)


def _turn_after_turn(base: EngineConfig, rng: random.Random) -> Scenario:
    """Eight sessions have two turns each; then comes a request that needs almost all slots."""
    arrivals = []
    for number in range(8):
        new = rng.randint(2, 8)
        for turn, length in enumerate((16 + 1 - new, rng.randint(2, 8))):
            step, rid = 24 * number + 12 * turn, f"r{number}-{turn}"
            arrivals.append(Arrival(step, rid, random_text(rng, length), _steady(new), session=f"s{number}"))
    arrivals.append(Arrival(200, "late", random_text(rng, 88), _steady(8)))
    return Scenario(replace(base, context_len=96, kv_tokens=96), arrivals)


BUILDERS: dict[str, Builder] = {
    bugs.PADDING_STATE: _decodes_with_padding,
    bugs.ROW_TWICE: _two_end_together,
    bugs.SESSION_TAIL: _second_turn,
    bugs.TWO_FREES: _ends_inside_a_page,
    bugs.WRONG_SLOT: _rejected_before_a_longer_one,
}
BITING: dict[str, Builder] = {
    bugs.SESSION_TAIL: _turn_after_turn,
    bugs.TWO_FREES: _page_handed_out_twice,
    bugs.WRONG_SLOT: _freed_slot_handed_out,
}
