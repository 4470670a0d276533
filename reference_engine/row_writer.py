"""The one place where rows are written: work on the schedule stream, behind the forward's last row reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .pools import KV, ROWS
from .probe import Probe
from .streams import Stream, StreamEvent


@dataclass(frozen=True, slots=True)
class RowWrite:
    """Slots for the cells [position, position + len(slots)) of a row."""

    row: int
    position: int
    slots: list[int]
    owner: str


class RowWriter:
    """Writes rows on the schedule stream.

    The forward stream records `rows_read` when it has captured its rows. Unless told otherwise, the schedule stream
    waits for that before it writes (write after read); the forward waits for `rows_written` before it reads.
    `write_rows` carries writes out, in order.
    """

    def __init__(
        self,
        schedule: Stream,
        rows_read: StreamEvent,
        rows_written: StreamEvent,
        probe: Probe,
        write_rows: Callable[[list[RowWrite]], None],
    ) -> None:
        self.rows_read = rows_read
        self.rows_written = rows_written
        self._schedule = schedule
        self._probe = probe
        self._write_rows = write_rows

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
        self._schedule.submit(lambda: self._write_rows(writes))
        self._schedule.record(self.rows_written)
