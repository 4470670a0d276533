"""The pools that hand out rows, token slots and recurrent states; what is behind them is the `Compute`'s.

The free lists trust their callers, like those of a production engine: what is given back twice is handed out twice.
"""

from __future__ import annotations

from collections import deque
from itertools import count

import numpy as np
import numpy.typing as npt

from .memory import KvMemory
from .probe import Probe
from .streams import Stream

Slots = npt.NDArray[np.int64]

ROWS = "req_to_token"
KV = "kv"
STATES = "state"


class RowPool:
    """Rows of `req_to_token`: cell p of a row is the token slot of position p. Row 0 is padding."""

    def __init__(self, rows: int, probe: Probe) -> None:
        self.size = rows
        self._free = deque(range(1, rows + 1))
        self._probe = probe
        probe.pool(ROWS, kind="row", size=rows + 1, page=1, reserved=[0])

    @property
    def available(self) -> int:
        return len(self._free)

    def take(self, owner: str) -> int:
        """The row that has been free longest; the caller has checked that there is one."""
        row = self._free.popleft()
        self._probe.alloc(ROWS, row, owner=owner)
        return row

    def give_back(self, row: int, owner: str) -> None:
        self._free.append(row)
        self._probe.free(ROWS, row, owner=owner)


class StatePool:
    """Recurrent states. Slot 0 is padding."""

    def __init__(self, states: int, probe: Probe) -> None:
        self.size = states
        self._free = deque(range(1, states + 1))
        self._probe = probe
        probe.pool(STATES, kind="state", size=states + 1, page=1, reserved=[0], init=True)

    @property
    def available(self) -> int:
        return len(self._free)

    def take(self, count: int, owner: str) -> list[int]:
        """That many states; the caller has checked that there are."""
        slots = [self._free.popleft() for _ in range(count)]
        self._probe.alloc(STATES, slots, owner=owner)
        return slots

    def give_back(self, slots: list[int], owner: str) -> None:
        self.reclaim(slots)
        self._probe.free(STATES, slots, owner=owner)

    def reclaim(self, slots: list[int]) -> None:
        """Puts the slots into the free list."""
        self._free.extend(slots)


class KvPool:
    """Token slots in pages. Page 0 is padding.

    `name` and `kind` say which pool of the trace it is: the device's, or a tier's in host memory.
    """

    memory: KvMemory
    """The keys and values behind the slots: there only where they are copied from pool to pool."""

    def __init__(self, tokens: int, page_size: int, probe: Probe, *, name: str = KV, kind: str = "kv") -> None:
        slots = tokens + page_size
        self.name = name
        self.size = tokens
        self.page_size = page_size
        self.free_pages = deque(range(1, slots // page_size))
        self._group: list[int] | None = None
        self._groups = (f"{name}-frees-{number}" for number in count(1))
        self._group_name = ""
        self._probe = probe
        probe.pool(name, kind=kind, size=slots, page=page_size, reserved=list(range(page_size)))

    @property
    def available(self) -> int:
        """Free slots."""
        return len(self.free_pages) * self.page_size

    def demand(self, held: int, more: int) -> int:
        """How many free slots it takes for an owner of `held` slots to get `more`: whole pages."""
        pages = -(-(held + more) // self.page_size) - -(-held // self.page_size)
        return pages * self.page_size

    def extend(self, held: list[int], more: int, owner: str) -> list[int]:
        """`more` new slots behind those held, first from the last page, then from free pages."""
        slots = self.next_slots(held[-1] if held else -1, more)
        if slots:
            self._probe.alloc(self.name, slots, owner=owner)
        return slots

    def next_slots(self, last: int, more: int) -> list[int]:
        """`more` slots behind slot `last` (-1: none), taken from free pages where its page ends."""
        slots: list[int] = []
        for _ in range(more):
            last = last + 1 if (last + 1) % self.page_size else self.free_pages.popleft() * self.page_size
            slots.append(last)
        return slots

    def slide(self, slots: list[int], begin: int, computed: int, owner: str) -> None:
        """The owner goes on from position `computed`: gives back what no layer sees any more, here nothing."""

    def prepare(self, stream: Stream) -> None:
        """Lets the stream's next work use what `address` gives."""

    def address(self, layer: int, slots: Slots) -> Slots:
        """Where the layer's keys and values of the token slots are; read on the device."""
        return slots

    def tell_data(self, slots: list[int], start: int, batch: str, owner: str, agent: str) -> None:
        """Tells kvsan what a batch writes: the slots from position `start` on of a request that has these."""
        self._probe.write(self.name, slots[start:], batch=batch, owner=owner, agent=agent)

    def usable(self, slots: list[int]) -> int:
        """How much of a cached prefix in these slots can be used."""
        return len(slots)

    def tell_insert(self, slots: list[int], owner: str, node: str, parent: str | None, ns: str | None = None) -> None:
        """Tells kvsan that the slots, and what goes with them, pass to a node of the prefix cache."""
        self._probe.insert(self.name, slots, owner=owner, node=node, parent=parent, ns=ns)

    def tell_split(self, node: str, child: str, slots: list[int]) -> None:
        """Tells kvsan that the slots, and what goes with them, pass to a node above their own."""
        self._probe.split(node=node, child=child, slots=slots, pool=self.name)

    def tell_give(self, slots: list[int], own: list[int], owner: str, to: str) -> None:
        """Tells kvsan that another owner has the slots from here on, and what goes with those that are the owner's
        `own` and not shared."""
        self._probe.give(self.name, slots, owner=owner, to=to)

    def tell_totals(self) -> None:
        """Tells kvsan the totals of what goes with the slots, here nothing."""

    def recover(self, slots: list[int], own: list[int], owner: str, node: str) -> None:
        """The owner has the node's tokens in slots of its own: completes the node's with them, here nothing."""

    def give_back(self, slots: list[int], owner: str, batch: str | None = None) -> None:
        """Gives back the pages of the slots; in a group of frees, they wait for its end. `batch` names the batch whose
        result is the occasion."""
        if not slots:
            return
        if self._group is None:
            self.reclaim(slots)
            self._probe.free(self.name, slots, owner=owner, batch=batch)
        else:
            self._group += slots
            self._probe.free(self.name, slots, owner=owner, group=self._group_name, batch=batch)

    def begin_group(self) -> None:
        """What is given back from here on is carried out together, at the group's end; groups do not nest."""
        self._group = []
        self._group_name = next(self._groups)

    def end_group(self) -> None:
        """Carries out what was given back in the group."""
        if self._group is not None:
            self.reclaim(self._group)
            self._group = None
            self._probe.flush(group=self._group_name)

    def reclaim(self, slots: list[int]) -> None:
        """Puts the pages of the slots into the free list."""
        self.free_pages.extend(dict.fromkeys(slot // self.page_size for slot in slots))
