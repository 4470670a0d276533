"""Puts an engine together: pools, cache, streams, model, scheduler. Steps without HTTP; the server drives it too."""

from __future__ import annotations

from math import lcm

from kvsan.hooks import current

from .config import EngineConfig
from .forward import Forward
from .holdings import Holdings
from .model import Model
from .policies import make_policy
from .pools import KvPool, RowPool, StatePool
from .probe import Probe
from .profiling import profile
from .radix_cache import RadixCache
from .request import Output, Request
from .row_writer import RowWriter
from .scheduler import Scheduler
from .states import PER_REQUEST, States
from .streams import SimulatedDevice


class Engine:
    """One engine; everything it has is used by one thread only.

    `probe` has a method for each operation of kvsan's trace format; by default it is the one that kvsan installed.
    """

    def __init__(self, config: EngineConfig, probe: Probe | None = None) -> None:
        probe = current() if probe is None else probe
        self.config = config
        self._probe = probe
        self.rows = RowPool(config.rows, config.context_len + 1, probe)
        self.kv = KvPool(config.kv_tokens, config.page_size, probe)
        self.states = (
            StatePool(PER_REQUEST * (config.rows + 1) + config.cached_states, probe) if config.hybrid else None
        )
        self.cache = RadixCache(self.kv, probe, self.states)
        self._device = SimulatedDevice(make_policy(config.schedule_policy, config.seed), probe)
        schedule, forward = self._device.stream("sched"), self._device.stream("fwd")
        writer = RowWriter(
            self.rows, schedule, self._device.event("rows_read"), self._device.event("rows_written"), probe
        )
        states = None
        if self.states is not None:
            states = States(self.states, self.cache, lcm(config.track_interval, config.page_size), config.bug)
        holdings = Holdings(self.rows, self.kv, self.cache, states, writer, probe, config.bug)
        model = Model(config.model_seed, hybrid=config.hybrid)
        forward_pass = Forward(model, self._device, forward, self.rows, self.kv, self.states, writer, probe)
        self.scheduler = Scheduler(config, holdings, forward_pass, probe)
        self.prefill_seconds = profile(self.scheduler, holdings, config, probe)

    @property
    def busy(self) -> bool:
        return self.scheduler.busy

    def add(self, request: Request) -> None:
        self.scheduler.add(request)

    def abort(self, rid: str) -> None:
        self.scheduler.abort(rid)

    def step(self) -> list[Output]:
        """One scheduler iteration; returns news for clients."""
        return self.scheduler.step()

    def totals(self) -> dict[str, int]:
        """What is free and cached now, in rows, token slots and states."""
        states = {}
        if self.states is not None:
            states = {
                "states": self.states.size,
                "states_available": self.states.available,
                "states_cached": sum(self.cache.state_counts()),
            }
        return {
            "rows": self.rows.size,
            "rows_available": self.rows.available,
            "kv_tokens": self.kv.size,
            "kv_available": self.kv.available,
            "kv_evictable": self.cache.evictable,
            "kv_protected": self.cache.protected,
            **states,
        }
