"""A stand-in for `torch.cuda`: streams and events whose kernels run late, in the order that a policy picks.

It shows how the engine uses CUDA's interface, not how CUDA behaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvsan.hooks import NullSanitizer
from kvsan.reference_engine.policies import make_policy
from kvsan.reference_engine.streams import SimulatedDevice, SimulatedEvent, SimulatedStream


class StandInCuda:
    """`launch` queues what stands for a kernel on the current stream."""

    def __init__(self, policy: str, seed: int = 0) -> None:
        self.device = SimulatedDevice(make_policy(policy, seed), NullSanitizer())
        self._made = 0
        self._current: SimulatedStream | None = None

    def Stream(self) -> StandInStream:
        self._made += 1
        return StandInStream(self.device.stream(f"stream {self._made}"))

    def Event(self) -> StandInEvent:
        self._made += 1
        return StandInEvent(self.device.event(f"event {self._made}"))

    @contextmanager
    def stream(self, stream: StandInStream) -> Iterator[None]:
        before, self._current = self._current, stream.simulated
        try:
            yield
        finally:
            self._current = before

    def synchronize(self) -> None:
        self.device.synchronize()

    def launch(self, kernel: Callable[[], None]) -> None:
        assert self._current is not None, "nothing may run on the default stream, which orders nothing here"
        self._current.submit(kernel)


class StandInStream:
    def __init__(self, simulated: SimulatedStream) -> None:
        self.simulated = simulated

    def wait_event(self, event: StandInEvent) -> None:
        self.simulated.wait(event.simulated)


class StandInEvent:
    def __init__(self, simulated: SimulatedEvent) -> None:
        self.simulated = simulated

    def record(self, stream: StandInStream) -> None:
        stream.simulated.record(self.simulated)

    def synchronize(self) -> None:
        self.simulated.synchronize()

    def query(self) -> bool:
        return self.simulated.query()
