"""Arrays computed so that no bit of a result depends on what else is in the batch.

Only operations that IEEE 754 defines to the last bit are used (+, -, *, /, square root, maximum), always elementwise,
and every sum is a fixed tree. BLAS, `numpy.sum` and `numpy.exp` choose their order or their code by shape, strides and
processor, so none is used. NumPy and not torch: on arrays this small torch's calls take 1.5 to 2.5 times as long.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_BLOCK = 32
LOG2_E = 1.4426950408889634
_LN_2 = 0.6931471805599453
_ROUND = 1.5 * 2.0**52
"""Adding it to a float64 of less than 2**51 rounds that to an integer, which then stands in the lowest bits."""


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


def exp2(x: Array) -> Array:
    """2**x of numbers from -1000 to 0 (a smaller one counts as -1000, a NaN stays one); x is overwritten.

    The relative error is below 4e-12: x is an integer and a rest r of at most a half; 2**r is the Pade approximant of
    order [4/4] of the exponential function, and the integer power is made from its bits.
    """
    np.maximum(x, -1000.0, out=x)
    power = x + _ROUND
    x -= power - _ROUND
    x *= _LN_2
    square = x * x
    odd = 20.0 * square
    odd += 840.0
    odd *= x
    even = square + 180.0
    even *= square
    even += 1680.0
    result: Array = even + odd
    even -= odd
    result /= even
    bits = power.view(np.int64)
    bits += 1023
    bits <<= 52
    result *= power
    return result


def attend(queries: Array, keys: Array, values: Array, first: int, window: int = 0, scale: float = 1.0) -> Array:
    """Causal attention of queries [t, heads, dim] over keys and values [length, heads, dim]; shape [t, heads, dim].

    Query i stands at position `first + i` and sees the positions up to its own. Weights are the softmax of the products
    of query and key, times `scale`. With a `window` it sees only so many positions, its own the last of them.
    """
    queries = queries * (LOG2_E * scale)
    blocks = [
        _attend_block(queries[begin : begin + _BLOCK], keys, values, first + begin, window)
        for begin in range(0, queries.shape[0], _BLOCK)
    ]
    return np.concatenate(blocks) if len(blocks) > 1 else blocks[0]


def _attend_block(queries: Array, keys: Array, values: Array, first: int, window: int) -> Array:
    """As `attend`, with queries that make products in powers of two."""
    count = queries.shape[0]
    length = first + count
    q, k, v = queries.transpose(2, 1, 0), keys[:length].transpose(2, 0, 1), values[:length]
    scores = fold(q[:, None, :, :] * k[:, :, :, None])
    if count == 1 and not window:  # sees everything
        weights = exp2(scores - scores.max(axis=0))
    else:
        seen, own = np.arange(length)[:, None], first + np.arange(count)
        visible = ((seen <= own) & (seen > own - (window or length)))[:, None, :]
        scores = np.where(visible, scores, -np.inf)
        weights = exp2(scores - scores.max(axis=0))
        weights *= visible
    mixed = fold(weights[:, :, None, :] * v[..., None]) / fold(weights)[:, None, :]
    return mixed.transpose(2, 0, 1)


def scan(state: Array, x: Array, delta: Array, rates: Array, b: Array, c: Array, skip: Array) -> tuple[Array, Array]:
    """A selective state space over tokens: the outputs [t, channels], and the states after each [t, channels, n].

    From a state h, [channels, n], a token makes h = exp(delta * rates) * h + delta * x * b, and gives
    sum(c * h) + skip * x. x and delta are [t, channels], rates [channels, n] and negative, b and c [t, n], skip
    [channels].
    """
    keep = exp2(delta[:, :, None] * (LOG2_E * rates))
    states = (delta * x)[:, :, None] * b[:, None, :]
    for token in range(x.shape[0]):
        state = states[token] = keep[token] * state + states[token]
    return fold((states * c[:, None, :]).transpose(2, 0, 1)) + skip * x, states
