"""Several events of one kind that come at once: a decode step owns a slot, writes a cell and captures a row for every
request of its batch.

They are events like all others, each with an index of its own, but what is the same for all of them (agent, time,
stack) is worked out once, and no object is made for each. `one` makes the event that a trace, a report or a plugin
wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .events import Capture, Event, Own, RowWrite


@dataclass(slots=True, eq=False, kw_only=True)
class Several(Event):
    """`at` is the index of the first, `owners` has the owner of each. The sequences are of equal length; who makes them
    sees to it that they hold names and integers."""

    owners: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.owners)

    def one(self, number: int) -> Event:
        """Event `number` of them."""
        raise NotImplementedError

    def _common(self, number: int) -> dict[str, Any]:
        return {
            "agent": self.agent,
            "via": self.via,
            "owner": self.owners[number],
            "at": self.at + number if self.at >= 0 else self.at,
            "time_ns": self.time_ns,
            "stack": self.stack,
        }


@dataclass(slots=True, eq=False, kw_only=True)
class Owns(Several):
    """Names owners of single slots."""

    op = "own"
    pool: str
    slots: Sequence[int]

    def one(self, number: int) -> Own:
        """Event `number` of them."""
        return Own(pool=self.pool, slots=np.array([self.slots[number]], np.int64), **self._common(number))


@dataclass(slots=True, eq=False, kw_only=True)
class RowWrites(Several):
    """Writes a slot into the cell `positions[i]` of each row."""

    op = "row_write"
    pool: str
    rows: Sequence[int]
    positions: Sequence[int]
    into: str
    slots: Sequence[int]

    def one(self, number: int) -> RowWrite:
        """Event `number` of them."""
        return RowWrite(
            pool=self.pool,
            row=self.rows[number],
            pos=self.positions[number],
            into=self.into,
            slots=np.array([self.slots[number]], np.int64),
            **self._common(number),
        )


@dataclass(slots=True, eq=False, kw_only=True)
class Captures(Several):
    """A batch takes the cells [0, uptos[i]) of each row."""

    op = "capture"
    batch: str
    pool: str
    rows: Sequence[int]
    uptos: Sequence[int]

    def one(self, number: int) -> Capture:
        """Event `number` of them."""
        return Capture(
            batch=self.batch, pool=self.pool, row=self.rows[number], upto=self.uptos[number], **self._common(number)
        )
