"""Sliding window: the last layer's keys and values live in a second pool, found through a map from token slots.

A token slot whose window slot was given back, because the window moved on, is a tombstone: its map entry is 0, the
padding slot. Such a slot still serves the other layers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import bugs
from .pools import KvPool
from .probe import Probe
from .streams import Device, Stream, StreamEvent
from .weights import LAYERS

WINDOW = "window"
MAP = "full_to_window"

Slots = npt.NDArray[np.int64]


class WindowedKvPool(KvPool):
    """Token slots, and a window slot for each until the window of `window` tokens has moved on.

    `map` is the host's view. Changes reach the device's on the schedule stream, behind the forward's last reads.
    """

    def __init__(self, tokens: int, page_size: int, probe: Probe, window: int, bug: str | None) -> None:
        super().__init__(tokens, page_size, probe)
        self.window = KvPool(tokens, page_size, probe, name=WINDOW)
        self.map: Slots = np.zeros(tokens + page_size, dtype=np.int64)
        self._on_device = self.map.copy()
        self._changes: list[tuple[list[int], list[int]]] = []
        self._width = window
        self._bug = bug
        self._stale: dict[int, int] = {}
        self._schedule: Stream | None = None

    def connect(self, device: Device, schedule: Stream, rows_read: StreamEvent) -> None:
        """The stream on which the map changes; the forward reads the map where it reads rows."""
        self._schedule = schedule
        self._rows_read = rows_read
        self._written = device.event("map_written")

    # What the forward uses.

    def prepare(self, stream: Stream) -> None:
        assert self._schedule is not None
        if self._changes:
            changes, self._changes = self._changes, []
            self._schedule.wait(self._rows_read)
            self._schedule.submit(lambda: self._apply(changes))
            self._schedule.record(self._written)
        stream.wait(self._written)

    def address(self, layer: int, slots: Slots) -> Slots:
        return self._on_device[slots] if layer == LAYERS - 1 else slots

    def tell_data(self, slots: list[int], start: int, batch: str, owner: str, agent: str) -> None:
        super().tell_data(slots, start, batch, owner, agent)
        mapped = self.map[slots]
        self._probe.write(WINDOW, mapped[start:], batch=batch, owner=owner, agent=agent)
        seen = mapped[max(0, start - self._width + 1) :]
        self._probe.read(WINDOW, seen, batch=batch, owner=owner, agent=agent)

    # Taking and giving back.

    def extend(self, held: list[int], more: int, owner: str) -> list[int]:
        slots = super().extend(held, more, owner)
        paired: list[int] = []
        for slot in slots:
            last = -1 if slot % self.page_size == 0 else (paired[-1] if paired else int(self.map[slot - 1]))
            paired += self.window.next_slots(last, 1)
        if slots:
            self._probe.alloc(WINDOW, paired, owner=owner)
            self._set(slots, paired)
        return slots

    def give_back(self, slots: list[int], owner: str, batch: str | None = None) -> None:
        self._give_back_window(slots, owner)
        super().give_back(slots, owner, batch)

    def reclaim(self, slots: list[int]) -> None:
        super().reclaim(slots)
        keys = [key for key in self._page_mates(slots) if self.map[key]]
        if keys:
            self._reclaim_window([int(self.map[key]) for key in keys])
            self._clear(keys)

    def slide(self, slots: list[int], begin: int, computed: int, owner: str) -> None:
        """Gives back the window slots of the owner's whole pages from position `begin` on that no token from position
        `computed` on sees any more."""
        upto = (computed - self._width + 1) // self.page_size * self.page_size
        if upto > begin:
            self._give_back_window(slots[begin:upto], owner, moved=True)

    def _give_back_window(self, slots: list[int], owner: str, *, moved: bool = False) -> None:
        keys = self._page_mates(slots)
        if self._bug != bugs.TOMBSTONE_FREED or moved:
            keys = [key for key in keys if self.map[key]]
        if not keys:
            return
        self._reclaim_window([int(self.map[key]) for key in keys])
        self._probe.free(WINDOW, map=MAP, keys=keys, owner=owner)
        if moved and self._bug == bugs.STALE_MAP:
            self._stale.update((key, int(self.map[key])) for key in keys)
            self.map[keys] = 0
        elif moved and self._bug == bugs.TOMBSTONE_FREED:
            self._set(keys, [0] * len(keys))
        else:
            self._clear(keys)

    # What the prefix cache uses.

    def usable(self, slots: list[int]) -> int:
        """The longest prefix, in whole pages, after which the next token finds its window complete."""
        end = len(slots)
        while end > 0:
            low = max(0, end - self._width + 1)
            dead = [position for position in range(low, end) if not self.map[slots[position]]]
            if not dead:
                break
            end = dead[-1] // self.page_size * self.page_size
        return end

    def tell_insert(self, slots: list[int], owner: str, node: str, parent: str | None, ns: str | None = None) -> None:
        super().tell_insert(slots, owner, node, parent, ns)
        paired = [int(self.map[slot]) for slot in slots if self.map[slot]]
        if paired:
            self._probe.insert(WINDOW, paired, owner=owner, node=node, parent=parent, ns=ns)

    def tell_split(self, node: str, child: str, slots: list[int]) -> None:
        super().tell_split(node, child, slots)
        paired = [int(self.map[slot]) for slot in slots if self.map[slot]]
        if paired:
            self._probe.split(node=node, child=child, slots=paired, pool=WINDOW)

    def tell_give(self, slots: list[int], own: list[int], owner: str, to: str) -> None:
        super().tell_give(slots, own, owner, to)
        paired = [int(self.map[slot]) for slot in own if self.map[slot]]
        if paired:
            self._probe.give(WINDOW, paired, owner=owner, to=to)

    def tell_totals(self) -> None:
        self._probe.count(WINDOW, available=self.window.available, total=self.window.size)

    def recover(self, slots: list[int], own: list[int], owner: str, node: str) -> None:
        """Gives the node's tombstones the window slots that the owner has for the same tokens."""
        pairs = [(old, new) for old, new in zip(slots, own, strict=True) if not self.map[old] and self.map[new]]
        if not pairs:
            return
        tombstones, givers = [old for old, _ in pairs], [new for _, new in pairs]
        paired = [int(self.map[giver]) for giver in givers]
        if self._bug == bugs.STALE_MAP:
            self._reclaim_window([self._stale[key] for key in tombstones if key in self._stale])
        self._probe.free(WINDOW, map=MAP, keys=tombstones, owner=owner)
        self._probe.insert(WINDOW, paired, owner=owner, node=node)
        self._clear(givers)
        self._set(tombstones, paired)

    def _reclaim_window(self, slots: list[int]) -> None:
        """Window slots are reused at once, the last ones first."""
        self.window.free_pages.extendleft(dict.fromkeys(slot // self.page_size for slot in slots))

    def _set(self, keys: list[int], values: list[int]) -> None:
        self.map[keys] = values
        self._changes.append((keys, values))
        for key in keys:
            self._stale.pop(key, None)
        self._probe.map_set(map=MAP, key=keys, val=values)

    def _clear(self, keys: list[int]) -> None:
        self.map[keys] = 0
        self._changes.append((keys, [0] * len(keys)))
        self._probe.map_clear(map=MAP, key=keys)

    def _apply(self, changes: list[tuple[list[int], list[int]]]) -> None:
        for keys, values in changes:
            self._on_device[keys] = values

    def _page_mates(self, slots: list[int]) -> list[int]:
        pages = dict.fromkeys(slot // self.page_size for slot in slots)
        return [slot for page in pages for slot in range(page * self.page_size, (page + 1) * self.page_size)]
