"""The forward stream: captures rows, runs the model on paged memory and draws tokens, all behind the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt

from .arithmetic import Array
from .batch import Batch, Item
from .model import Model, Span, choose
from .pools import KV, ROWS, STATES, KvPool, RowPool, StatePool
from .probe import Probe
from .row_writer import RowWriter
from .streams import Device, Stream, StreamEvent

Slots = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class _PagedMemory:
    """The batch's view of the pools: it writes the batch's new slots and reads the captured ones."""

    kv: KvPool
    states: StatePool | None
    written: Slots
    captured: list[Slots]
    items: list[Item] = field(default_factory=list)

    def store(self, layer: int, keys: Array, values: Array) -> None:
        self.kv.keys[layer, self.written] = keys
        self.kv.values[layer, self.written] = values

    def context(self, layer: int, span: int) -> tuple[Array, Array]:
        slots = self.captured[span]
        return self.kv.keys[layer, slots], self.kv.values[layer, slots]

    def state(self, layer: int, span: int) -> Array:
        use = self.items[span].state
        assert self.states is not None and use is not None
        state: Array = self.states.data[use.slot, layer]
        return state

    def keep_states(self, layer: int, span: int, states: Array) -> None:
        item = self.items[span]
        assert self.states is not None and item.state is not None
        self.states.data[item.state.slot, layer] = states[-1]
        if item.state.track is not None:
            self.states.data[item.state.track, layer] = states[item.state.track_at - item.start - 1]


class Forward:
    """Launches batches on the forward stream."""

    def __init__(
        self,
        model: Model,
        device: Device,
        stream: Stream,
        rows: RowPool,
        kv: KvPool,
        states: StatePool | None,
        writer: RowWriter,
        probe: Probe,
    ) -> None:
        self._model = model
        self._device = device
        self._stream = stream
        self._rows = rows
        self._kv = kv
        self._states = states
        self._writer = writer
        self._probe = probe
        self._last_drawn = np.zeros(rows.table.shape[0], dtype=np.int64)
        self._idle_events: list[StreamEvent] = []
        self._event_names = (f"batch_done_{number}" for number in count(1))

    def launch(self, batch: Batch) -> None:
        """Queues the batch: first its row reads, then everything that needs what they gave."""
        captured: list[Slots] = []
        self._stream.wait(self._writer.rows_written)
        for item in batch.items:
            self._probe.capture(
                ROWS, row=item.row, upto=item.upto, batch=batch.name, owner=item.request.rid, agent=self._stream.name
            )
        reads = [(item.row, item.upto) for item in batch.items]
        self._stream.submit(lambda: captured.extend(self._rows.table[row, :upto].copy() for row, upto in reads))
        self._stream.record(self._writer.rows_read)
        self._probe.launch(batch=batch.name, agent=self._stream.name)
        self._tell_data(batch)
        self._stream.submit(lambda: self._run(batch, captured))
        batch.finished = self._idle_events.pop() if self._idle_events else self._device.event(next(self._event_names))
        self._stream.record(batch.finished)

    def result(self, batch: Batch) -> list[int]:
        """Waits for the batch; the drawn token of each item, 0 where none was drawn."""
        assert batch.finished is not None
        batch.finished.synchronize()
        self._idle_events.append(batch.finished)
        self._probe.done(batch=batch.name)
        return batch.drawn

    def _run(self, batch: Batch, captured: list[Slots]) -> None:
        items = batch.items
        tokens: list[int] = []
        spans: list[Span] = []
        for item in items:
            inputs = [int(self._last_drawn[item.row])] if item.tokens is None else item.tokens
            spans.append(Span(len(tokens), len(tokens) + len(inputs), item.start))
            tokens += inputs
            if self._states is not None and item.state is not None and item.state.source is not None:
                self._states.data[item.state.slot] = self._states.data[item.state.source]
        written = np.array([slot for item in items for slot in item.slots], dtype=np.int64)
        memory = _PagedMemory(self._kv, self._states, written, captured, items)
        hidden = self._model.forward(np.array(tokens, dtype=np.int64), spans, memory)
        logits = self._model.logits(hidden[[span.end - 1 for span in spans]])
        for item, scores in zip(items, logits, strict=True):
            sampling = item.request.sampling
            drawn = choose(scores, sampling.temperature, sampling.seed, item.upto) if item.samples else 0
            self._last_drawn[item.row] = drawn
            batch.drawn.append(drawn)

    def _tell_data(self, batch: Batch) -> None:
        """Tells kvsan which slots the batch writes, and which states it clears, copies, reads and writes."""
        if not self._probe.data:
            return
        for item in batch.items:
            who = {"owner": item.request.rid, "batch": batch.name, "agent": self._stream.name}
            self._probe.write(KV, item.slots, **who)
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
