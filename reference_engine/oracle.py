"""The right answer: the same model without cache, batch or overlap."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .arithmetic import Array
from .model import DIM, LAYERS, Model, Span, choose
from .request import SamplingParams
from .tokenizer import EOS


class _Scratch:
    """Memory of one request that is computed from its first token, and forgotten."""

    def __init__(self) -> None:
        self._kept: list[tuple[Array, Array]] = [(np.empty(0), np.empty(0))] * LAYERS

    def store(self, layer: int, keys: Array, values: Array) -> None:
        self._kept[layer] = keys, values

    def context(self, layer: int, span: int) -> tuple[Array, Array]:
        return self._kept[layer]

    def state(self, layer: int, span: int) -> Array:
        return np.zeros(DIM)

    def keep_states(self, layer: int, span: int, states: Array) -> None:
        pass


class Oracle:
    """Generates tokens from scratch, each from the whole text before it."""

    def __init__(self, model_seed: int = 0, *, hybrid: bool = False) -> None:
        self._model = Model(model_seed, hybrid=hybrid)
        self._next = lru_cache(maxsize=4096)(self._logits)

    def generate(self, prompt: list[int], sampling: SamplingParams) -> list[int]:
        """The output tokens for the prompt, the end token included where one was drawn."""
        tokens = tuple(prompt)
        output: list[int] = []
        while len(output) < sampling.max_new_tokens:
            token = choose(self._next(tokens), sampling.temperature, sampling.seed, len(tokens))
            output.append(token)
            tokens = (*tokens, token)
            if token == EOS and not sampling.ignore_eos:
                break
        return output

    def _logits(self, tokens: tuple[int, ...]) -> Array:
        span = Span(0, len(tokens), 0)
        hidden = self._model.forward(np.array(tokens, dtype=np.int64), [span], _Scratch())
        logits: Array = self._model.logits(hidden[-1:])[0]
        return logits
