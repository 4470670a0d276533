"""Who holds slots: requests, sessions, prefetches and cache nodes, by name and by the id that shadow words carry."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .encoding import HOLDER_SHIFT, MAX_HOLDER
from .errors import EventError
from .events import KvRecord, Slots

IDLE_HOLDERS = 65_536  # holders kept that hold nothing and never ended
RESTING_IDS = 65_536  # how many ids of holders that are gone wait before the oldest is given out again
ENDED_NAMES = 65_536  # names kept of the last holders that ended and are gone


@dataclass(slots=True)
class Share:
    """Slots of nodes that an owner shares, with the keys (generation, held) that they had then."""

    slots: Slots
    keys: Slots


@dataclass(slots=True, eq=False)
class Holder:
    """One owner. `held` counts its slots by pool number; `over_at` is its last finish, abort or retraction."""

    number: int
    name: str
    held: dict[int, int] = field(default_factory=dict)
    shares: dict[int, list[Share]] = field(default_factory=dict)
    state: str = "live"  # live, finished, aborted, retracted, ended
    over_at: int = -1
    ended_at: int = -1
    record: KvRecord | None = None
    remapped: int = 0  # grows when a slot that the holder's rows map is given back
    bits: int = field(init=False)
    """The holder id at its place in a tenancy word."""
    is_node: bool = field(init=False)
    """Cache nodes hold what they inserted, and what `tree:NODE` allocated."""
    is_session: bool = field(init=False)
    """Sessions may hold slots while the engine is idle."""

    def __post_init__(self) -> None:
        self.bits = self.number << HOLDER_SHIFT
        self.is_node = self.name.startswith("tree:")
        self.is_session = self.name.startswith("session:")

    @property
    def live(self) -> bool:
        """Not finished, aborted or retracted: its captured slots must stay."""
        return self.state == "live"

    def count(self, pool: int, change: int) -> None:
        """The holder now holds `change` more slots of the pool."""
        left = self.held.get(pool, 0) + change
        if left > 0:
            self.held[pool] = left
        else:
            self.held.pop(pool, None)


class Holders:
    """All living holders, by name and by id."""

    def __init__(self) -> None:
        self._by_name: dict[str, Holder] = {}
        self._by_number: dict[int, Holder] = {}
        self._next = 1
        self._returned: deque[int] = deque()
        self._ended: dict[str, int] = {}  # name: index of its end; what comes late in that name does not make it live

    def find(self, name: str | None) -> Holder | None:
        """The holder of that name, if there is one."""
        return self._by_name.get(name) if name is not None else None

    def get(self, name: str) -> Holder:
        """The holder of that name, made if need be."""
        try:
            holder = self._by_name.get(name)
        except TypeError:  # unhashable
            holder = None
        if holder is None:
            if not isinstance(name, str):
                raise EventError(f"an owner's name must be a string, not {name!r}")
            if len(self._returned) > RESTING_IDS:
                number = self._returned.popleft()
            elif self._next <= MAX_HOLDER:
                number, self._next = self._next, self._next + 1
            else:
                raise EventError("more than 2**30 owners are alive at once")
            holder = Holder(number, name)
            ended_at = self._ended.pop(name, None)
            if ended_at is not None:
                holder.state = "ended"
                holder.over_at = holder.ended_at = ended_at
            self._by_name[name] = holder
            self._by_number[number] = holder
            if len(self._by_name) > IDLE_HOLDERS and number % 1024 == 0:
                self._trim()
        return holder

    def of(self, number: int) -> Holder | None:
        """The holder with that id; None for 0, "not known"."""
        return self._by_number.get(number)

    def name(self, number: int) -> str | None:
        """The name behind an id; None if it is not known."""
        holder = self._by_number.get(number)
        return holder.name if holder is not None else None

    def all(self) -> list[Holder]:
        """Every living holder, oldest first."""
        return list(self._by_name.values())

    def retire(self, holder: Holder) -> None:
        """Forgets a holder that is gone, unless it still holds or shares something."""
        if holder.held or holder.shares or self._by_name.get(holder.name) is not holder:
            return
        del self._by_name[holder.name]
        del self._by_number[holder.number]
        self._returned.append(holder.number)
        if holder.ended_at >= 0:
            self._ended[holder.name] = holder.ended_at
            if len(self._ended) > ENDED_NAMES:
                del self._ended[next(iter(self._ended))]

    def _trim(self) -> None:
        """Engines that never say `req_end` must not make this grow: the oldest that hold nothing go."""
        for holder in self.all()[: len(self._by_name) - IDLE_HOLDERS]:
            if not holder.is_node:
                self.retire(holder)
