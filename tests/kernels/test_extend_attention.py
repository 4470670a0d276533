"""Paged attention of new tokens behind a prefix, on every backend that this process has, against float64."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from kernel_rows import ERROR, Rows, relative_error, same_bits
from kvsan.kernels import Backend, decode_attention, extend_attention, extend_attention_reference

pytest.importorskip("triton")

HEADS = {
    "the engine's": {"q_heads": 2, "heads": 2, "dim": 8, "v_dim": 8},
    "grouped": {"q_heads": 4, "heads": 1, "dim": 64, "v_dim": 64},
    "odd": {"q_heads": 6, "heads": 2, "dim": 24, "v_dim": 40},
    "all share one": {"q_heads": 5, "heads": 1, "dim": 128, "v_dim": 72},
}
# Prefix lengths and new lengths of a batch's requests.
LENGTHS = {
    "empty": ([], []),
    "one token": ([0], [1]),
    "no prefix": ([0, 0], [33, 32]),
    "prefixes": ([31, 0, 33], [1, 37, 20]),
    "nothing new": ([10, 4, 0], [0, 3, 0]),
}


class Extend(Rows):
    """Requests with a prefix and new tokens; the keys and values of both are in the pools."""

    def __init__(self, prefix_lens: list[int], new_lens: list[int], **shape: object) -> None:
        super().__init__([a + b for a, b in zip(prefix_lens, new_lens, strict=True)], **shape)
        self.prefix_lens = torch.tensor(prefix_lens, dtype=torch.int64)
        self.offsets = torch.tensor([0, *accumulate(new_lens)], dtype=torch.int64)
        self.queries = self.normal(sum(new_lens), self.q_heads, self.dim)

    def computed(self, device: torch.device, backend: Backend, **options: object) -> torch.Tensor:
        pools = self.pools(device)
        lengths = (self.offsets.to(device), self.prefix_lens.to(device))
        out = extend_attention(self.queries.to(device), *pools, *lengths, backend=backend, **options)
        for now, before in zip(pools, (self.k_pool, self.v_pool, self.table, self.rows), strict=True):
            assert same_bits(now, before)
        return out

    def exact(self, scale: float | None = None) -> torch.Tensor:
        pools = (self.k_pool, self.v_pool, self.table, self.rows)
        return extend_attention_reference(self.queries, *pools, self.offsets, self.prefix_lens, scale or self.dim**-0.5)


CASES = [
    *(("the engine's", lengths, torch.float32) for lengths in LENGTHS),
    *((heads, "prefixes", torch.float32) for heads in ("grouped", "odd")),
    ("odd", "prefixes", torch.float16),
    ("all share one", "prefixes", torch.bfloat16),
]


@pytest.mark.parametrize(("heads", "lengths", "dtype"), CASES, ids=str)
def test_agrees_with_float64(
    heads: str, lengths: str, dtype: torch.dtype, device: torch.device, backend: Backend
) -> None:
    extend = Extend(*LENGTHS[lengths], dtype=dtype, **HEADS[heads])
    out = extend.computed(device, backend)
    assert out.dtype == dtype
    assert relative_error(out, extend.exact()) <= ERROR[dtype]


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_float64_on_random_shapes(seed: int, device: torch.device, backend: Backend) -> None:
    draw = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=draw))

    heads, batch = number(1, 2), number(1, 3)
    extend = Extend(
        [number(0, 40) * number(0, 1) for _ in range(batch)],
        [number(0, 40) for _ in range(batch)],
        q_heads=heads * number(1, 4),
        heads=heads,
        dim=number(1, 70),
        v_dim=number(1, 70),
        seed=seed,
    )
    out = extend.computed(device, backend, scale=0.7)
    assert relative_error(out, extend.exact(0.7)) <= ERROR[torch.float32]


def test_more_query_tiles_than_programs(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, backend: Backend
) -> None:
    if backend is not Backend.TORCH:
        monkeypatch.setattr("kvsan.kernels.attention_kernel.MAX_PROGRAMS_PER_REQUEST", 2)
    extend = Extend([3], [38], q_heads=8, heads=1)
    assert relative_error(extend.computed(device, backend), extend.exact()) <= ERROR[torch.float32]


def test_a_token_does_not_see_what_comes_after_it(device: torch.device, backend: Backend) -> None:
    extend = Extend([5], [40])
    before = extend.computed(device, backend)
    late = extend.table[extend.rows[0], 25:45].long()
    extend.k_pool[late] = 50 * extend.normal(20, 2, 16)
    extend.v_pool[late] = 50 * extend.normal(20, 2, 16)
    after = extend.computed(device, backend)
    assert same_bits(before[:20], after[:20]) and not torch.equal(before[20:], after[20:])


def test_one_new_token_each_is_a_decode(device: torch.device, backend: Backend) -> None:
    extend = Extend([0, 40, 7], [1, 1, 1])
    decoded = decode_attention(
        extend.queries.to(device), *extend.pools(device), extend.lens.to(device), backend=backend
    )
    assert relative_error(extend.computed(device, backend), decoded) <= ERROR[torch.float32]


@pytest.mark.usefixtures("unchecked")
def test_nothing_outside_table_and_pool_is_read(device: torch.device, backend: Backend) -> None:
    extend = Extend([4, 4, 4], [6, 6, 6])
    k_pool, v_pool, table, rows = extend.pools(device)
    rows[0], rows[1] = -1, len(table)
    table[rows[2], 4] = len(k_pool)
    lengths = (extend.offsets.to(device), extend.prefix_lens.to(device))
    out = extend_attention(extend.queries.to(device), k_pool, v_pool, table, rows, *lengths, backend=backend)
    assert (out[:12] == 0).all() and out[12:].isfinite().all()


WRONG = {
    "offsets count": (ValueError, "offsets must have 3 entries, not 2", {5: lambda t: t[:2]}),
    "offsets end": (
        ValueError,
        "offsets runs from 0 to 7; with 9 tokens it must from 0 to 9",
        {5: lambda t: t - 2 * (t == 9)},
    ),
    "offsets fall": (ValueError, "offsets falls from 11 to 9 at request 1", {5: lambda t: t + 6 * (t == 5)}),
    "prefix": (ValueError, r"prefix_lens\[1\] is -1, but a row holds lengths from 0 to 160", {6: lambda t: t - 3}),
    "too long": (ValueError, r"prefix_lens \+ new lengths\[1\] is 162", {6: lambda t: t + 156 * (t == 2)}),
    "cell": (ValueError, "names slot -7, but the pool", {6: lambda t: t + 2}),
    "out": (ValueError, r"out must have shape \[n, q_heads, v_dim\] = \[9, 4, 16\]", {}),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_named(case: str) -> None:
    error, message, changes = WRONG[case]
    extend = Extend([7, 2], [5, 4])
    arguments = [extend.queries, *extend.pools(torch.device("cpu")), extend.offsets, extend.prefix_lens]
    for position, change in changes.items():
        arguments[position] = change(arguments[position])
    with pytest.raises(error, match=message):
        extend_attention(*arguments, out=None if changes else torch.zeros(8, 4, 16))
