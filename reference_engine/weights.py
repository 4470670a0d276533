"""The weights: seeded, a few layers of attention, or of attention and a selective state space (hybrid)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arithmetic import Array
from .config import MAX_CONTEXT
from .tokenizer import EOS, VOCABULARY, encode

LAYERS = 2
HEADS = 2
HEAD_DIM = 8
DIM = HEADS * HEAD_DIM
HIDDEN = 2 * DIM
STATE_DIM = 8
"""Numbers in the recurrent state of one channel; there are `DIM` channels."""
LETTERS_BIAS = 3.0
"""Makes the model prefer letters, so that its answers can be looked at."""
SCALE = 1.0
"""What products of query and key are multiplied with before the softmax. The usual HEAD_DIM ** -0.5 makes attention so
even that some wrong keys and values show in no token."""
STEP = 1 / 8
"""The usual step size of the state space: how much of a token enters the state, and how fast the state fades."""
SKIP = 0.25
"""How much of a token the state space passes on beside the state: little, so that a wrong state shows."""


@dataclass(frozen=True, slots=True)
class Layer:
    """`mix_in` gives q, k and v of attention, or x, step, b and c of the state space, which also has `rates`
    [DIM, STATE_DIM] and `skip` [DIM]."""

    recurrent: bool
    mix_in: Array
    mix_out: Array
    up: Array
    down: Array
    rates: Array
    skip: Array


class Weights:
    """`tokens` [VOCABULARY, DIM] and `positions` [MAX_CONTEXT, DIM] make a token's input, `head` [DIM, VOCABULARY] and
    `bias` [VOCABULARY] its scores. Equal seeds give equal weights."""

    def __init__(self, seed: int, *, hybrid: bool = False) -> None:
        random = np.random.default_rng(seed)

        def matrix(rows: int, columns: int) -> Array:
            weights: Array = random.standard_normal((rows, columns)) / np.sqrt(rows)
            return weights

        self.tokens: Array = random.standard_normal((VOCABULARY, DIM))
        self.positions: Array = random.standard_normal((MAX_CONTEXT, DIM))
        self.layers = [
            Layer(
                recurrent=hybrid and index == LAYERS - 1,
                mix_in=2 * matrix(DIM, 3 * DIM),
                mix_out=4.5 * matrix(DIM, DIM),
                up=matrix(DIM, HIDDEN),
                down=matrix(HIDDEN, DIM),
                rates=-np.tile(np.arange(1.0, STATE_DIM + 1), (DIM, 1)),
                skip=np.full(DIM, SKIP),
            )
            for index in range(LAYERS)
        ]
        self.head = matrix(DIM, VOCABULARY)
        self.bias: Array = np.zeros(VOCABULARY)
        self.bias[encode("abcdefghijklmnopqrstuvwxyz ")] = LETTERS_BIAS
        self.bias[EOS] = 2.5
