"""What the adapter knows of a scheduler of these releases beside what it knows of any."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ....sanitizer import Sanitizer
from ..watch import Doing, Watch

RESULT_LOOPS = ("process_batch_result_prefill", "process_batch_result_decode")
"""Functions of the scheduler, or of a part of it, that go through a batch's requests, each at hand as `req`."""
KEPT_FLIGHTS = 64
"""Launched batches kept; an engine that never takes their results in must not make this grow."""


@dataclass(slots=True)
class Publication(Doing):
    """A request publishes what it has computed; `matched` is how many tokens of it the cache had already."""

    matched: int = 0


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched batch whose results are not taken in yet. Keeps its result, by whose id it is found."""

    name: str
    reqs: tuple[Any, ...]
    result: Any


class OlderWatch(Watch):
    """The watch over a scheduler of these releases."""

    def __init__(self, sanitizer: Sanitizer) -> None:
        super().__init__(sanitizer)
        self.device_module: Any = None
        """`torch.cpu`, `torch.cuda`, ...: what knows the current stream."""
        self.flights: dict[int, Flight] = {}
        self.flying: Counter[str] = Counter()
        """How many launched batches compute for a request."""
        self.over: set[str] = set()
        """Requests of which is told that they are over, and not yet that they hold nothing."""
        self.last_owner: dict[int, str] = {}
        """Who had a row before, by row."""
        self.continued: set[int] = set()
        """Rows whose prefix stands in them already: their request keeps them, or got back what it gave."""
        self.launched_as = ""

    def stream(self) -> str:
        """The agent that work issued now goes to: the current stream."""
        return self.stream_name(self.device_module.current_stream())

    def name_streams(self) -> None:
        """Up to 0.5.9 the scheduler works on the stream that was current when it was made; then on one of its own."""
        super().name_streams()
        stream = getattr(self.scheduler, "default_stream", None)
        if stream is not None:
            key = getattr(stream, "cuda_stream", None)
            self.streams[id(stream) if key is None else key] = "sched"

    def actor(self) -> str | None:
        """As for any scheduler; while results are taken in, which is one loop over the requests, its loop variable
        says for whom."""
        for doing in reversed(self.doing):
            if doing.what == "evict":
                return None
            if doing.owner is not None:
                return doing.owner
            if doing.what == "results":
                return _at_hand()
        return None

    def take_off(self, reqs: list[Any], result: Any) -> None:
        """A batch is launched; its results will come by that object."""
        while len(self.flights) >= KEPT_FLIGHTS:
            self.land(self.flights[next(iter(self.flights))].result)
        self.flights[id(result)] = Flight(self.launched_as, tuple(reqs), result)
        self.flying.update(str(req.rid) for req in reqs)

    def land(self, result: Any) -> Flight | None:
        """The batch's results are taken in."""
        flight = self.flights.pop(id(result), None)
        if flight is not None:
            self.flying.subtract(str(req.rid) for req in flight.reqs)
            self.flying = +self.flying  # without those that are in no batch
        return flight


def forward_name(number: int) -> str:
    """What a batch is called: by the scheduler's count of forwards, as a batch may still be mixed with another while it
    is prepared."""
    return f"forward {number}"


def _at_hand() -> str | None:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in RESULT_LOOPS:
            req = frame.f_locals.get("req")
            return None if req is None else str(req.rid)
        frame = frame.f_back  # type: ignore[assignment]
    return None
