"""Copies that run beside the forward; the slots are in use until the host has seen the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from .probe import Probe
from .streams import Device, StreamEvent


@dataclass(frozen=True, slots=True)
class Lease:
    """Slots of a pool that a copy reads or writes."""

    pool: str
    slots: list[int]
    access: str


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """A copy under way; `reached` is recorded behind it."""

    name: str
    reached: StreamEvent


class Carrier:
    """Carries out copies, in the order in which they begin.

    `fence` gives an event that copies wait for: the end of the batch launched last. What a copy reads may come from
    that batch; and that batch may still use what a copy writes, when its request is over and its slots are new again.
    """

    def __init__(self, device: Device, stream: str, fence: Callable[[], StreamEvent | None], probe: Probe) -> None:
        self._device = device
        self._stream = device.stream(stream)
        self._fence = fence
        self._probe = probe
        self._idle_events: list[StreamEvent] = []
        self._event_names = (f"{stream}_done_{number}" for number in count(1))

    def begin(
        self, name: str, owner: str, leases: list[Lease], copy: Callable[[], None], *, fenced: bool = True
    ) -> Transfer:
        """Queues the copy; its slots are in use from here on."""
        fence = self._fence()
        if fenced and fence is not None:
            self._stream.wait(fence)
        for lease in leases:
            self._probe.xfer_begin(
                lease.pool, lease.slots, xfer=name, access=lease.access, owner=owner, agent=self._stream.name
            )
        self._stream.submit(copy)
        reached = self._idle_events.pop() if self._idle_events else self._device.event(next(self._event_names))
        self._stream.record(reached)
        return Transfer(name, reached)

    def ended(self, transfer: Transfer, *, wait: bool) -> bool:
        """Whether the copy is over, which is then acknowledged; waits for it if told to."""
        if wait:
            transfer.reached.synchronize()
        elif not transfer.reached.query():
            return False
        self._idle_events.append(transfer.reached)
        self._probe.xfer_end(xfer=transfer.name)
        return True
