"""What only simulated streams do: they run work in the order of a policy. `test_stream_contract` has what all do."""

from __future__ import annotations

from functools import partial

import pytest
from kvsan.hooks import NullSanitizer
from kvsan.reference_engine.policies import make_policy
from kvsan.reference_engine.streams import SimulatedDevice


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


def test_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'starve:nobody' is unknown; known are in-order, late"):
        make_policy("starve:nobody", 0)
