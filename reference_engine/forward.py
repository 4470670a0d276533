"""The forward stream: captures rows, computes batches and draws tokens, all behind the host."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from .batch import Batch
from .compute import Compute
from .pools import ROWS, STATES, KvPool, StatePool
from .probe import Probe
from .row_writer import RowWriter
from .streams import Device, Stream, StreamEvent


class Forward:
    """Launches batches on the forward stream."""

    def __init__(
        self,
        compute: Compute,
        device: Device,
        stream: Stream,
        kv: KvPool,
        states: StatePool | None,
        writer: RowWriter,
        probe: Probe,
    ) -> None:
        self._compute = compute
        self._device = device
        self._stream = stream
        self._kv = kv
        self._states = states
        self._writer = writer
        self._probe = probe
        self._latest: StreamEvent | None = None
        self.behind: Callable[[Batch], object] = lambda batch: None
        """Queues what is to run behind a batch and before its end."""
        self._idle_events: list[StreamEvent] = []
        self._event_names = (f"batch_done_{number}" for number in count(1))

    def launch(self, batch: Batch) -> None:
        """Queues the batch: first its row reads, then everything that needs what they gave."""
        step = batch.step = self._compute.step(batch)
        self._stream.wait(self._writer.rows_written)
        self._kv.prepare(self._stream)
        for item in batch.items:
            self._probe.capture(
                ROWS, row=item.row, upto=item.upto, batch=batch.name, owner=item.request.rid, agent=self._stream.name
            )
        self._stream.submit(step.capture)
        self._stream.record(self._writer.rows_read)
        self._probe.launch(batch=batch.name, agent=self._stream.name)
        self._tell_data(batch)
        self._stream.submit(step.run)
        self.behind(batch)
        batch.finished = self._idle_events.pop() if self._idle_events else self._device.event(next(self._event_names))
        self._stream.record(batch.finished)
        self._latest = batch.finished

    def latest(self) -> StreamEvent | None:
        """The end of the batch that was launched last: what other streams wait for before they touch its slots."""
        return self._latest

    def prime(self, row: int, token: int) -> None:
        """Makes the token, drawn elsewhere, the input of the row's next decode."""
        self._stream.submit(lambda: self._compute.prime(row, token))

    def result(self, batch: Batch) -> list[list[int]]:
        """Waits for the batch; the drawn tokens of each item."""
        assert batch.step is not None and batch.finished is not None
        batch.finished.synchronize()
        self._idle_events.append(batch.finished)
        self._probe.done(batch=batch.name)
        return batch.step.drawn()

    def _tell_data(self, batch: Batch) -> None:
        """Tells kvsan which slots the batch writes, and which states it clears, copies, reads and writes."""
        if not self._probe.data:
            return
        for item in batch.items:
            who = {"owner": item.request.rid, "batch": batch.name, "agent": self._stream.name}
            slots = item.request.kv.slots[: item.upto]
            self._kv.tell_data(slots, item.start, batch.name, item.request.rid, self._stream.name)
            use = item.state
            if use is None:
                continue
            if use.source is not None:
                if use.source:
                    self._probe.read(STATES, use.source, **who)
                self._probe.write(STATES, use.slot, **who)
            self._probe.read(STATES, use.slot, **who)
            self._probe.write(STATES, use.slot, **who)
            if use.track is not None:
                self._probe.write(STATES, use.track, **who)
        if self._compute.pads(batch):
            for pool in (self._kv.name,) if self._states is None else (self._kv.name, STATES):
                self._probe.write(pool, 0, batch=batch.name, agent=self._stream.name)
