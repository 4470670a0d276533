"""The Triton kernels behind `decode_attention` and `extend_attention`; importing it needs triton and fixes whether they
are compiled or interpreted.

Both run the online softmax: one pass over the keys that keeps, for every query, the largest score so far, the sum of
the weights and the weighted sum of the values, and rescales both sums when the largest score grows (M. Milakov and
N. Gimelshein, "Online normalizer calculation for softmax", 2018; for attention in tiles: T. Dao et al.,
"FlashAttention", 2022). Keys and values are gathered through the request's row.
"""

from __future__ import annotations

from typing import Any

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from .specialization import Specialization

MAX_PROGRAMS_PER_REQUEST = 64
"""Programs that share the query tiles of one request and one head of keys."""


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query,
    last,
    length,
    cells,
    k_head,
    v_head,
    k_stride,
    v_stride,
    num_slots,
    scale,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    WIDE: tl.constexpr,
):
    # Attention of the queries [BLOCK_M, BLOCK_D] over the tokens in the first `length` cells; query m sees the cells up
    # to last[m]. Sums are float32. A query that sees nothing gets zeros. WIDE multiplies in float32 throughout.
    k_lane = tl.arange(0, BLOCK_D)
    v_lane = tl.arange(0, BLOCK_V)
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight_sum = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    if WIDE:
        query = query.to(tl.float32)

    # Not `range` with a bound from memory: Triton 3.6 cannot interpret that with NumPy 2.4 and newer.
    begin = length * 0
    while begin < length:
        cell = begin + tl.arange(0, BLOCK_N)
        slot = tl.load(cells + cell, mask=cell < length, other=-1).to(tl.int64)
        there = (slot >= 0) & (slot < num_slots)
        key = tl.load(
            k_head + slot[None, :] * k_stride + k_lane[:, None],
            mask=there[None, :] & (k_lane < DIM)[:, None],
            other=0.0,
        )
        value = tl.load(
            v_head + slot[:, None] * v_stride + v_lane[None, :],
            mask=there[:, None] & (v_lane < V_DIM)[None, :],
            other=0.0,
        )
        if WIDE:
            key = key.to(tl.float32)
            value = value.to(tl.float32)
        score = tl.dot(query, key, input_precision="ieee") * scale
        score = tl.where(there[None, :] & (cell[None, :] <= last[:, None]), score, float("-inf"))

        # While a query has seen nothing its largest score is -inf, and -inf less -inf would be no number.
        new_best = tl.maximum(best, tl.max(score, 1))
        base = tl.where(new_best == float("-inf"), 0.0, new_best)
        rescale = tl.exp2(best - base)
        weight = tl.exp2(score - base[:, None])
        weight_sum = weight_sum * rescale + tl.sum(weight, 1)
        mixed = mixed * rescale[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        best = new_best
        begin += BLOCK_N
    return mixed / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def decode_attention_kernel(  # type: ignore[no-untyped-def]
    out,
    queries,
    k_pool,
    v_pool,
    table,
    rows,
    lens,
    k_stride,
    v_stride,
    row_stride,
    num_slots,
    num_rows,
    ctx,
    scale,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    WIDE: tl.constexpr,
):
    # Program (i, h) computes the GROUP heads of request i's query that share head h of keys and values.
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    heads = tl.num_programs(1) * GROUP
    row = tl.load(rows + request).to(tl.int64)
    # The host cannot check values that live on the GPU without waiting for it, so nothing outside the table is read.
    length = tl.minimum(tl.load(lens + request).to(tl.int64), ctx)
    length = tl.where((row >= 0) & (row < num_rows), length, 0)

    member = tl.arange(0, BLOCK_M)
    k_lane = tl.arange(0, BLOCK_D)
    v_lane = tl.arange(0, BLOCK_V)
    head = request * heads + kv_head * GROUP + member
    query = tl.load(
        queries + head[:, None] * DIM + k_lane[None, :],
        mask=(member < GROUP)[:, None] & (k_lane < DIM)[None, :],
        other=0.0,
    )
    mixed = _attend(
        query,
        tl.zeros([BLOCK_M], tl.int64) + length,
        length,
        table + row * row_stride,
        k_pool + kv_head * DIM,
        v_pool + kv_head * V_DIM,
        k_stride,
        v_stride,
        num_slots,
        scale,
        DIM,
        V_DIM,
        BLOCK_M,
        BLOCK_N,
        BLOCK_D,
        BLOCK_V,
        WIDE,
    )
    tl.store(
        out + head[:, None] * V_DIM + v_lane[None, :],
        mixed.to(out.dtype.element_ty),
        mask=(member < GROUP)[:, None] & (v_lane < V_DIM)[None, :],
    )


@triton.jit  # type: ignore[untyped-decorator]
def extend_attention_kernel(  # type: ignore[no-untyped-def]
    out,
    queries,
    k_pool,
    v_pool,
    table,
    rows,
    offsets,
    prefix_lens,
    num_tokens,
    k_stride,
    v_stride,
    row_stride,
    num_slots,
    num_rows,
    ctx,
    scale,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    WIDE: tl.constexpr,
):
    # Program (i, h, p) computes query tiles p, p + P, ... of request i, for the GROUP heads that share head h of keys
    # and values; a tile holds BLOCK_M / GROUP_PADDED queries, each with its GROUP heads one below the other.
    request = tl.program_id(0)
    kv_head = tl.program_id(1)
    heads = tl.num_programs(1) * GROUP
    row = tl.load(rows + request).to(tl.int64)
    begin = tl.maximum(tl.load(offsets + request).to(tl.int64), 0)
    end = tl.minimum(tl.load(offsets + request + 1).to(tl.int64), num_tokens)
    prefix_len = tl.load(prefix_lens + request).to(tl.int64)
    context = tl.where((row >= 0) & (row < num_rows), ctx, 0)

    tile: tl.constexpr = BLOCK_M // GROUP_PADDED
    place = tl.arange(0, BLOCK_M)
    member = place % GROUP_PADDED
    k_lane = tl.arange(0, BLOCK_D)
    v_lane = tl.arange(0, BLOCK_V)
    first = tl.program_id(2) * tile
    while begin + first < end:
        position = first + place // GROUP_PADDED
        token = begin + position
        valid = (token < end) & (member < GROUP)
        head = token * heads + kv_head * GROUP + member
        query = tl.load(
            queries + head[:, None] * DIM + k_lane[None, :],
            mask=valid[:, None] & (k_lane < DIM)[None, :],
            other=0.0,
        )
        # Nothing behind the tile's last query is seen, and the request's last query stands at its last token.
        seen = tl.minimum(prefix_len + tl.minimum(first + tile, end - begin), context)
        mixed = _attend(
            query,
            prefix_len + position,
            seen,
            table + row * row_stride,
            k_pool + kv_head * DIM,
            v_pool + kv_head * V_DIM,
            k_stride,
            v_stride,
            num_slots,
            scale,
            DIM,
            V_DIM,
            BLOCK_M,
            BLOCK_N,
            BLOCK_D,
            BLOCK_V,
            WIDE,
        )
        tl.store(
            out + head[:, None] * V_DIM + v_lane[None, :],
            mixed.to(out.dtype.element_ty),
            mask=valid[:, None] & (v_lane < V_DIM)[None, :],
        )
        first += tl.num_programs(2) * tile


def _ahead(kernel: Any, lengths: tuple[str, ...], dtype: str, group: int, dim: int, block_m: int) -> Specialization:
    """The kernel, whose arguments after `rows` are `lengths`, for heads of keys and values of one dim."""
    extend = {"num_tokens": "i32"} if kernel is extend_attention_kernel else {}
    integers = ("k_stride", "v_stride", "row_stride", "num_slots", "num_rows", "ctx")
    padded = max(16, dim)
    return Specialization(
        kernel=kernel,
        variant=f"{dtype},{dim}",
        signature=dict.fromkeys(("out", "queries", "k_pool", "v_pool"), f"*{dtype}")
        | {"table": "*i32", "rows": "*i64"}
        | dict.fromkeys(lengths, "*i64")
        | extend
        | dict.fromkeys(integers, "i32")
        | {"scale": "fp32"},
        constants={
            "GROUP": group,
            **({"GROUP_PADDED": group} if extend else {}),
            "DIM": dim,
            "V_DIM": dim,
            "BLOCK_M": block_m,
            "BLOCK_N": 32,
            "BLOCK_D": padded,
            "BLOCK_V": padded,
            "WIDE": dtype == "fp32",
        },
    )


AHEAD = (
    _ahead(decode_attention_kernel, ("lens",), "fp32", group=1, dim=8, block_m=16),
    _ahead(decode_attention_kernel, ("lens",), "bf16", group=4, dim=128, block_m=16),
    _ahead(extend_attention_kernel, ("offsets", "prefix_lens"), "fp32", group=1, dim=8, block_m=32),
    _ahead(extend_attention_kernel, ("offsets", "prefix_lens"), "bf16", group=4, dim=128, block_m=32),
)
"""What is compiled ahead of time: the heads of the reference engine, and those of a usual 16-bit model."""
