"""The forward stream: captures rows, runs the model on paged memory and draws tokens, all behind the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt

from .arithmetic import Array
from .batch import Batch, Item
from .model import LAYERS, Model, Span, choose
from .pools import ROWS, STATES, KvPool, RowPool, StatePool
from .probe import Probe
from .row_writer import RowWriter
from .streams import Device, Stream, StreamEvent

Slots = npt.NDArray[np.int64]

LANES = 4
"""A batch of decodes runs with a multiple of so many lanes, as a captured graph would; padding lanes compute on the
reserved slot 0 of every pool."""


@dataclass(slots=True, eq=False)
class _PagedMemory:
    """The batch's view of the pools, by layer: it writes the batch's new slots and reads the captured ones."""

    kv: KvPool
    states: StatePool | None
    written: list[Slots]
    captured: list[list[Slots]]
    items: list[Item] = field(default_factory=list)

    def store(self, layer: int, keys: Array, values: Array) -> None:
        self.kv.keys[layer][self.written[layer]] = keys
        self.kv.values[layer][self.written[layer]] = values

    def context(self, layer: int, span: int) -> tuple[Array, Array]:
        slots = self.captured[span][layer]
        return self.kv.keys[layer][slots], self.kv.values[layer][slots]

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
        self._latest: StreamEvent | None = None
        self.behind: Callable[[Batch], object] = lambda batch: None
        """Queues what is to run behind a batch and before its end."""
        self._idle_events: list[StreamEvent] = []
        self._event_names = (f"batch_done_{number}" for number in count(1))

    def launch(self, batch: Batch) -> None:
        """Queues the batch: first its row reads, then everything that needs what they gave."""
        written: list[Slots] = []
        captured: list[list[Slots]] = []
        self._stream.wait(self._writer.rows_written)
        self._kv.prepare(self._stream)
        for item in batch.items:
            self._probe.capture(
                ROWS, row=item.row, upto=item.upto, batch=batch.name, owner=item.request.rid, agent=self._stream.name
            )
        reads = [(item.row, item.upto) for item in batch.items]
        new = np.array([slot for item in batch.items for slot in item.slots], dtype=np.int64)

        def capture() -> None:
            captured.extend(self._addresses(self._rows.table[row, :upto].copy()) for row, upto in reads)
            written.extend(self._addresses(new))

        self._stream.submit(capture)
        self._stream.record(self._writer.rows_read)
        self._probe.launch(batch=batch.name, agent=self._stream.name)
        self._tell_data(batch)
        self._stream.submit(lambda: self._run(batch, written, captured))
        self.behind(batch)
        batch.finished = self._idle_events.pop() if self._idle_events else self._device.event(next(self._event_names))
        self._stream.record(batch.finished)
        self._latest = batch.finished

    def latest(self) -> StreamEvent | None:
        """The end of the batch that was launched last: what other streams wait for before they touch its slots."""
        return self._latest

    def prime(self, row: int, token: int) -> None:
        """Makes the token, drawn elsewhere, the input of the row's next decode."""
        self._stream.submit(lambda: self._last_drawn.__setitem__(row, token))

    def result(self, batch: Batch) -> list[list[int]]:
        """Waits for the batch; the drawn tokens of each item."""
        assert batch.finished is not None
        batch.finished.synchronize()
        self._idle_events.append(batch.finished)
        self._probe.done(batch=batch.name)
        return batch.drawn

    def _addresses(self, slots: Slots) -> list[Slots]:
        return [self._kv.address(layer, slots) for layer in range(LAYERS)]

    def _run(self, batch: Batch, written: list[Slots], captured: list[list[Slots]]) -> None:
        items = batch.items
        tokens: list[int] = []
        spans: list[Span] = []
        for item in items:
            inputs = [int(self._last_drawn[item.row])] if item.tokens is None else item.tokens
            spans.append(Span(len(tokens), len(tokens) + len(inputs), item.start, item.request.adapter))
            tokens += inputs
            use = item.state
            if self._states is not None and use is not None and use.source is not None:
                self._states.data[use.slot] = self._states.data[use.source] if use.source else 0.0
        memory = _PagedMemory(self._kv, self._states, written, captured, items)
        hidden = self._model.forward(np.array(tokens, dtype=np.int64), spans, memory)
        for item, span in zip(items, spans, strict=True):
            sampling = item.request.sampling
            scores = self._model.logits(hidden[span.end - item.draws : span.end]) if item.draws else ()
            first = item.upto - item.draws + 1
            drawn = [choose(s, sampling.temperature, sampling.seed, first + n) for n, s in enumerate(scores)]
            self._last_drawn[item.row] = drawn[-1] if drawn else 0
            batch.drawn.append(drawn)
        if _has_padding(batch):
            for layer in (*self._kv.keys, *self._kv.values):
                layer[0] = 1.0
            if self._states is not None:
                self._states.data[0] = 1.0

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
        if _has_padding(batch):
            for pool in (self._kv.name,) if self._states is None else (self._kv.name, STATES):
                self._probe.write(pool, 0, batch=batch.name, agent=self._stream.name)


def _has_padding(batch: Batch) -> bool:
    return all(item.tokens is None for item in batch.items) and len(batch.items) % LANES != 0
