"""Which attention heads an engine computes: all of them, or the share of one of several tensor ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .arithmetic import Array
from .weights import HEADS


def _itself(local: Array) -> Array:
    return local


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `world`. `gather` makes arrays [tokens, heads, dim] of all ranks' heads from the own ones."""

    rank: int = 0
    world: int = 1
    gather: Callable[[Array], Array] = _itself

    @property
    def heads(self) -> slice:
        """The heads that this rank computes, of whose keys and values it keeps the cache."""
        share = HEADS // self.world
        return slice(self.rank * share, (self.rank + 1) * share)


WHOLE = Shard()
