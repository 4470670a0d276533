"""Schedule policies: in which order simulated streams run what was queued.

Work of one stream stays in order; among streams any order that their events allow is legal. A policy picks one.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Head:
    """The next work of a stream, able to run; `issued` numbers the work in the order in which the host queued it."""

    stream: str
    issued: int


class Policy(ABC):
    """Decides what runs next."""

    @abstractmethod
    def eager(self, heads: Sequence[Head]) -> Head | None:
        """What runs now although nobody waits for it, or None. Asked again until it says None."""

    @abstractmethod
    def forced(self, heads: Sequence[Head]) -> Head:
        """What runs next while the host waits; `heads` is not empty."""


class InOrder(Policy):
    """Everything runs when it is queued."""

    def eager(self, heads: Sequence[Head]) -> Head | None:
        return min(heads, key=lambda head: head.issued, default=None)

    def forced(self, heads: Sequence[Head]) -> Head:
        return min(heads, key=lambda head: head.issued)


class Late(Policy):
    """Nothing runs before the host waits; then what was queued last runs first."""

    def eager(self, heads: Sequence[Head]) -> Head | None:
        return None

    def forced(self, heads: Sequence[Head]) -> Head:
        return max(heads, key=lambda head: head.issued)


class Starve(Policy):
    """One stream runs only when the host waits and nothing else can run; the others run at once."""

    def __init__(self, starved: str) -> None:
        self._starved = starved

    def eager(self, heads: Sequence[Head]) -> Head | None:
        others = [head for head in heads if head.stream != self._starved]
        return min(others, key=lambda head: head.issued, default=None)

    def forced(self, heads: Sequence[Head]) -> Head:
        return min(heads, key=lambda head: (head.stream == self._starved, head.issued))


class Slow(Policy):
    """One stream runs a piece of work only after so many of others; the others run at once."""

    PIECES = 200

    def __init__(self, slow: str) -> None:
        self._slow = slow
        self._since = 0

    def eager(self, heads: Sequence[Head]) -> Head | None:
        due = self._since >= self.PIECES
        head = min((h for h in heads if due or h.stream != self._slow), key=lambda h: h.issued, default=None)
        self._count(head)
        return head

    def forced(self, heads: Sequence[Head]) -> Head:
        head = min(heads, key=lambda h: (h.stream == self._slow, h.issued))
        self._count(head)
        return head

    def _count(self, head: Head | None) -> None:
        if head is not None:
            self._since = 0 if head.stream == self._slow else self._since + 1


class RandomPriority(Policy):
    """Streams have random priorities that change at random points (after Burckhardt et al., PCT, 2010)."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._priorities: dict[str, float] = {}

    def eager(self, heads: Sequence[Head]) -> Head | None:
        return self.forced(heads) if heads and self._random.random() < 0.5 else None

    def forced(self, heads: Sequence[Head]) -> Head:
        if self._random.random() < 0.25:
            self._priorities.clear()
        for head in heads:
            self._priorities.setdefault(head.stream, self._random.random())
        return max(heads, key=lambda head: self._priorities[head.stream])


POLICY_NAMES = ("in-order", "late", "starve:fwd", "starve:sched", "random")
"""Policies with the streams that every engine has."""

FEATURE_POLICY_NAMES = ("starve:copy", "starve:nic", "starve:io", "slow:nic")
"""Policies with streams that single features add."""


def make_policy(name: str, seed: int) -> Policy:
    """The policy of that name; ValueError names the known ones."""
    if name == "in-order":
        return InOrder()
    if name == "late":
        return Late()
    if name == "random":
        return RandomPriority(seed)
    if name.startswith("starve:") and name in (*POLICY_NAMES, *FEATURE_POLICY_NAMES):
        return Starve(name.removeprefix("starve:"))
    if name.startswith("slow:") and name in FEATURE_POLICY_NAMES:
        return Slow(name.removeprefix("slow:"))
    raise ValueError(
        f"schedule policy {name!r} is unknown; known are {', '.join((*POLICY_NAMES, *FEATURE_POLICY_NAMES))}"
    )
