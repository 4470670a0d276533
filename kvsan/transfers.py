"""Leases: slots that a transfer uses between its begin and its end."""

from __future__ import annotations

from dataclasses import dataclass

from .clocks import Horizon
from .encoding import LEASED
from .events import Slots
from .shadow import PoolShadow


@dataclass(slots=True, eq=False)
class Lease:
    """One begin: the transfer reads or writes the slots from event `at` on, issued on the agent."""

    xfer: str
    pool: PoolShadow
    slots: Slots
    writes: bool
    owner: str | None
    at: int
    agent: int
    past: Horizon


KEPT_LEASES = 4096  # leases kept open; an engine that never says that transfers end must not make this grow


class Transfers:
    """The open leases."""

    def __init__(self) -> None:
        self._open: dict[str, list[Lease]] = {}
        self._count = 0
        self.dropped = 0

    def begin(self, lease: Lease) -> None:
        """Opens a lease; one transfer may open several."""
        self._open.setdefault(lease.xfer, []).append(lease)
        self._count += 1
        while self._count > KEPT_LEASES:
            self.dropped += len(self.end(next(iter(self._open))))
        lease.pool.tenancy[lease.slots] |= LEASED

    def drop(self, pool: PoolShadow, slots: Slots) -> None:
        """The engine gave these slots back: it holds the transfers for over as far as they are concerned."""
        for lease in self.of(pool):
            lease.slots = lease.slots[~pool.among(lease.slots, slots)]
        pool.tenancy[slots] &= ~LEASED

    def end(self, xfer: str) -> list[Lease]:
        """Closes the transfer's leases and returns them."""
        closed = self._open.pop(xfer, [])
        self._count -= len(closed)
        for lease in closed:
            lease.pool.tenancy[lease.slots] &= ~LEASED
        for pool in {lease.pool for lease in closed}:
            for other in self.of(pool):
                pool.tenancy[other.slots] |= LEASED
        return closed

    def of(self, pool: PoolShadow) -> list[Lease]:
        """The open leases of the pool."""
        return [lease for leases in self._open.values() for lease in leases if lease.pool is pool]

    def using(self, pool: PoolShadow, slots: Slots) -> tuple[Lease, Slots] | None:
        """The first open lease that uses some of these slots, and which ones."""
        for lease in self.of(pool):
            hit = slots[pool.among(slots, lease.slots)]
            if hit.size:
                return lease, hit
        return None
