"""Sparse attention: what a request registers when it gets its row, and unregisters when it gives it up.

A registered row has buffers on the device. In each, the forward keeps a bound of the keys of one block of the row's
tokens, from which a sparse attention chooses the blocks that are worth reading. Here its budget covers them all, so
that no token changes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from .batch import Batch
from .pools import KvPool
from .probe import Probe
from .streams import Stream

SPARSE = "sparse"
BLOCKS = 4
"""Into how many blocks a row is divided, each with a buffer."""


@dataclass(slots=True)
class _Registration:
    """The buffers of a row, and up to which position their bounds reach."""

    buffers: list[int]
    upto: int = 0


class Sparse:
    """The coordinator: one registration for each row that a request works with. Buffer 0 is never handed out."""

    def __init__(self, rows: int, width: int, kv: KvPool, forward: Stream, probe: Probe) -> None:
        self.size = rows * BLOCKS
        self._kv = kv
        self._forward = forward
        self._probe = probe
        self._block = -(-width // BLOCKS)
        self._bounds = np.full((self.size + 1, *kv.memory.keys[0].shape[1:]), np.nan)
        self._free = deque(range(1, self.size + 1))
        self._registered: dict[int, _Registration] = {}
        probe.pool(SPARSE, kind="state", size=self.size + 1, page=1, reserved=[0], init=True)

    @property
    def available(self) -> int:
        """Free buffers."""
        return len(self._free)

    @property
    def has_room(self) -> bool:
        """Whether one more row can be registered."""
        return len(self._free) >= BLOCKS

    def begin(self, row: int, owner: str) -> None:
        """Registers the row; the caller has checked that there is room."""
        registration = _Registration([self._free.popleft() for _ in range(BLOCKS)])
        self._probe.alloc(SPARSE, registration.buffers, owner=owner)
        self._registered[row] = registration

    def end(self, row: int, owner: str) -> None:
        """Unregisters the row; one that is not registered, such as that of an idle session, is no error."""
        registration = self._registered.pop(row, None)
        if registration is not None:
            self._free.extend(registration.buffers)
            self._probe.free(SPARSE, registration.buffers, owner=owner)

    def index(self, batch: Batch) -> None:
        """Queues, behind the batch on its stream, that the bounds take in what it computes."""
        for item in batch.items:
            registration = self._registered[item.row]
            begin, upto = min(registration.upto, item.start), item.upto
            registration.upto = upto
            slots = np.array(item.request.kv.slots[begin:upto], dtype=np.int64)
            touched = registration.buffers[begin // self._block : (upto - 1) // self._block + 1]
            who = {"owner": item.request.rid, "batch": batch.name, "agent": self._forward.name}
            if self._probe.data and begin % self._block:
                self._probe.read(SPARSE, touched[:1], **who)
            if self._probe.data:
                self._probe.write(SPARSE, touched, **who)
            self._forward.submit(lambda b=begin, s=slots, t=touched: self._take_in(b, s, t))  # type: ignore[misc]

    def _take_in(self, begin: int, slots: np.ndarray[tuple[int], np.dtype[np.int64]], buffers: list[int]) -> None:
        keys = self._kv.memory.keys[0][slots]
        blocks = (begin + np.arange(len(slots))) // self._block - begin // self._block
        for number, buffer in enumerate(buffers):
            bound = keys[blocks == number].max(axis=0)
            continues = number == 0 and begin % self._block
            self._bounds[buffer] = np.maximum(self._bounds[buffer], bound) if continues else bound
