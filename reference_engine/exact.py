"""Computing in NumPy: every token is equal to the oracle's, whatever is batched, chunked or cached.

Its arrays are no torch tensors: at these sizes torch's calls take 1.5 to 2.5 times as long (see `arithmetic`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .arithmetic import Array
from .batch import Batch
from .compute import GRAPH_LANES, Sizes, Slots
from .config import EngineConfig
from .memory import KvMemory
from .model import Model, Span, choose
from .row_writer import RowWrite
from .shards import Shard
from .weights import DIM, HEADS, LAYERS, STATE_DIM


class Exact:
    """The rows are [rows, width] int32, the states [states, LAYERS, DIM, STATE_DIM] float64."""

    name = "exact"
    tolerance = 0.0

    def __init__(
        self, config: EngineConfig, sizes: Sizes, address: Callable[[int, Slots], Slots], shard: Shard
    ) -> None:
        self.model = Model(config.model_seed, hybrid=config.hybrid, window=config.window, shard=shard)
        self.kv = KvMemory(sizes.slots, HEADS // shard.world)
        self.states: Array = np.full((sizes.states, LAYERS, DIM, STATE_DIM), np.nan)
        self.rows: npt.NDArray[np.int32] = np.zeros((sizes.rows, sizes.width), dtype=np.int32)
        self.last_drawn: Slots = np.zeros(sizes.rows, dtype=np.int64)
        self._address = address

    def write_rows(self, writes: list[RowWrite]) -> None:
        for write in writes:
            self.rows[write.row, write.position : write.position + len(write.slots)] = write.slots

    def prime(self, row: int, token: int) -> None:
        self.last_drawn[row] = token

    def step(self, batch: Batch) -> ExactStep:
        return ExactStep(self, batch)

    def pads(self, batch: Batch) -> bool:
        return all(item.tokens is None for item in batch.items) and len(batch.items) % GRAPH_LANES != 0

    def addresses(self, slots: Slots) -> list[Slots]:
        """Where each layer keeps the token slots."""
        return [self._address(layer, slots) for layer in range(LAYERS)]


class ExactStep:
    """One batch; to the model it is the memory of its keys, values and states."""

    def __init__(self, compute: Exact, batch: Batch) -> None:
        self._compute = compute
        self._batch = batch
        self._captured: list[list[Slots]] = []
        self._written: list[Slots] = []
        self._drawn: list[list[int]] = []

    def capture(self) -> None:
        compute, items = self._compute, self._batch.items
        self._captured = [
            compute.addresses(compute.rows[item.row, : item.upto].astype(np.int64))  # a copy
            for item in items
        ]
        self._written = compute.addresses(np.array([slot for item in items for slot in item.slots], dtype=np.int64))

    def run(self) -> None:
        compute, items = self._compute, self._batch.items
        tokens: list[int] = []
        spans: list[Span] = []
        for item in items:
            inputs = [int(compute.last_drawn[item.row])] if item.tokens is None else item.tokens
            spans.append(Span(len(tokens), len(tokens) + len(inputs), item.start, item.request.adapter))
            tokens += inputs
            use = item.state
            if use is not None and use.source is not None:
                compute.states[use.slot] = compute.states[use.source] if use.source else 0.0
        hidden = compute.model.forward(np.array(tokens, dtype=np.int64), spans, self)
        for item, span in zip(items, spans, strict=True):
            sampling = item.request.sampling
            scores = compute.model.logits(hidden[span.end - item.draws : span.end]) if item.draws else ()
            first = item.upto - item.draws + 1
            drawn = [choose(s, sampling.temperature, sampling.seed, first + n) for n, s in enumerate(scores)]
            compute.last_drawn[item.row] = drawn[-1] if drawn else 0
            self._drawn.append(drawn)
        if compute.pads(self._batch):
            for layer in (*compute.kv.keys, *compute.kv.values):
                layer[0] = 1.0
            compute.states[:1] = 1.0

    def drawn(self) -> list[list[int]]:
        return self._drawn

    # The model's memory: it writes the batch's new slots and reads the captured ones.

    def store(self, layer: int, keys: Array, values: Array) -> None:
        self._compute.kv.keys[layer][self._written[layer]] = keys
        self._compute.kv.values[layer][self._written[layer]] = values

    def context(self, layer: int, span: int) -> tuple[Array, Array]:
        slots = self._captured[span][layer]
        return self._compute.kv.keys[layer][slots], self._compute.kv.values[layer][slots]

    def state(self, layer: int, span: int) -> Array:
        use = self._batch.items[span].state
        assert use is not None
        state: Array = self._compute.states[use.slot, layer]
        return state

    def keep_states(self, layer: int, span: int, states: Array) -> None:
        item = self._batch.items[span]
        assert item.state is not None
        self._compute.states[item.state.slot, layer] = states[-1]
        if item.state.track is not None:
            self._compute.states[item.state.track, layer] = states[item.state.track_at - item.start - 1]
