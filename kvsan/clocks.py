"""What is ordered: vector clocks over agents, with the event index as time.

For every agent the *horizon* holds, for every other agent, the index of that agent's last event known to come before
what the agent does next. An earlier access (agent a, index k) is ordered before the present event of agent p exactly
when ``k <= horizon[p][a]``. The scheme is FastTrack's (Flanagan and Freund, PLDI 2009) with one global time, so that
an epoch is one integer and comparing is one comparison.
"""

from __future__ import annotations

from .encoding import AGENT_MASK
from .errors import EventError

Horizon = list[int]  # indexed by agent id; missing entries are -1

KEPT_EVENTS = 65_536  # recorded events kept; engines reuse a handful, a leak of names must not grow for ever


def is_host(agent: str) -> bool:
    """Host threads issue work; all other agents have their work issued by one."""
    return agent == "host" or agent.startswith("host:")


class Clocks:
    """The horizons of all agents, of recorded events, and what joins them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.hosts: list[int] = []
        self._is_host: list[bool] = []
        self._ids: dict[str, int] = {}
        self._horizons: list[Horizon] = []
        self._last: list[int] = []  # index of the agent's latest event
        self._joins: list[int] = []  # how often the agent's horizon took something in (its version)
        self._issued: dict[tuple[int, int], int] = {}  # (agent, host): version of the host it last took over
        self._recorded: dict[str, Horizon] = {}
        self.host = 0
        """The host thread of the present event."""
        self.agent = 0
        """The agent of the present event."""
        self.identify("host")

    def identify(self, name: str) -> int:
        """The id of an agent; raises EventError past 4,096 agents."""
        known = self._ids.get(name)
        if known is not None:
            return known
        if not isinstance(name, str):
            raise EventError(f"an agent's name must be a string, not {name!r}")
        number = len(self.names)
        if number > AGENT_MASK:
            raise EventError(f"more than {AGENT_MASK + 1} agents (the last is {name!r}): use one name for each stream")
        self._ids[name] = number
        self.names.append(name)
        self._horizons.append([])
        self._last.append(-1)
        self._joins.append(0)
        self._is_host.append(is_host(name))
        if self._is_host[number]:
            self.hosts.append(number)
        return number

    def enter(self, agent: str, via: str | None, at: int) -> int:
        """Event `at` of the agent begins: it comes after all that the issuing host thread did. Returns the agent's
        id."""
        number = self._ids.get(agent)
        if number is None:
            number = self.identify(agent)
        if via is None:
            issuer = number if self._is_host[number] else 0
        else:
            issuer = self._ids.get(via, -1)
            if issuer < 0:
                issuer = self.identify(via)
        mine = self._horizons[number]
        if len(mine) <= max(number, issuer):
            mine.extend([-1] * (max(number, issuer) + 1 - len(mine)))
        if issuer != number:
            version = self._joins[issuer]
            if self._issued.get((number, issuer)) != version:
                self._take(number, self._horizons[issuer])
                self._issued[number, issuer] = version
            if mine[issuer] < at - 1:
                mine[issuer] = at - 1
            self._joins[number] += 1
            if self._last[issuer] < 0:
                self._last[issuer] = 0  # a thread that only issues has its say in what is settled, too
        if mine[number] < at:
            mine[number] = at
        self._last[number] = at
        self.agent = number
        self.host = issuer if self._is_host[issuer] else 0
        return number

    def _take(self, agent: int, horizon: Horizon) -> None:
        mine = self._horizons[agent]
        if len(mine) < len(horizon):
            mine.extend([-1] * (len(horizon) - len(mine)))
        for other, at in enumerate(horizon):
            if mine[other] < at:
                mine[other] = at
        self._joins[agent] += 1

    def sees(self, agent: int, at: int) -> bool:
        """Is event `at` of the agent ordered before the present event?"""
        horizon = self._horizons[self.agent]
        return agent < len(horizon) and at <= horizon[agent]

    def host_sees(self, agent: int, at: int) -> bool:
        """Is event `at` of the agent ordered before what the present host thread does next?"""
        horizon = self._horizons[self.host]
        return agent < len(horizon) and at <= horizon[agent]

    def seen(self, agent: int) -> int:
        """Index of the agent's last event ordered before the present one (-1: none)."""
        horizon = self._horizons[self.agent]
        return horizon[agent] if agent < len(horizon) else -1

    def settled(self, agent: int) -> int:
        """Up to here the agent's events come before every agent's next event: what streams do next comes after what
        their host thread knows, so the host threads' horizons decide."""
        lowest = self._last[agent]
        for thread in self.hosts:
            if thread != agent and self._last[thread] >= 0:
                horizon = self._horizons[thread]
                lowest = min(lowest, horizon[agent] if agent < len(horizon) else -1)
        return lowest

    def horizon(self) -> Horizon:
        """The present agent's own horizon, not to be kept or written to: for many comparisons in one event."""
        return self._horizons[self.agent]

    def snapshot(self) -> Horizon:
        """A copy of the present agent's horizon, the present event included."""
        return list(self._horizons[self.agent])

    def join_host(self, horizon: Horizon) -> None:
        """What `horizon` covers comes before what the present host thread does next."""
        self._take(self.host, horizon)

    def record(self, event: str) -> None:
        """The present agent records the event."""
        self._recorded.pop(event, None)
        self._recorded[event] = self.snapshot()
        if len(self._recorded) > KEPT_EVENTS:
            del self._recorded[next(iter(self._recorded))]

    def wait(self, event: str) -> None:
        """What came before the event's latest record comes before what the present agent does next."""
        recorded = self._recorded.get(event)
        if recorded is not None:
            self._take(self.agent, recorded)

    def complete(self, event: str) -> None:
        """The present host thread knows that the event is complete."""
        recorded = self._recorded.get(event)
        if recorded is not None:
            self._take(self.host, recorded)

    def sync(self, agent: str) -> None:
        """The present host thread waited for all that the agent was given."""
        number = self._ids.get(agent)
        if number is not None:
            self._take(self.host, self._horizons[number])
