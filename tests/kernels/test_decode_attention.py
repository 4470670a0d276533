"""Paged decode attention on every backend that this process has, against plain torch in float64."""

from __future__ import annotations

import pytest
import torch
from kernel_rows import ERROR, Rows, relative_error, same_bits
from kvsan.kernels import Backend, decode_attention, decode_attention_reference

pytest.importorskip("triton")

HAS_CUDA_VERSION = True

HEADS = {
    "the engine's": {"q_heads": 2, "heads": 2, "dim": 8, "v_dim": 8},
    "grouped": {"q_heads": 8, "heads": 2, "dim": 64, "v_dim": 64},
    "odd": {"q_heads": 6, "heads": 2, "dim": 24, "v_dim": 40},
    "all share one": {"q_heads": 20, "heads": 1, "dim": 128, "v_dim": 72},
    "largest": {"q_heads": 1, "heads": 1, "dim": 256, "v_dim": 256},
}
BATCH = [33, 1, 0, 64]
CASES = [
    *(("the engine's", lengths, torch.float32) for lengths in ([], [1], [0], [31, 32, 160], BATCH)),
    *((heads, BATCH, torch.float32) for heads in ("grouped", "odd", "all share one", "largest")),
    *((heads, BATCH, dtype) for heads in ("odd", "all share one") for dtype in (torch.float16, torch.bfloat16)),
]


def exact(rows: Rows, queries: torch.Tensor, scale: float) -> torch.Tensor:
    return decode_attention_reference(queries, rows.k_pool, rows.v_pool, rows.table, rows.rows, rows.lens, scale)


@pytest.mark.parametrize(("heads", "lengths", "dtype"), CASES, ids=str)
def test_agrees_with_float64(
    heads: str, lengths: list[int], dtype: torch.dtype, device: torch.device, backend: Backend
) -> None:
    rows = Rows(lengths, dtype=dtype, **HEADS[heads])
    queries = rows.normal(len(lengths), rows.q_heads, rows.dim)
    pools = rows.pools(device)
    out = decode_attention(queries.to(device), *pools, rows.lens.to(device), backend=backend)
    assert out.dtype == dtype and out.device.type == device.type
    assert relative_error(out, exact(rows, queries, rows.dim**-0.5)) <= ERROR[dtype]
    for now, before in zip(pools, (rows.k_pool, rows.v_pool, rows.table, rows.rows), strict=True):
        assert same_bits(now, before)


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_float64_on_random_shapes(seed: int, device: torch.device, backend: Backend) -> None:
    draw = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=draw))

    heads = number(1, 3)
    rows = Rows(
        [number(0, 90) for _ in range(number(1, 5))],
        q_heads=heads * number(1, 5),
        heads=heads,
        dim=number(1, 70),
        v_dim=number(1, 70),
        seed=seed,
    )
    queries, scale = rows.normal(len(rows.lengths), rows.q_heads, rows.dim), number(1, 30) / 10
    index = [torch.int32, torch.int64][seed % 2]
    k_pool, v_pool, table, row_ids = rows.pools(device)
    out = decode_attention(
        queries.to(device),
        k_pool,
        v_pool,
        table,
        row_ids.to(index),
        rows.lens.to(device, index),
        scale=scale,
        backend=backend,
    )
    assert relative_error(out, exact(rows, queries, scale)) <= ERROR[torch.float32]


def test_scores_that_overflow_exp_do_not_overflow_the_softmax(device: torch.device, backend: Backend) -> None:
    rows = Rows([70, 40], q_heads=2, heads=1)
    queries = rows.normal(2, 2, 16) * 1000
    out = decode_attention(queries.to(device), *rows.pools(device), rows.lens.to(device), backend=backend)
    assert relative_error(out, exact(rows, queries, 0.25)) <= 1e-3


def test_length_0_gives_zeros(device: torch.device, backend: Backend) -> None:
    rows = Rows([0, 3])
    out = torch.full((2, 4, 16), float("nan"), device=device)
    queries = rows.normal(2, 4, 16).to(device)
    same = decode_attention(queries, *rows.pools(device), rows.lens.to(device), out=out, backend=backend)
    assert same is out and (out[0] == 0).all() and out[1].isfinite().all()


def test_one_layer_of_pools_of_all_layers(device: torch.device, backend: Backend) -> None:
    rows = Rows([9, 40])
    queries = rows.normal(2, 4, 16)
    k_pool, v_pool, table, row_ids = rows.pools(device)
    layers = torch.full((len(k_pool), 3, 2, 16), float("nan"), device=device)
    layers[:, 0], layers[:, 2] = k_pool, v_pool
    wide = torch.full((len(table), 200), -1, dtype=torch.int32, device=device)
    wide[:, 10:170] = table
    out = decode_attention(
        queries.to(device),
        layers[:, 0],
        layers[:, 2],
        wide[:, 10:170],
        row_ids,
        rows.lens.to(device),
        backend=backend,
    )
    assert relative_error(out, exact(rows, queries, 0.25)) <= ERROR[torch.float32]


def test_a_broken_value_shows(device: torch.device, backend: Backend) -> None:
    """NaN in a slot that a request reads reaches its result, and no other request's."""
    rows = Rows([20, 20])
    rows.v_pool[int(rows.table[rows.rows[0], 7])] = float("nan")
    queries = rows.normal(2, 4, 16).to(device)
    out = decode_attention(queries, *rows.pools(device), rows.lens.to(device), backend=backend)
    assert out[0].isnan().all() and out[1].isfinite().all()


@pytest.mark.usefixtures("unchecked")
def test_nothing_outside_table_and_pool_is_read(device: torch.device, backend: Backend) -> None:
    rows = Rows([20, 20, 20, 20])
    queries = rows.normal(4, 4, 16)
    k_pool, v_pool, table, row_ids = rows.pools(device)
    row_ids[0], row_ids[1] = -1, len(table)
    first, num_slots = int(rows.rows[2]), len(k_pool)
    table[first, 3:6] = torch.tensor([-1, num_slots, 2**31 - 1], dtype=torch.int32, device=device)
    out = decode_attention(queries.to(device), k_pool, v_pool, table, row_ids, rows.lens.to(device), backend=backend)
    assert (out[:2] == 0).all()
    # The cells that name no slot count as empty: the request is as if it had 17 tokens.
    rows.table[first, 3:17] = rows.table[first, 6:20].clone()
    rows.lens[2] = 17
    assert relative_error(out[2:], exact(rows, queries, 0.25)[2:]) <= ERROR[torch.float32]


WRONG = {
    "queries dtype": (TypeError, "queries must be float16 or bfloat16 or float32", {0: torch.Tensor.double}),
    "pool dtype": (TypeError, "v_pool must be float32, not torch.float16", {2: torch.Tensor.half}),
    "pool dim": (ValueError, "queries have dim 16, but the keys of k_pool 8", {1: lambda t: t[..., :8].contiguous()}),
    "pools differ": (ValueError, "slots and heads differ", {2: lambda t: t[:9]}),
    "heads": (ValueError, "3 heads are no multiple of the 2 heads", {0: lambda t: t[:, :3].contiguous()}),
    "queries count": (ValueError, "queries must have 2 entries, one for each row, not 1", {0: lambda t: t[:1]}),
    "table dtype": (TypeError, "req_to_token must be int32", {3: torch.Tensor.long}),
    "row": (
        ValueError,
        r"rows\[1\] is 9, but req_to_token has the rows from 0 to 4",
        {4: lambda t: t * 0 + t.new_tensor([1, 9])},
    ),
    "length": (ValueError, r"lens\[0\] is 161, but a row holds lengths from 0 to 160", {5: lambda t: t + 156}),
    "cell": (ValueError, r"cell 5 of row \d \(request 0\) names slot -7, but the pool", {5: lambda t: t + 1}),
    "too wide": (
        ValueError,
        "dim must be from 1 to 256; keys have 512",
        {0: lambda t: t.repeat(1, 1, 32), 1: lambda t: t.repeat(1, 1, 32)},
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_named(case: str) -> None:
    error, message, changes = WRONG[case]
    rows = Rows([5, 6])
    arguments = [rows.normal(2, 4, 16), *rows.pools(torch.device("cpu")), rows.lens]
    for position, change in changes.items():
        arguments[position] = change(arguments[position])
    with pytest.raises(error, match=message):
        decode_attention(*arguments)
