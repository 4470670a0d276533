"""No bit of a result depends on what else is computed with it."""

from __future__ import annotations

import numpy as np
import pytest
from kvsan.reference_engine.arithmetic import attend, fold, linear, normalize
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
