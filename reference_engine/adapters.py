"""Adapters: an update of rank one to the weights of each layer, as in LoRA, made from the adapter's name alone."""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

import numpy as np

from .arithmetic import Array, linear

SCALE = 1.5
MAX_NAME = 64
"""Longest name of an adapter."""


def adapt(x: Array, mixed: Array, layer: int, name: str) -> Array:
    """`mixed`, shape [tokens, out], with the adapter's share for the layer's inputs x, shape [tokens, in]."""
    down, up = adapter_weights(name, layer, x.shape[1], mixed.shape[1])
    result: Array = mixed + linear(x, down) * up
    return result


@lru_cache(maxsize=256)
def adapter_weights(name: str, layer: int, inputs: int, outputs: int) -> tuple[Array, Array]:
    """The two factors of an adapter's update to a layer, [inputs, 1] and [outputs]."""
    random = np.random.default_rng((crc32(name.encode("utf-8")), layer))
    down: Array = random.standard_normal((inputs, 1)) / np.sqrt(inputs)
    up: Array = SCALE * random.standard_normal(outputs)
    return down, up
