"""Random engines with several features at once, random workloads for them, and their right answers."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache

from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.policies import POLICY_NAMES
from kvsan.reference_engine.request import Finish
from kvsan.reference_engine.workload import Answer, Arrival, random_workload

CONTEXT = 160
SESSIONS = ("s0", "s1", "s2")


@dataclass(frozen=True)
class Case:
    """An engine without a bug, and what it is given."""

    config: EngineConfig
    arrivals: list[Arrival]
    flush_at: int | None


def random_case(seed: int, count: int = 24) -> Case:
    """An engine with random features and `count` requests for it, some of which are turns of sessions, have adapters or
    priorities, or are aborted."""
    rng = random.Random(seed)
    config = random_config(rng)
    with_sessions, with_adapters = rng.random() < 0.4, rng.random() < 0.4
    priorities = rng.choice(((0,), (0, 0, 1, 5)))
    spacing = rng.choice((1, 1, 3))
    arrivals = []
    workload = random_workload(
        seed, count, context_len=CONTEXT, max_new=rng.choice((8, 12, 30)), abort_share=rng.choice((0.0, 0.15, 0.4))
    )
    for arrival in workload:
        session = rng.choice(SESSIONS) if with_sessions and rng.random() < 0.5 else None
        step, abort_at = arrival.step * spacing, arrival.abort_at
        arrivals.append(
            replace(
                arrival,
                step=step,
                abort_at=None if abort_at is None else step + abort_at - arrival.step,
                prompt=arrival.prompt[: rng.randint(1, 24)] if session else arrival.prompt,
                session=session,
                adapter=rng.choice((None, "a", "b")) if with_adapters and session is None else None,
                priority=rng.choice(priorities),
            )
        )
    return Case(config, arrivals, rng.randint(0, 60) if rng.random() < 0.3 else None)


def random_config(rng: random.Random) -> EngineConfig:
    """A small engine with every feature that its others allow, each by chance."""
    page = rng.choice((1, 16))
    layers = rng.choice(("attention", "attention", "attention", "window", "recurrent"))
    host = layers == "attention" and rng.random() < 0.5
    storage = host and rng.random() < 0.5
    decode_side = layers == "attention" and rng.random() < 0.35
    guesses = "none" if layers == "recurrent" else rng.choice(("none", "none", "drafts", "blocks"))
    policies = [*POLICY_NAMES]
    policies += ["starve:copy"] * host + ["starve:io"] * storage + ["starve:nic", "slow:nic"] * decode_side
    return EngineConfig(
        page_size=page,
        loop=rng.choice(("overlap", "overlap", "normal")),
        schedule_policy=rng.choice(policies),
        seed=rng.randrange(1 << 30),
        mixed_chunk=rng.random() < 0.5,
        rows=rng.randint(2, 6),
        kv_tokens=rng.choice((176, 256, 320)) if page == 16 else rng.choice((160, 200, 320)),
        chunked_prefill_size=rng.choice((16, 32, 48)),
        context_len=CONTEXT,
        hybrid=layers == "recurrent",
        cached_states=rng.choice((1, 3, 16)),
        window=rng.choice((8, 24)) if layers == "window" else 0,
        host_tokens=rng.choice((96, 256)) if host else 0,
        host_write=rng.choice(("through", "back")),
        storage=storage,
        prealloc_rows=rng.randint(1, 3) if decode_side else 0,
        draft_tokens=rng.choice((2, 5)) if guesses == "drafts" else 0,
        block_size=rng.choice((4, 6)) if guesses == "blocks" else 0,
        free_groups=rng.random() < 0.3,
        sparse=rng.random() < 0.3,
        profile_sizes=0 if decode_side else rng.choice((0, 0, 0, 3)),
        profile_chunks=2,
    )


def features(case: Case) -> list[str]:
    """The features that are on, or used."""
    switches = (
        "mixed_chunk", "hybrid", "window", "host_tokens", "storage", "prealloc_rows", "draft_tokens", "block_size",
        "free_groups", "sparse", "profile_sizes",
    )  # fmt: skip
    uses = ("session", "adapter", "priority", "abort_at")
    return [name for name in switches if getattr(case.config, name)] + [
        name for name in uses if any(getattr(arrival, name) for arrival in case.arrivals)
    ]


@lru_cache
def oracle_of(hybrid: bool, window: int) -> Oracle:
    """The oracle for a model with these layers."""
    return Oracle(hybrid=hybrid, window=window)


def wrong_answers(config: EngineConfig, arrivals: list[Arrival], answers: dict[str, Answer]) -> dict[str, str]:
    """The requests whose answer is not the right one, and what it is; of an aborted one the beginning counts."""
    oracle = oracle_of(config.hybrid, config.window)
    texts: dict[str, list[int]] = defaultdict(list)
    wrong = {}
    for arrival in arrivals:
        answer = answers[arrival.rid]
        before = texts[arrival.session] if arrival.session is not None else []
        prompt = [*before, *arrival.prompt]
        if answer.error is not None:
            too_long = len(prompt) + arrival.sampling.max_new_tokens > min(config.context_len, config.kv_tokens)
            too_long |= len(prompt) > config.max_input_len
            if answer.tokens or not (too_long or arrival.session):
                wrong[arrival.rid] = f"rejected: {answer.error}"
            continue
        if config.block_size:
            right = oracle.refine(prompt, arrival.sampling, config.block_size, config.refine_steps, arrival.adapter)
        else:
            right = oracle.generate(prompt, arrival.sampling, arrival.adapter)
        if answer.finish is Finish.ABORT and arrival.abort_at is not None:
            right = right[: len(answer.tokens)]
        elif arrival.session is not None:
            texts[arrival.session] = [*prompt, *right]
        if answer.tokens != right or answer.finish is None:
            wrong[arrival.rid] = f"{answer.tokens} ({answer.finish}), not {right}"
    return wrong
