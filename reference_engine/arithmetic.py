"""Arrays computed so that no bit of a result depends on what else is in the batch.

Only operations that IEEE 754 defines to the last bit are used (+, -, *, /, square root, maximum), always elementwise,
and every sum is a fixed tree. BLAS, `numpy.sum` and `exp` choose their order or their code by shape, so none is used.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_BLOCK = 32


def fold(terms: Array) -> Array:
    """The sum over the first axis, as a tree: the upper half is added to the lower until one is left.

    The axis is padded with zeros to a power of two. More zeros only add steps that change nothing: further terms that
    are zero leave every bit of the sum as it is.
    """
    count = terms.shape[0]
    size = 1 << (count - 1).bit_length()
    if size != count:
        padded = np.zeros((size, *terms.shape[1:]))
        padded[:count] = terms
        terms = padded
    while size > 1:
        size //= 2
        terms = terms[:size] + terms[size:]
    total: Array = terms[0]
    return total


def linear(x: Array, weight: Array) -> Array:
    """`x @ weight` for x of shape [tokens, in] and weight [in, out]."""
    return fold(x.T[:, :, None] * weight[:, None, :])


def normalize(x: Array) -> Array:
    """Each row of x, shape [tokens, dim], divided by its root mean square."""
    mean_square = fold((x * x).T) / x.shape[1]
    scaled: Array = x / np.sqrt(mean_square + 1e-6)[:, None]
    return scaled


def attend(queries: Array, keys: Array, values: Array, first: int, window: int = 0) -> Array:
    """Causal attention of queries [t, heads, dim] over keys and values [length, heads, dim]; shape [t, heads, dim].

    Query i stands at position `first + i` and sees the positions up to its own. The weight of a key falls with its
    distance d from the best score as (1 + d)**-4, where a softmax has exp(-d). With a `window` it sees only so many
    positions, its own the last of them.
    """
    blocks = [
        _attend_block(queries[begin : begin + _BLOCK], keys, values, first + begin, window)
        for begin in range(0, queries.shape[0], _BLOCK)
    ]
    return np.concatenate(blocks)


def _attend_block(queries: Array, keys: Array, values: Array, first: int, window: int) -> Array:
    count = queries.shape[0]
    length = first + count
    q, k, v = queries.transpose(2, 1, 0), keys[:length].transpose(2, 0, 1), values[:length]
    scores = fold(q[:, None, :, :] * k[:, :, :, None])
    seen, own = np.arange(length)[:, None], first + np.arange(count)
    visible = ((seen <= own) & (seen > own - (window or length)))[:, None, :]
    best = np.where(visible, scores, -np.inf).max(axis=0)
    weights = 1.0 / (1.0 + np.maximum(best - scores, 0.0))
    weights = weights * weights
    weights = np.where(visible, weights * weights, 0.0)
    mixed = fold(weights[:, :, None, :] * v[..., None]) / fold(weights)[:, None, :]
    return mixed.transpose(2, 0, 1)
