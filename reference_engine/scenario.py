"""A workload that provokes one historical bug."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from .config import EngineConfig
from .engine import Engine
from .workload import MAX_STEPS, Answer, Arrival, drive


@dataclass(frozen=True, slots=True)
class Scenario:
    """An engine with the bug switched on, and what arrives; `victims` are the requests whose tokens may go wrong."""

    config: EngineConfig
    arrivals: list[Arrival]
    victims: tuple[str, ...] = ()
    flush_at: int | None = None

    def fixed(self) -> Scenario:
        """The same without the bug."""
        return replace(self, config=replace(self.config, bug=None))

    def drive(self, engine: Engine, max_steps: int = MAX_STEPS) -> dict[str, Answer]:
        """The answers of an engine with this configuration; RuntimeError if `max_steps` are not enough."""
        return drive(engine, self.arrivals, flush_at=self.flush_at, max_steps=max_steps)


Builder = Callable[[EngineConfig, random.Random], Scenario]
"""Gives the workload for an engine with the given base of a configuration, varied by chance."""
