"""What the engine relies on of streams holds for every implementation: the simulated ones under every policy, and those
of CUDA, over a stand-in for `torch.cuda` and, where there is a GPU, over the real one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kvsan.hooks import NullSanitizer
from kvsan.reference_engine.cuda_streams import CudaDevice, CudaStream
from kvsan.reference_engine.policies import POLICY_NAMES, make_policy
from kvsan.reference_engine.probe import Probe
from kvsan.reference_engine.streams import Device, SimulatedDevice

from .conftest import RecordingProbe
from .stand_in_cuda import StandInCuda

PIECES = 60
IMPLEMENTATIONS = (
    *(f"simulated {policy}" for policy in POLICY_NAMES),
    *(f"stand-in {policy}" for policy in POLICY_NAMES),
    "cuda",
)


class Board:
    """Numbered pieces of work; each notes which others it finds done when it runs on the device."""

    def __init__(self, device: Device, launch: Callable[[Callable[[], None]], None], array: Any, slow: Any) -> None:
        self.device = device
        self._launch = launch
        self._slow = slow
        self._done, self._found = array((PIECES,)), array((PIECES, PIECES))

    def work(self, number: int) -> Callable[[], None]:
        def note() -> None:
            self._slow()
            self._found[number] = self._done
            self._done[number] = 1

        return lambda: self._launch(note)

    def done(self) -> set[int]:
        return {number for number in range(PIECES) if self._done[number]}

    def found(self, number: int) -> set[int]:
        return {other for other in range(PIECES) if self._found[number][other]}


def board(implementation: str, seed: int = 0, probe: Probe | None = None) -> Board:
    probe = probe or NullSanitizer()
    kind, _, policy = implementation.partition(" ")
    if kind == "simulated":
        return Board(SimulatedDevice(make_policy(policy, seed), probe), lambda kernel: kernel(), np.zeros, bool)
    if kind == "stand-in":
        cuda = StandInCuda(policy, seed)
        return Board(CudaDevice(probe, cuda), cuda.launch, np.zeros, bool)
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA GPU")
    rng = random.Random(seed)
    cycles = lambda: torch.cuda._sleep(rng.choice((0, 10_000, 1_000_000)))  # noqa: E731
    zeros = lambda shape: torch.zeros(shape, device="cuda")  # noqa: E731
    made = Board(CudaDevice(probe), lambda kernel: kernel(), zeros, cycles)
    torch.cuda.synchronize()
    return made


def check_random_program(pieces: Board, rng: random.Random) -> None:
    """Issues random work; what has to run before a piece must be done when it runs, and whoever waits finds it so."""
    names = ["fwd", "sched", "copy"]
    device = pieces.device
    events = [device.event(f"e{number}") for number in range(3)]
    before: dict[str, set[int]] = {name: set() for name in names}
    recorded: list[set[int]] = [set(), set(), set()]
    must: dict[int, set[int]] = {}
    for number in range(PIECES):
        name, event = rng.choice(names), rng.randrange(3)
        match rng.choice(["submit", "submit", "record", "wait", "host"]):
            case "submit":
                must[number] = set(before[name])
                before[name].add(number)
                device.stream(name).submit(pieces.work(number))
            case "record":
                device.stream(name).record(events[event])
                recorded[event] = set(before[name])
            case "wait":
                device.stream(name).wait(events[event])
                before[name] |= recorded[event]
            case "host" if rng.random() < 0.2:
                events[event].synchronize()
                assert recorded[event] <= pieces.done()
                assert events[event].query()
    device.synchronize()
    assert pieces.done() == set(must)
    for number, earlier in must.items():
        assert earlier <= pieces.found(number)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_order_is_kept(implementation: str) -> None:
    """Random programs: each stream in its own order, and what waits after what was recorded."""
    for seed in range(30):
        check_random_program(board(implementation, seed), random.Random(seed))


def test_a_wait_that_is_left_out_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin with the bug."""
    monkeypatch.setattr(CudaStream, "wait", lambda self, event: None)
    with pytest.raises(AssertionError):
        for seed in range(30):
            check_random_program(board("stand-in random", seed), random.Random(seed))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_wait_takes_the_latest_record(implementation: str) -> None:
    pieces = board(implementation)
    first, second, third = (pieces.device.stream(name) for name in ("first", "second", "third"))
    event = pieces.device.event("e")
    first.submit(pieces.work(1))
    first.record(event)
    third.wait(event)
    second.submit(pieces.work(2))
    second.record(event)
    third.submit(pieces.work(3))
    third.wait(event)
    third.submit(pieces.work(4))
    pieces.device.synchronize()
    assert 1 in pieces.found(3)
    assert {1, 2, 3} <= pieces.found(4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_event_that_was_never_recorded_is_reached(implementation: str) -> None:
    pieces = board(implementation)
    event = pieces.device.event("e")
    event.synchronize()
    assert event.query()
    pieces.device.stream("fwd").wait(event)
    pieces.device.stream("fwd").submit(pieces.work(1))
    pieces.device.synchronize()
    assert pieces.done() == {1}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_name_is_one_stream(implementation: str) -> None:
    device = board(implementation).device
    assert device.stream("fwd") is device.stream("fwd")
    assert device.stream("fwd") is not device.stream("sched")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_kvsan_is_told_when_the_host_issues(implementation: str) -> None:
    probe = RecordingProbe()
    device = board(implementation, probe=probe).device  # type: ignore[arg-type]
    event = device.event("e")
    device.stream("fwd").record(event)
    device.stream("sched").wait(event)
    event.synchronize()
    event.query()
    device.synchronize()
    told = [(e["op"], e.get("event", e.get("on")), e["agent"]) for e in probe.events]
    assert told == [
        ("record", "e", "fwd"),
        ("wait", "e", "sched"),
        ("sync", "event:e", "host"),
        ("query", "e", "host"),
        ("sync", "fwd", "host"),
        ("sync", "sched", "host"),
    ]
    assert probe.events[3]["ready"] is True
