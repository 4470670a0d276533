"""The right answer: the same model without cache, batch or overlap."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .arithmetic import Array
from .guesses import MASK, masks
from .model import Model, Span, choose, drawing_scores
from .request import SamplingParams
from .tokenizer import EOS
from .weights import DIM, LAYERS, STATE_DIM


class Scratch:
    """Memory of one request that is computed from its first token, and forgotten."""

    def __init__(self) -> None:
        self.kept: list[tuple[Array, Array]] = [(np.empty(0), np.empty(0))] * LAYERS

    def store(self, layer: int, keys: Array, values: Array) -> None:
        self.kept[layer] = keys, values

    def context(self, layer: int, span: int) -> tuple[Array, Array]:
        return self.kept[layer]

    def state(self, layer: int, span: int) -> Array:
        return np.zeros((DIM, STATE_DIM))

    def keep_states(self, layer: int, span: int, states: Array) -> None:
        pass


class Oracle:
    """Generates tokens from scratch, each from the whole text before it."""

    def __init__(self, model_seed: int = 0, *, hybrid: bool = False, window: int = 0) -> None:
        self._model = Model(model_seed, hybrid=hybrid, window=window)
        self._next = lru_cache(maxsize=4096)(self._logits)

    def generate(self, prompt: list[int], sampling: SamplingParams, adapter: str | None = None) -> list[int]:
        """The output tokens for the prompt, the end token included where one was drawn."""
        tokens = tuple(prompt)
        output: list[int] = []
        while len(output) < sampling.max_new_tokens:
            token = choose(self._next(tokens, adapter), sampling.temperature, sampling.seed, len(tokens))
            output.append(token)
            tokens = (*tokens, token)
            if token == EOS and not sampling.ignore_eos:
                break
        return output

    def accepts(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        tokens: list[int],
        adapter: str | None = None,
        *,
        tolerance: float = 0.0,
        whole: bool = True,
    ) -> bool:
        """Whether each token's score, after the tokens before it, is at most `tolerance` below the best one's, and the
        output ends where it must; `whole` false takes an output that was cut short too."""
        known, ended = list(prompt), False
        for number, token in enumerate(tokens):
            scores = self._next(tuple(known), adapter)
            scores = drawing_scores(scores, sampling.temperature, sampling.seed, len(known))
            if ended or not scores[token] >= scores.max() - tolerance:
                return False
            known.append(token)
            ended = number + 1 >= sampling.max_new_tokens or (token == EOS and not sampling.ignore_eos)
        return ended or not whole

    def refine(
        self, prompt: list[int], sampling: SamplingParams, block_size: int, steps: int, adapter: str | None = None
    ) -> list[int]:
        """As `generate`, but after the first token in blocks, each refined `steps` times."""
        tokens, length = list(prompt), len(prompt)
        tokens.append(choose(self._next(tuple(tokens), adapter), sampling.temperature, sampling.seed, length))
        while tokens[-1] != EOS or sampling.ignore_eos:
            left = sampling.max_new_tokens - (len(tokens) - length)
            if left <= 0:
                break
            block = [*masks(min(block_size, left)), MASK]
            for _ in range(steps):
                known = tuple(tokens + block[:-1])
                scores = [self._next(known[: len(tokens) + n], adapter) for n in range(len(block))]
                block = [choose(s, sampling.temperature, sampling.seed, len(tokens) + n) for n, s in enumerate(scores)]
            if EOS in block and not sampling.ignore_eos:
                block = block[: block.index(EOS) + 1]
            tokens += block
        return tokens[length:]

    def _logits(self, tokens: tuple[int, ...], adapter: str | None) -> Array:
        span = Span(0, len(tokens), 0, adapter)
        hidden = self._model.forward(np.array(tokens, dtype=np.int64), [span], Scratch())
        logits: Array = self._model.logits(hidden[-1:])[0]
        return logits
