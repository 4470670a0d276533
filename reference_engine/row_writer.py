"""The one place where rows are written: work on the schedule stream, behind the forward's last row reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .pools import KV, ROWS, RowPool
from .probe import Probe
from .streams import Stream, StreamEvent

Table = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowWrite:
    """Slots for the cells [position, position + len(slots)) of a row."""

    row: int
    position: int
    slots: list[int]
    owner: str


Backend = Callable[[Table, list[RowWrite]], None]


def write_rows(table: Table, writes: list[RowWrite]) -> None:
    """The backend for a table in host memory."""
    for write in writes:
        table[write.row, write.position : write.position + len(write.slots)] = write.slots


class RowWriter:
    """Writes rows on the schedule stream.

    The forward stream records `rows_read` when it has captured its rows. Unless told otherwise, the schedule stream
    waits for that before it writes (write after read); the forward waits for `rows_written` before it reads.
    """

    def __init__(
        self,
        rows: RowPool,
        schedule: Stream,
        rows_read: StreamEvent,
        rows_written: StreamEvent,
        probe: Probe,
        backend: Backend = write_rows,
    ) -> None:
        self.rows_read = rows_read
        self.rows_written = rows_written
        self._table = rows.table
        self._schedule = schedule
        self._probe = probe
        self._backend = backend

    def write(self, writes: list[RowWrite], *, batch: str | None = None, after_reads: bool = True) -> None:
        """Queues the writes, in order; `batch` names the batch that they prepare."""
        if not writes:
            return
        if after_reads:
            self._schedule.wait(self.rows_read)
        for write in writes:
            self._probe.row_write(
                ROWS,
                row=write.row,
                pos=write.position,
                into=KV,
                slots=write.slots,
                batch=batch,
                owner=write.owner,
                agent=self._schedule.name,
            )
        self._schedule.submit(lambda: self._backend(self._table, writes))
        self._schedule.record(self.rows_written)
