"""No bit of a result depends on what else is computed with it."""

from __future__ import annotations

import numpy as np
import pytest
from kvsan.reference_engine.arithmetic import attend, exp2, fold, linear, normalize, scan
from kvsan.reference_engine.model import Model, choose


def random(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.random.default_rng(sum(shape)).standard_normal(shape) * 10.0 ** np.random.default_rng(1).integers(-3, 4)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 33])
def test_fold_is_a_sum_that_zeros_do_not_change(count: int) -> None:
    terms = random(count, 5)
    assert np.allclose(fold(terms), terms.sum(axis=0))
    padded = np.concatenate([terms, np.zeros((40, 5))])
    assert (fold(padded) == fold(terms)).all()


def test_linear_and_normalize_of_one_row_equal_those_of_many() -> None:
    x, weight = random(37, 16), random(16, 24)
    assert np.allclose(linear(x, weight), x @ weight)
    for row in range(37):
        assert (linear(x[row : row + 1], weight)[0] == linear(x, weight)[row]).all()
        assert (normalize(x[row : row + 1])[0] == normalize(x)[row]).all()


def test_powers_of_two_are_right_and_depend_on_nothing_but_the_exponent() -> None:
    x = -1000 * np.random.default_rng(0).random(4099) ** 4
    whole = exp2(x.copy())
    assert np.allclose(whole, np.exp2(x), rtol=4e-12, atol=0)
    assert all((exp2(x[begin : begin + size].copy()) == whole[begin : begin + size]).all()
               for begin in range(9) for size in range(1, 40))  # fmt: skip
    assert (exp2(np.asfortranarray(x[:4096].reshape(64, 64))) == whole[:4096].reshape(64, 64)).all()
    assert exp2(np.array([0.0, -1.0, -3.0])).tolist() == [1.0, 0.5, 0.125]
    assert exp2(np.array([-np.inf, -1e9])).tolist() == [2.0**-1000, 2.0**-1000]
    assert np.isnan(exp2(np.array([np.nan])))[0]


def test_attention_is_softmax() -> None:
    queries, keys, values = random(9, 2, 8), random(9, 2, 8), random(9, 2, 8)
    scores = np.einsum("thd,nhd->htn", queries, keys) / np.sqrt(8)
    scores[:, np.arange(9)[:, None] < np.arange(9)] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    exact = np.einsum("htn,nhd->thd", weights / weights.sum(axis=2, keepdims=True), values)
    assert np.allclose(attend(queries, keys, values, 0, scale=8**-0.5), exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 2, 5, 20])
def test_a_scan_in_chunks_equals_a_scan_at_once(chunk: int) -> None:
    x, b, c, delta, rates, skip = (
        random(20, 6),
        random(20, 4),
        random(20, 4),
        random(20, 6) ** 2,
        random(6, 4),
        random(6),
    )
    rates = -np.abs(rates)
    whole, states = scan(np.zeros((6, 4)), x, delta, rates, b, c, skip)
    state = np.zeros((6, 4))
    for begin in range(0, 20, chunk):
        part = slice(begin, begin + chunk)
        output, after = scan(state, x[part], delta[part], rates, b[part], c[part], skip)
        assert (output == whole[part]).all()
        assert (after == states[part]).all()
        state = after[-1]
    h = np.zeros((6, 4))
    for token in range(20):
        h = np.exp(delta[token, :, None] * rates) * h + (delta[token] * x[token])[:, None] * b[token]
        assert np.allclose(whole[token], h @ c[token] + skip * x[token], rtol=1e-9)


@pytest.mark.parametrize("chunk", [1, 5, 32, 40])
def test_attention_in_chunks_equals_attention_at_once(chunk: int) -> None:
    queries, keys, values = random(70, 2, 8), random(70, 2, 8), random(70, 2, 8)
    whole = attend(queries, keys, values, 0)
    for begin in range(0, 70, chunk):
        end = min(begin + chunk, 70)
        part = attend(queries[begin:end], keys[:end], values[:end], begin)
        assert (part == whole[begin:end]).all()


def test_drawn_tokens_depend_on_seed_and_position_alone() -> None:
    logits = random(257)
    assert choose(logits, 0.0, 1, 1) == choose(logits, 0.0, 2, 9) == int(logits.argmax())
    draws = {choose(logits / 100, 1.0, seed, position) for seed in range(4) for position in range(4)}
    assert len(draws) > 4
    assert choose(logits, 1.0, 3, 5) == choose(logits, 1.0, 3, 5)


def test_models_of_one_seed_are_equal_and_others_differ() -> None:
    hidden = random(1, 16)
    assert (Model(1).logits(hidden) == Model(1).logits(hidden)).all()
    assert (Model(1).logits(hidden) != Model(2).logits(hidden)).any()
