"""Keys and values in host memory."""

from __future__ import annotations

import numpy as np

from .arithmetic import Array
from .weights import HEAD_DIM, HEADS, LAYERS


class KvMemory:
    """For each layer the keys and the values behind token slots, [slots, heads, HEAD_DIM] float64."""

    def __init__(self, slots: int, heads: int = HEADS) -> None:
        self.keys: list[Array] = [np.zeros((slots, heads, HEAD_DIM)) for _ in range(LAYERS)]
        self.values: list[Array] = [np.zeros((slots, heads, HEAD_DIM)) for _ in range(LAYERS)]
