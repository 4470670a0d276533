"""The model on a CPU, exact: what `weights` says, in float64 and `arithmetic`.

The model knows neither rows nor slots: `Memory` is where its keys, values and states live. The engine's memory is paged
and shared, the oracle's is a plain array, and the results are equal to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .adapters import adapt
from .arithmetic import Array, attend, linear, normalize, scan
from .weights import DIM, HEAD_DIM, HEADS, LAYERS, SCALE, STATE_DIM, STEP, Layer, Weights

if TYPE_CHECKING:
    from .shards import Shard

Tokens = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Span:
    """One request's part of a batch: tokens [begin, end) of the batch, standing at positions from `first` on, computed
    with the weights of the adapter where one is named."""

    begin: int
    end: int
    first: int
    adapter: str | None = None


class Memory(Protocol):
    """Keys, values and states of one batch. Layers count from 0, `span` is the index of a span of the batch."""

    def store(self, layer: int, keys: Array, values: Array) -> None:
        """Keeps keys and values [tokens, heads, dim] of all the batch's tokens."""

    def context(self, layer: int, span: int) -> tuple[Array, Array]:
        """Keys and values [length, heads, dim] of the span's request from position 0 to the span's last."""

    def state(self, layer: int, span: int) -> Array:
        """The request's recurrent state, shape [dim, lanes], before the span's first token."""

    def keep_states(self, layer: int, span: int, states: Array) -> None:
        """Takes the states after each of the span's tokens, shape [tokens, dim, lanes]; the last one must be kept."""


class Model:
    """Seeded weights and the forward pass; of several tensor ranks, each has a shard of the attention heads."""

    def __init__(self, seed: int, *, hybrid: bool = False, window: int = 0, shard: Shard | None = None) -> None:
        self._weights = Weights(seed, hybrid=hybrid)
        self._windows = [0] * (LAYERS - 1) + [window]
        self._shard = shard

    def forward(self, tokens: Tokens, spans: list[Span], memory: Memory) -> Array:
        """The last layer's output [tokens, dim] for the batch's tokens; reads and extends the memory."""
        positions = np.concatenate([np.arange(s.first, s.first + s.end - s.begin) for s in spans])
        x = self._weights.tokens[tokens] + self._weights.positions[positions]
        for index, layer in enumerate(self._weights.layers):
            inputs = normalize(x)
            mixed = linear(inputs, layer.mix_in)
            for span in spans:
                if span.adapter is not None:
                    part = slice(span.begin, span.end)
                    mixed[part] = adapt(inputs[part], mixed[part], index, span.adapter)
            if layer.recurrent:
                mixed = self._recur(index, layer, mixed, spans, memory)
            else:
                mixed = self._attend(index, mixed, spans, memory)
            x = x + linear(mixed, layer.mix_out)
            x = x + linear(np.maximum(linear(normalize(x), layer.up), 0.0), layer.down)
        return normalize(x)

    def logits(self, hidden: Array) -> Array:
        """Scores of the next token, shape [tokens, vocabulary]."""
        return linear(hidden, self._weights.head) + self._weights.bias

    def _attend(self, index: int, mixed: Array, spans: list[Span], memory: Memory) -> Array:
        queries, keys, values = (part.reshape(-1, HEADS, HEAD_DIM) for part in np.split(mixed, 3, axis=1))
        if self._shard is not None:
            queries, keys, values = (part[:, self._shard.heads] for part in (queries, keys, values))
        memory.store(index, keys, values)
        window = self._windows[index]
        parts = [
            attend(queries[span.begin : span.end], *memory.context(index, number), span.first, window, SCALE)
            for number, span in enumerate(spans)
        ]
        heads = np.concatenate(parts)
        if self._shard is not None:
            heads = self._shard.gather(heads)
        return heads.reshape(-1, DIM)

    def _recur(self, index: int, layer: Layer, mixed: Array, spans: list[Span], memory: Memory) -> Array:
        x, steps, b, c = np.split(mixed, (DIM, 2 * DIM, 2 * DIM + STATE_DIM), axis=1)
        delta = (STEP / 2) * (steps + np.sqrt(steps * steps + 1.0))
        outputs = []
        for number, span in enumerate(spans):
            x_, delta_, b_, c_ = (part[span.begin : span.end] for part in (x, delta, b, c))
            output, states = scan(memory.state(index, number), x_, delta_, layer.rates, b_, c_, layer.skip)
            memory.keep_states(index, number, states)
            outputs.append(output)
        return np.concatenate(outputs)


def choose(logits: Array, temperature: float, seed: int, position: int) -> int:
    """The token for the position: the best one, or one drawn by the Gumbel trick from the seed and the position.

    `logits` has shape [vocabulary]. Equal arguments give equal tokens, whatever else is in the batch.
    """
    return int(np.argmax(drawing_scores(logits, temperature, seed, position)))


def drawing_scores(logits: Array, temperature: float, seed: int, position: int) -> Array:
    """The scores whose best is the token for the position."""
    if temperature > 0.0:
        return logits + noise(temperature, seed, position, logits.shape[0])
    return logits


def noise(temperature: float, seed: int, position: int, size: int) -> Array:
    """What is added to the scores of the position's `size` tokens, so that the best one is a drawn one."""
    return temperature * np.random.default_rng((seed, position)).gumbel(size=size)
