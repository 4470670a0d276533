"""Workloads: what arrives when. Random ones come from a seed; `scenarios` builds those that provoke one bug."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from .engine import Engine
from .request import Finish, Request, SamplingParams

MAX_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that arrives before the scheduler's step `step` and may be aborted before step `abort_at`."""

    step: int
    rid: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    abort_at: int | None = None
    adapter: str | None = None
    session: str | None = None
    priority: int = 0

    def request(self) -> Request:
        """What the scheduler gets."""
        return Request(self.rid, list(self.prompt), self.sampling, self.adapter, self.session, self.priority)


@dataclass(slots=True)
class Answer:
    """What a client was told of one request."""

    tokens: list[int]
    finish: Finish | None = None
    error: str | None = None


def random_workload(
    seed: int,
    count: int,
    *,
    context_len: int = 256,
    max_tail: int = 50,
    max_new: int = 12,
    abort_share: float = 0.15,
    adapters: tuple[str | None, ...] = (None,),
) -> list[Arrival]:
    """`count` requests with shared prefixes, varied lengths, greedy and seeded sampling; some are aborted at any stage.

    A prompt is up to 64 tokens that others share and up to `max_tail` of its own, or all of an earlier one. Requests
    take the `adapters` by turns.
    """
    rng = random.Random(seed)
    prefixes = [random_text(rng, rng.randint(8, 64)) for _ in range(4)]
    arrivals: list[Arrival] = []
    step = 0
    for number in range(count):
        step += rng.choice((0, 0, 0, 1, 2, 5))
        shared = rng.choice(prefixes)[: rng.randint(1, 64)] if rng.random() < 0.7 else ()
        prompt = shared + random_text(rng, rng.randint(1, max_tail))
        if arrivals and rng.random() < 0.15:
            prompt = rng.choice(arrivals).prompt
        sampling = SamplingParams(
            max_new_tokens=rng.randint(1, max_new),
            temperature=rng.choice((0.0, 0.0, 0.8)),
            seed=rng.randint(0, 3),
            ignore_eos=rng.random() < 0.5,
        )
        abort_at = step + rng.randint(0, 12) if rng.random() < abort_share else None
        prompt = prompt[: context_len - max_new - 8]
        adapter = adapters[number % len(adapters)]
        arrivals.append(Arrival(step, f"r{number}", prompt, sampling, abort_at, adapter))
    return arrivals


def drive(
    engine: Engine, arrivals: Iterable[Arrival], *, flush_at: int | None = None, max_steps: int = MAX_STEPS
) -> dict[str, Answer]:
    """Steps the engine through the workload until nothing is left to do; the answer to each request.

    Before the step `flush_at` the prefix cache is flushed. RuntimeError if `max_steps` are not enough.
    """
    todo = sorted(arrivals, key=lambda arrival: arrival.step)
    aborts = sorted((a.abort_at, a.rid) for a in todo if a.abort_at is not None)
    answers: dict[str, Answer] = {}
    for step in range(max_steps):
        while todo and todo[0].step <= step:
            arrival = todo.pop(0)
            answers[arrival.rid] = Answer([])
            engine.add(arrival.request())
        while aborts and aborts[0][0] <= step:
            engine.abort(aborts.pop(0)[1])
        if step == flush_at:
            engine.flush_cache()
        if engine.busy:
            for output in engine.step():
                answer = answers[output.rid]
                answer.tokens += output.tokens
                answer.finish, answer.error = output.finish, output.error
        elif not todo:
            return answers
    raise RuntimeError(f"the engine is still busy after {max_steps} steps: {engine.totals()}")


def random_text(rng: random.Random, count: int) -> tuple[int, ...]:
    """`count` lower-case letters, as tokens."""
    return tuple(rng.choices(range(97, 123), k=count))
