"""CUDA streams and events behind the interface of `streams`; what a stream's work launches runs on that stream.

The host carries the work out at once, so it must only launch, not wait. How CUDA orders streams is CUDA's to decide:
there is no schedule policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .probe import Probe
from .streams import StreamEvent


class CudaEvent:
    """An event of a CUDA device; one never recorded counts as reached."""

    def __init__(self, cuda: Any, name: str, probe: Probe) -> None:
        self.name = name
        self.event = cuda.Event()
        self._probe = probe

    def synchronize(self) -> None:
        self.event.synchronize()
        self._probe.sync(on=f"event:{self.name}")

    def query(self) -> bool:
        ready = bool(self.event.query())
        self._probe.query(event=self.name, ready=ready)
        return ready


class CudaStream:
    """A stream of a CUDA device."""

    def __init__(self, cuda: Any, name: str, probe: Probe) -> None:
        self.name = name
        self._cuda = cuda
        self._stream = cuda.Stream()
        self._probe = probe

    def submit(self, work: Callable[[], None]) -> None:
        with self._cuda.stream(self._stream):
            work()

    def record(self, event: StreamEvent) -> None:
        assert isinstance(event, CudaEvent)
        self._probe.record(event=event.name, agent=self.name)
        event.event.record(self._stream)

    def wait(self, event: StreamEvent) -> None:
        assert isinstance(event, CudaEvent)
        self._probe.wait(event=event.name, agent=self.name)
        self._stream.wait_event(event.event)


class CudaDevice:
    """The current CUDA device. `cuda` is `torch.cuda` or has a Stream, an Event, `stream` and `synchronize` like it."""

    def __init__(self, probe: Probe, cuda: Any = None) -> None:
        if cuda is None:
            import torch

            cuda = torch.cuda
        self._cuda = cuda
        self._probe = probe
        self._streams: dict[str, CudaStream] = {}

    def stream(self, name: str) -> CudaStream:
        if name not in self._streams:
            self._streams[name] = CudaStream(self._cuda, name, self._probe)
        return self._streams[name]

    def event(self, name: str) -> CudaEvent:
        return CudaEvent(self._cuda, name, self._probe)

    def synchronize(self) -> None:
        self._cuda.synchronize()
        for name in self._streams:
            self._probe.sync(on=name)
