"""Streams and events: work that runs behind the host, in an order that only events fix.

`Device`, `Stream` and `StreamEvent` are the interface that the engine uses. The simulated implementation runs queued
work on the host's thread, when and in which order a policy picks. Every call that orders something is told to kvsan
when the host issues it, not when it runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .policies import Head, Policy
from .probe import Probe


class StreamEvent(Protocol):
    """A point in a stream. It may be recorded again; who waits takes the latest record."""

    name: str

    def synchronize(self) -> None:
        """Blocks the host until the latest record is reached."""

    def query(self) -> bool:
        """Whether the latest record is reached, without waiting."""


class Stream(Protocol):
    """A queue of work that runs in its own order."""

    name: str

    def submit(self, work: Callable[[], None]) -> None:
        """Queues the work."""

    def record(self, event: StreamEvent) -> None:
        """The event is reached when everything queued before has run."""

    def wait(self, event: StreamEvent) -> None:
        """What is queued from here on runs after the event's latest record."""


class Device(Protocol):
    """Makes streams and events."""

    def stream(self, name: str) -> Stream: ...

    def event(self, name: str) -> StreamEvent: ...

    def synchronize(self) -> None:
        """Runs everything that is queued."""


@dataclass(slots=True, eq=False)
class _Mark:
    """One record of an event."""

    reached: bool = False


@dataclass(frozen=True, slots=True)
class _Work:
    issued: int
    run: Callable[[], None]
    after: _Mark | None = None


class SimulatedEvent:
    """An event of a simulated device."""

    def __init__(self, device: SimulatedDevice, name: str) -> None:
        self.name = name
        self.mark: _Mark | None = None
        self._device = device

    def synchronize(self) -> None:
        """Runs queued work until the latest record is reached; an event never recorded is reached."""
        if self.mark is not None:
            self._device.run_until(self.mark)
        self._device.probe.sync(on=f"event:{self.name}")

    def query(self) -> bool:
        ready = self.mark is None or self.mark.reached
        self._device.probe.query(event=self.name, ready=ready)
        return ready


class SimulatedStream:
    """A stream of a simulated device."""

    def __init__(self, device: SimulatedDevice, name: str) -> None:
        self.name = name
        self.queue: deque[_Work] = deque()
        self._device = device

    def submit(self, work: Callable[[], None]) -> None:
        self._push(work)

    def record(self, event: StreamEvent) -> None:
        assert isinstance(event, SimulatedEvent)
        mark = event.mark = _Mark()
        self._device.probe.record(event=event.name, agent=self.name)
        self._push(lambda: setattr(mark, "reached", True))

    def wait(self, event: StreamEvent) -> None:
        assert isinstance(event, SimulatedEvent)
        self._device.probe.wait(event=event.name, agent=self.name)
        if event.mark is not None:
            self._push(lambda: None, after=event.mark)

    def _push(self, run: Callable[[], None], after: _Mark | None = None) -> None:
        self.queue.append(_Work(self._device.next_issue(), run, after))
        self._device.run_eagerly()


class SimulatedDevice:
    """Streams whose work runs on the host's thread in the order that a policy picks."""

    def __init__(self, policy: Policy, probe: Probe) -> None:
        self.probe = probe
        self._policy = policy
        self._streams: dict[str, SimulatedStream] = {}
        self._issued = 0

    def stream(self, name: str) -> SimulatedStream:
        return self._streams.setdefault(name, SimulatedStream(self, name))

    def event(self, name: str) -> SimulatedEvent:
        return SimulatedEvent(self, name)

    def synchronize(self) -> None:
        while heads := self._heads():
            self._run(self._policy.forced(heads))
        for name in self._streams:
            self.probe.sync(on=name)

    def next_issue(self) -> int:
        self._issued += 1
        return self._issued

    def run_eagerly(self) -> None:
        while head := self._policy.eager(self._heads()):
            self._run(head)

    def run_until(self, mark: _Mark) -> None:
        while not mark.reached:
            heads = self._heads()
            if not heads:
                raise RuntimeError("the host waits for an event that no stream can reach: every queue is blocked")
            self._run(self._policy.forced(heads))

    def _heads(self) -> list[Head]:
        heads = []
        for name, stream in self._streams.items():
            if stream.queue and ((after := stream.queue[0].after) is None or after.reached):
                heads.append(Head(name, stream.queue[0].issued))
        return heads

    def _run(self, head: Head) -> None:
        self._streams[head.stream].queue.popleft().run()
