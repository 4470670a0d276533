"""The model: a few seeded layers of attention, or of attention and a selective state space (hybrid).

The model knows neither rows nor slots: `Memory` is where its keys, values and states live. The engine's memory is paged
and shared, the oracle's is a plain array, and the results are equal to the bit (see `arithmetic`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .adapters import adapt
from .arithmetic import Array, attend, linear, normalize
from .config import MAX_CONTEXT
from .tokenizer import EOS, VOCABULARY, encode

if TYPE_CHECKING:
    from .shards import Shard

LAYERS = 2
HEADS = 2
HEAD_DIM = 8
DIM = HEADS * HEAD_DIM
HIDDEN = 2 * DIM
LETTERS_BIAS = 3.0
"""Makes the model prefer letters, so that its answers can be looked at."""

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
        """The request's recurrent state, shape [dim], before the span's first token."""

    def keep_states(self, layer: int, span: int, states: Array) -> None:
        """Takes the states after each of the span's tokens, shape [tokens, dim]; the last one must be kept."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of one layer; `mix_in` gives q, k, v of attention, or input, decay and gate of the state space."""

    recurrent: bool
    mix_in: Array
    mix_out: Array
    up: Array
    down: Array


class Model:
    """Seeded weights and the forward pass; of several tensor ranks, each has a shard of the attention heads."""

    def __init__(self, seed: int, *, hybrid: bool = False, window: int = 0, shard: Shard | None = None) -> None:
        self._shard = shard
        random = np.random.default_rng(seed)

        def matrix(rows: int, columns: int) -> Array:
            weights: Array = random.standard_normal((rows, columns)) / np.sqrt(rows)
            return weights

        self.hybrid = hybrid
        self._windows = [0] * (LAYERS - 1) + [window]
        self._tokens = random.standard_normal((VOCABULARY, DIM))
        self._positions = random.standard_normal((MAX_CONTEXT, DIM))
        self._layers = [
            _Layer(
                recurrent=hybrid and index == LAYERS - 1,
                mix_in=2 * matrix(DIM, 3 * DIM),
                mix_out=3 * matrix(DIM, DIM),
                up=matrix(DIM, HIDDEN),
                down=matrix(HIDDEN, DIM),
            )
            for index in range(LAYERS)
        ]
        self._head = matrix(DIM, VOCABULARY)
        self._bias = np.zeros(VOCABULARY)
        self._bias[encode("abcdefghijklmnopqrstuvwxyz ")] = LETTERS_BIAS
        self._bias[EOS] = 2.5

    def forward(self, tokens: Tokens, spans: list[Span], memory: Memory) -> Array:
        """The last layer's output [tokens, dim] for the batch's tokens; reads and extends the memory."""
        positions = np.concatenate([np.arange(s.first, s.first + s.end - s.begin) for s in spans])
        x = self._tokens[tokens] + self._positions[positions]
        for index, layer in enumerate(self._layers):
            mix = self._recur if layer.recurrent else self._attend
            inputs = normalize(x)
            mixed = linear(inputs, layer.mix_in)
            for span in spans:
                if span.adapter is not None:
                    part = slice(span.begin, span.end)
                    mixed[part] = adapt(inputs[part], mixed[part], index, span.adapter)
            x = x + linear(mix(index, mixed, spans, memory), layer.mix_out)
            x = x + linear(np.maximum(linear(normalize(x), layer.up), 0.0), layer.down)
        return normalize(x)

    def logits(self, hidden: Array) -> Array:
        """Scores of the next token, shape [tokens, vocabulary]."""
        return linear(hidden, self._head) + self._bias

    def _attend(self, index: int, mixed: Array, spans: list[Span], memory: Memory) -> Array:
        queries, keys, values = (part.reshape(-1, HEADS, HEAD_DIM) for part in np.split(mixed, 3, axis=1))
        if self._shard is not None:
            queries, keys, values = (part[:, self._shard.heads] for part in (queries, keys, values))
        memory.store(index, keys, values)
        parts = [
            attend(queries[span.begin : span.end], *memory.context(index, number), span.first, self._windows[index])
            for number, span in enumerate(spans)
        ]
        heads = np.concatenate(parts)
        if self._shard is not None:
            heads = self._shard.gather(heads)
        return heads.reshape(-1, DIM)

    def _recur(self, index: int, mixed: Array, spans: list[Span], memory: Memory) -> Array:
        inputs, decays, gates = np.split(mixed, 3, axis=1)
        keep = 0.5 + 0.5 * decays / (1.0 + np.abs(decays))
        states = np.empty_like(inputs)
        for number, span in enumerate(spans):
            state = memory.state(index, number)
            for token in range(span.begin, span.end):
                state = keep[token] * state + inputs[token]
                states[token] = state
            memory.keep_states(index, number, states[span.begin : span.end])
        return states * gates


def choose(logits: Array, temperature: float, seed: int, position: int) -> int:
    """The token for the position: the best one, or one drawn by the Gumbel trick from the seed and the position.

    `logits` has shape [vocabulary]. Equal arguments give equal tokens, whatever else is in the batch.
    """
    if temperature > 0.0:
        noise = np.random.default_rng((seed, position)).gumbel(size=logits.shape[0])
        logits = logits + temperature * noise
    return int(np.argmax(logits))
