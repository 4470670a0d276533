"""A workload that provokes one historical bug."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .config import EngineConfig
from .engine import Engine
from .workload import MAX_STEPS, Answer, Arrival, drive


@dataclass(frozen=True, slots=True)
class Scenario:
    """An engine with the bug switched on, and what arrives; `victims` are the requests whose tokens may go wrong.

    `then` arrives when all is over; where it is given, it is what the consequence shows on.
    """

    config: EngineConfig
    arrivals: list[Arrival]
    victims: tuple[str, ...]
    then: list[Arrival] = field(default_factory=list)
    flush_at: int | None = None

    def fixed(self) -> Scenario:
        """The same without the bug."""
        return replace(self, config=replace(self.config, bug=None))

    def drive(self, engine: Engine, max_steps: int = MAX_STEPS, *, then: bool = False) -> dict[str, Answer]:
        """The answers of an engine with this configuration, `then` also to what comes afterwards; RuntimeError if
        `max_steps` are not enough."""
        arrivals = self.arrivals + self.then if then else self.arrivals
        return drive(engine, arrivals, flush_at=self.flush_at, max_steps=max_steps)


Builder = Callable[[EngineConfig, random.Random], Scenario]
