"""The KV record: the only thing that says what a request holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .radix_cache import Node


@dataclass(slots=True)
class Tracking:
    """A tracking buffer: a state slot of the request, and after how many tokens the state in it was taken (0: none)."""

    slot: int
    position: int = 0


@dataclass(slots=True, eq=False)
class KvRecord:
    """What one request holds.

    `released` says that it has no row: none yet, or none any more. `slots[p]` is the token slot of position p, the
    host's copy of the row. Positions below `protected` stand in the prefix cache under `node`, which the request locks;
    the request shares those slots except the `duplicates`, which are its own although the cache has the same tokens in
    other slots. Everything from `protected` on is its own. `committed` positions have their KV, or will when what is
    launched has run.

    With recurrent layers, `state` is the state slot, and `tracking` two buffers that earlier states are copied to by
    turns. `source` is what the next batch begins from: None for `state` as it is, 0 for zeros, or a cached state.
    """

    row: int | None = None
    slots: list[int] = field(default_factory=list)
    committed: int = 0
    protected: int = 0
    duplicates: list[int] = field(default_factory=list)
    node: Node | None = None
    state: int | None = None
    tracking: list[Tracking] = field(default_factory=list)
    source: int | None = None
    released: bool = True

    @property
    def allocated(self) -> int:
        """How many positions have a token slot."""
        return len(self.slots)

    @property
    def own(self) -> list[int]:
        """The token slots that are the request's own."""
        return self.duplicates + self.slots[self.protected :]

    @property
    def start(self) -> int:
        """Where the next batch goes on: without a row behind the cached prefix, with one behind what is committed."""
        return self.allocated if self.released else self.committed
