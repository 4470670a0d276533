"""A batch: which tokens of which requests one forward computes, fixed when it is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .request import Request
from .streams import StreamEvent

if TYPE_CHECKING:
    from .compute import Step


@dataclass(frozen=True, slots=True)
class StateUse:
    """How an item uses recurrent states, by slot.

    It begins from `source` (None: from `slot` as it is; 0: from zeros) and leaves its last state in `slot`. The state
    after the request's first `track_at` tokens is copied to `track`, if that is not None.
    """

    slot: int
    source: int | None
    track: int | None = None
    track_at: int = 0


@dataclass(frozen=True, slots=True)
class Item:
    """One request's part of a batch.

    The forward computes the positions [start, start + len(slots)) and stores their KV in `slots`. `tokens` are the
    inputs of a prefill; None means a decode, whose input is the token that the forward stream drew last for the row.
    `samples` says whether a token is drawn after the last position: not for a chunk that has more to come. `state` is
    None for a model without recurrent layers. A `guess` is the end of `tokens` that nobody has drawn yet; a token is
    then drawn after each of its positions and the one before.
    """

    request: Request
    epoch: int
    row: int
    state: StateUse | None
    start: int
    slots: list[int]
    tokens: list[int] | None
    samples: bool
    guess: list[int] | None = None

    @property
    def upto(self) -> int:
        """The context's length: the forward reads the cells row[0:upto]."""
        return self.start + len(self.slots)

    @property
    def draws(self) -> int:
        """After how many positions, the last ones, a token is drawn."""
        return 0 if not self.samples else 1 if self.guess is None else len(self.guess) + 1

    @property
    def first(self) -> bool:
        """Whether it ends the request's prefill and draws its first token."""
        return self.tokens is not None and self.samples and self.guess is None

    @property
    def current(self) -> bool:
        """Whether the request still waits for this batch's result."""
        return self.epoch == self.request.epoch


@dataclass(slots=True, eq=False)
class Batch:
    """Items that one forward computes; `mixed` when prefills and decodes go together.

    `step` carries it out on the forward stream, which has done so once `finished` is reached.
    """

    name: str
    items: list[Item]
    mixed: bool
    step: Step | None = None
    finished: StreamEvent | None = None

    @property
    def samples(self) -> bool:
        """Whether any of its items draws a token."""
        return any(item.samples for item in self.items)
