"""Puts an engine together: pools, cache, streams, model, scheduler. Steps without HTTP; the server drives it too."""

from __future__ import annotations

from math import lcm

from kvsan.hooks import current

from .compute import Sizes, choose
from .config import EngineConfig
from .disaggregation import DecodeSide, PrefillServer
from .exact import Exact
from .faulty_cache import CACHES
from .faulty_holdings import HOLDINGS
from .faulty_pools import ROW_POOLS, STATE_POOLS
from .faulty_scheduler import SCHEDULERS
from .forward import Forward
from .holdings import Holdings
from .host_tier import HostTier
from .model import Model
from .pools import KvPool, RowPool, StatePool
from .probe import Probe
from .profiling import profile
from .radix_cache import RadixCache
from .request import Output, Request
from .row_writer import RowWriter
from .scheduler import Scheduler
from .shards import WHOLE, Shard
from .sparse import Sparse
from .states import PER_REQUEST, States
from .transfers import Carrier
from .window import WindowedKvPool


class Engine:
    """One engine; everything it has is used by one thread only.

    Of several tensor ranks, each has an engine with its `shard` and gets the same requests. `probe` has a method for
    each operation of kvsan's trace format; by default it is the one that kvsan installed.
    """

    def __init__(self, config: EngineConfig, probe: Probe | None = None, shard: Shard = WHOLE) -> None:
        probe = current() if probe is None else probe
        self.config = config
        self._probe = probe
        bug = config.bug or ""
        rows = config.rows + config.prealloc_rows
        self.rows = ROW_POOLS.get(bug, RowPool)(rows, probe)
        if config.window:
            self.kv: KvPool = WindowedKvPool(config.kv_tokens, config.page_size, probe, config.window, config.bug)
        else:
            self.kv = KvPool(config.kv_tokens, config.page_size, probe)
        self.states: StatePool | None = None
        if config.hybrid:
            count = PER_REQUEST * (config.rows + 1) + config.cached_states
            self.states = STATE_POOLS.get(bug, StatePool)(count, probe)
        self.cache = CACHES.get(bug, RadixCache)(self.kv, probe, self.states)
        self.cache.rank = shard.rank
        sizes = Sizes(
            rows=rows + 1,
            width=config.context_len + 1,
            slots=config.kv_tokens + config.page_size,
            states=0 if self.states is None else self.states.size + 1,
        )
        self._device, compute = choose(config, sizes, self.kv.address, shard, probe)
        self.compute = compute
        schedule, forward = self._device.stream("sched"), self._device.stream("fwd")
        rows_read, rows_written = self._device.event("rows_read"), self._device.event("rows_written")
        writer = RowWriter(schedule, rows_read, rows_written, probe, compute.write_rows)
        if isinstance(self.kv, WindowedKvPool):
            self.kv.connect(self._device, schedule, writer.rows_read)
        states = None
        if self.states is not None:
            states = States(self.states, self.cache, lcm(config.track_interval, config.page_size), config.bug)
        holdings = HOLDINGS.get(bug, Holdings)(self.rows, self.kv, self.cache, states, writer, probe, config.bug)
        runner = Forward(compute, self._device, forward, self.kv, self.states, writer, probe)
        if isinstance(compute, Exact):
            self.kv.memory = compute.kv
        self.sparse: Sparse | None = None
        if config.sparse:
            self.sparse = holdings.sparse = Sparse(rows, config.context_len + 1, self.kv, forward, probe)
            runner.behind = self.sparse.index
        self.tier = self.decode_side = None
        if config.host_tokens:
            copies, io = (Carrier(self._device, name, runner.latest, probe) for name in ("copy", "io"))
            self.tier = HostTier(config, self.cache, copies, io, probe)
        if config.prealloc_rows:
            nic = Carrier(self._device, "nic", runner.latest, probe)
            self.decode_side = DecodeSide(config, holdings, PrefillServer(Model(config.model_seed)), nic, probe)
        self.scheduler = SCHEDULERS.get(bug, Scheduler)(config, holdings, runner, probe, self.tier, self.decode_side)
        self.prefill_seconds = profile(self.scheduler, holdings, config, probe)

    @property
    def busy(self) -> bool:
        return self.scheduler.busy

    def add(self, request: Request) -> None:
        self.scheduler.add(request)

    def abort(self, rid: str) -> None:
        self.scheduler.abort(rid)

    def close_session(self, name: str) -> None:
        """Ends a session, after its turn in work."""
        self.scheduler.sessions.close(name)

    def flush_cache(self) -> None:
        """Gives back everything in the prefix cache that nobody uses."""
        self.cache.evict(self.kv.size)

    def step(self) -> list[Output]:
        """One scheduler iteration; returns news for clients."""
        return self.scheduler.step()

    def totals(self) -> dict[str, int]:
        """What is free and cached now, in rows, token slots and states."""
        more: dict[str, int] = {}
        if self.sparse is not None:
            more |= {"buffers": self.sparse.size, "buffers_available": self.sparse.available}
        if self.states is not None:
            more |= {
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
            **more,
        }
