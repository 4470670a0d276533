"""Simulated streams keep what events order, and nothing else."""

from __future__ import annotations

import random
from functools import partial

import pytest
from kvsan.hooks import NullSanitizer
from kvsan.reference_engine.policies import POLICY_NAMES, make_policy
from kvsan.reference_engine.streams import SimulatedDevice

from .conftest import RecordingProbe


def device(policy: str, seed: int = 0) -> SimulatedDevice:
    return SimulatedDevice(make_policy(policy, seed), NullSanitizer())


@pytest.mark.parametrize(
    ("policy", "at_once", "order"),
    [
        ("in-order", 3, ["fwd 1", "sched 1", "fwd 2"]),
        ("late", 0, ["sched 1", "fwd 1", "fwd 2"]),
        ("starve:fwd", 1, ["sched 1", "fwd 1", "fwd 2"]),
        ("starve:sched", 2, ["fwd 1", "fwd 2"]),
    ],
)
def test_order_of_independent_work(policy: str, at_once: int, order: list[str]) -> None:
    """`at_once` is how much runs before anybody waits, `order` what has run when the forward stream is waited for."""
    ran: list[str] = []
    streams = device(policy)
    fwd, sched, done = streams.stream("fwd"), streams.stream("sched"), streams.event("done")
    fwd.submit(lambda: ran.append("fwd 1"))
    sched.submit(lambda: ran.append("sched 1"))
    fwd.submit(lambda: ran.append("fwd 2"))
    fwd.record(done)
    assert ran == order[:at_once]
    done.synchronize()
    assert ran == order
    streams.synchronize()
    assert sorted(ran) == ["fwd 1", "fwd 2", "sched 1"]


def check_random_program(streams: SimulatedDevice, rng: random.Random) -> None:
    """Issues random work; `must` says for each piece what has to run before it."""
    names = ["fwd", "sched", "copy"]
    events = [streams.event(f"e{number}") for number in range(3)]
    ran: list[int] = []
    before: dict[str, set[int]] = {name: set() for name in names}
    recorded: list[set[int]] = [set() for _ in events]
    must: dict[int, set[int]] = {}
    for work in range(40):
        name, number = rng.choice(names), rng.randrange(3)
        match rng.choice(["submit", "submit", "record", "wait"]):
            case "submit":
                must[work] = set(before[name])
                before[name].add(work)
                streams.stream(name).submit(partial(ran.append, work))
            case "record":
                streams.stream(name).record(events[number])
                recorded[number] = set(before[name])
            case "wait":
                streams.stream(name).wait(events[number])
                before[name] |= recorded[number]
    events[0].synchronize()
    assert recorded[0] <= set(ran)
    streams.synchronize()
    position = {work: index for index, work in enumerate(ran)}
    assert set(position) == set(must)
    for work, earlier in must.items():
        assert all(position[other] < position[work] for other in earlier)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_keeps_every_order(policy: str) -> None:
    """Random programs: each stream in its own order, and what waits after what was recorded."""
    for seed in range(30):
        check_random_program(device(policy, seed), random.Random(seed))


def test_random_schedules_come_from_the_seed() -> None:
    def order(seed: int) -> list[str]:
        ran: list[str] = []
        streams = device("random", seed)
        for number in range(20):
            for name in ("fwd", "sched"):
                streams.stream(name).submit(partial(ran.append, f"{name} {number}"))
        streams.synchronize()
        return ran

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(5)}) > 1


def test_a_failure_in_queued_work_reaches_who_waits() -> None:
    def fail() -> None:
        raise IndexError("slot 99")

    streams = device("late")
    done = streams.event("done")
    streams.stream("fwd").submit(fail)
    streams.stream("fwd").record(done)
    with pytest.raises(IndexError, match="slot 99"):
        done.synchronize()


def test_kvsan_is_told_when_the_host_issues() -> None:
    probe = RecordingProbe()
    streams = SimulatedDevice(make_policy("late", 0), probe)  # type: ignore[arg-type]
    event = streams.event("e")
    streams.stream("fwd").record(event)
    streams.stream("sched").wait(event)
    event.synchronize()
    told = [(e["op"], e.get("event", e.get("on")), e["agent"]) for e in probe.events]
    assert told == [("record", "e", "fwd"), ("wait", "e", "sched"), ("sync", "event:e", "host")]


def test_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'starve:nobody' is unknown; known are in-order, late"):
        make_policy("starve:nobody", 0)
