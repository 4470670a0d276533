"""The clocks against explicit reachability, in both directions, on random small programs; and each rule on its own."""

from __future__ import annotations

from random import Random

import pytest

from kvsan import clocks as clocks_module
from kvsan.clocks import Clocks
from kvsan.encoding import AGENT_MASK
from kvsan.errors import EventError

from .feeding import seeds

PROGRAMS = seeds(400)
AGENTS = ("host", "host:a", "host:b", "fwd", "copy", "sched")
EVENTS = ("e1", "e2", "e3")


class Reachability:
    """Happens-before as a graph of events: for every event the set of all that come before it or are it."""

    def __init__(self) -> None:
        self.before: list[set[int]] = []
        self.agents: list[str] = []
        self._past: dict[str, set[int]] = {}
        self._recorded: dict[str, set[int]] = {}

    def next_past(self, agent: str, via: str | None) -> set[int]:
        """What would come before the agent's next event."""
        return self._past.get(agent, set()) | self._past.get(via or agent, set())

    def take(self, agent: str, via: str | None, op: str, name: str) -> None:
        """One event, whose past is complete before what it orders is added."""
        at = len(self.before)
        issuer = via or (agent if agent.startswith("host") else "host")
        past = self._past.get(agent, set()) | self._past.get(issuer, set()) | {at}
        self.before.append(set(past))
        self.agents.append(agent)
        self._past[agent] = past
        if op == "record":
            self._recorded[name] = set(past)
        elif op == "wait":
            self._past[agent] = past | self._recorded.get(name, set())
        elif op in ("complete", "sync"):
            other = self._recorded.get(name) if op == "complete" else self._past.get(name)
            self._past[issuer] = self._past.get(issuer, set()) | (other or set())


def program(rng: Random, length: int) -> list[tuple[str, str | None, str, str]]:
    """Agent, issuing host thread, operation and its operand."""
    steps = []
    agents = rng.sample(AGENTS, rng.randrange(2, len(AGENTS) + 1))
    hosts = [agent for agent in agents if agent.startswith("host")] or ["host"]
    for _ in range(length):
        agent = rng.choice(agents)
        op = rng.choice(("touch", "touch", "record", "record", "wait", "wait", "complete", "sync"))
        via = None if agent.startswith("host") or rng.random() < 0.4 else rng.choice(hosts)
        steps.append((agent, via, op, rng.choice(agents) if op == "sync" else rng.choice(EVENTS)))
    return steps


def run(clocks: Clocks, step: tuple[str, str | None, str, str], at: int) -> None:
    agent, via, op, name = step
    clocks.enter(agent, via, at)
    if op == "record":
        clocks.record(name)
    elif op == "wait":
        clocks.wait(name)
    elif op == "complete":
        clocks.complete(name)
    elif op == "sync":
        clocks.sync(name)


def test_sees_is_reachability() -> None:
    """For every event and every earlier one: `sees` exactly where a path exists, at the moment the event begins."""
    wrong = []
    paths = 0
    for seed in PROGRAMS:
        rng = Random(seed)
        steps = program(rng, rng.randrange(5, 40))
        clocks, graph = Clocks(), Reachability()
        for at, (agent, via, op, name) in enumerate(steps):
            graph.take(agent, via, op, name)
            clocks.enter(agent, via, at)
            for earlier in range(at):
                number = clocks.identify(graph.agents[earlier])
                reached = earlier in graph.before[at]
                paths += reached
                if clocks.sees(number, earlier) != reached:
                    wrong.append((seed, earlier, at, "a path that clocks do not see" if reached else "no path"))
            run(clocks, (agent, via, op, name), at)
    assert wrong == []
    assert paths > 40 * len(PROGRAMS)


def test_settled_is_seen_by_every_agents_next_event() -> None:
    """What is settled comes before whatever any agent does next, whichever of the host threads so far issues it."""
    wrong = []
    settled_ones = 0
    for seed in seeds(150):
        rng = Random(seed)
        steps = program(rng, rng.randrange(5, 30))
        clocks, graph = Clocks(), Reachability()
        for at, step in enumerate(steps):
            graph.take(*step)
            run(clocks, step, at)
        threads = sorted({via or (agent if agent.startswith("host") else "host") for agent, via, _, _ in steps})
        following = [(agent, via) for agent in AGENTS[3:] for via in threads] + [(thread, None) for thread in threads]
        for agent in sorted(set(graph.agents)):
            settled = clocks.settled(clocks.identify(agent))
            mine = {at for at, who in enumerate(graph.agents) if who == agent and at <= settled}
            settled_ones += len(mine)
            wrong += [(seed, agent, settled, *after) for after in following if not mine <= graph.next_past(*after)]
    assert wrong == []
    assert settled_ones > 500


def test_a_thread_that_only_issues_has_its_say_in_what_is_settled() -> None:
    clocks = Clocks()
    clocks.enter("sched", None, 0)
    clocks.enter("host", None, 1)
    clocks.sync("sched")
    assert clocks.settled(clocks.identify("sched")) == 0
    clocks.enter("copy", "host:io", 2)
    assert clocks.settled(clocks.identify("sched")) == -1


def test_issue_orders_a_stream_after_its_host_thread() -> None:
    clocks = Clocks()
    clocks.enter("host", None, 0)
    clocks.enter("fwd", None, 1)
    assert clocks.sees(clocks.identify("host"), 0)
    clocks.enter("host", None, 2)
    assert not clocks.sees(clocks.identify("fwd"), 1)


def test_via_names_the_thread_that_issues() -> None:
    clocks = Clocks()
    clocks.enter("host:a", None, 0)
    clocks.enter("fwd", None, 1)
    assert not clocks.sees(clocks.identify("host:a"), 0)
    clocks.enter("fwd", "host:a", 2)
    assert clocks.sees(clocks.identify("host:a"), 0)
    assert clocks.names[clocks.host] == "host:a"


def test_the_latest_record_counts() -> None:
    clocks = Clocks()
    clocks.enter("fwd", None, 0)
    clocks.record("e")
    clocks.enter("fwd", None, 1)
    clocks.enter("copy", None, 2)
    clocks.wait("e")
    clocks.enter("copy", None, 3)
    assert clocks.sees(clocks.identify("fwd"), 0)
    assert not clocks.sees(clocks.identify("fwd"), 1)
    clocks.enter("fwd", None, 4)
    clocks.record("e")
    clocks.enter("copy", None, 5)
    clocks.wait("e")
    assert clocks.sees(clocks.identify("fwd"), 4)


def test_waiting_for_what_was_never_recorded_orders_nothing() -> None:
    clocks = Clocks()
    clocks.enter("fwd", None, 0)
    clocks.enter("copy", None, 1)
    clocks.wait("nobody's")
    clocks.complete("nobody's")
    clocks.sync("nobody")
    assert not clocks.sees(clocks.identify("fwd"), 0)
    assert "nobody" not in clocks.names


def test_sync_orders_the_host_thread_not_the_stream_that_is_named() -> None:
    clocks = Clocks()
    clocks.enter("fwd", None, 0)
    clocks.enter("host", None, 1)
    clocks.sync("fwd")
    assert clocks.sees(clocks.identify("fwd"), 0)
    clocks.enter("copy", None, 2)
    assert clocks.sees(clocks.identify("fwd"), 0), "issued by a host thread that knows"
    clocks.enter("host:a", None, 3)
    assert not clocks.sees(clocks.identify("fwd"), 0)


def test_recorded_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks_module, "KEPT_EVENTS", 3)
    clocks = Clocks()
    for at, name in enumerate(["a", "b", "a", "c", "d"]):
        clocks.enter("fwd", None, at)
        clocks.record(name)
    clocks.enter("host", None, 5)
    clocks.complete("b")
    assert not clocks.sees(clocks.identify("fwd"), 0), "the one recorded longest ago is forgotten"
    clocks.complete("a")
    assert clocks.sees(clocks.identify("fwd"), 2), "recorded again, and so kept"


def test_too_many_agents_are_an_error_that_names_the_last() -> None:
    clocks = Clocks()
    for number in range(AGENT_MASK):
        clocks.identify(f"stream{number}")
    with pytest.raises(EventError, match=r"more than 4096 agents \(the last is 'one too many'\)"):
        clocks.identify("one too many")
