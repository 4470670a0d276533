"""The Triton kernel behind `write_rows`; importing it needs triton and fixes whether it is compiled or interpreted."""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from .specialization import Specialization

BLOCK = 512
"""Cells that one program writes at a time."""

MAX_PROGRAMS_PER_ROW = 16
"""Programs that share a row's cells: enough to spread one long prompt, few enough to cost nothing for short ones."""


@triton.jit  # type: ignore[untyped-decorator]
def write_rows_kernel(  # type: ignore[no-untyped-def]
    table,
    row_stride,
    num_rows,
    ctx,
    rows,
    prefix_slots,
    prefix_offsets,
    new_slots,
    new_offsets,
    BLOCK: tl.constexpr,
):
    # Program (i, k) writes blocks k, k + K, k + 2K, ... of the cells of request i, where K programs share the request.
    request = tl.program_id(0)
    row = tl.load(rows + request).to(tl.int64)
    prefix_begin = tl.load(prefix_offsets + request).to(tl.int64)
    prefix_len = tl.load(prefix_offsets + request + 1).to(tl.int64) - prefix_begin
    new_begin = tl.load(new_offsets + request).to(tl.int64)
    new_len = tl.load(new_offsets + request + 1).to(tl.int64) - new_begin

    # The host cannot check values that live on the GPU without waiting for it, so nothing outside the table is written.
    length = tl.minimum(prefix_len + new_len, ctx)
    length = tl.where((row >= 0) & (row < num_rows), length, 0)

    # Not `range` with a bound from memory: Triton 3.6 cannot interpret that with NumPy 2.4 and newer.
    begin = tl.program_id(1) * BLOCK
    while begin < length:
        cell = begin + tl.arange(0, BLOCK)
        in_row = cell < length
        in_prefix = cell < prefix_len
        prefix = tl.load(prefix_slots + prefix_begin + cell, mask=in_row & in_prefix, other=0)
        # Lanes of the prefix would point before the first new slot; the mask keeps them from being read.
        new = tl.load(new_slots + new_begin + (cell - prefix_len), mask=in_row & (cell >= prefix_len), other=0)
        slot = tl.where(in_prefix, prefix.to(tl.int32), new.to(tl.int32))
        tl.store(table + row * row_stride + cell, slot, mask=in_row)
        begin += tl.num_programs(1) * BLOCK


AHEAD = (
    Specialization(
        kernel=write_rows_kernel,
        signature={
            "table": "*i32",
            "row_stride": "i32",
            "num_rows": "i32",
            "ctx": "i32",
            "rows": "*i64",
            "prefix_slots": "*i64",
            "prefix_offsets": "*i64",
            "new_slots": "*i64",
            "new_offsets": "*i64",
        },
        constants={"BLOCK": BLOCK},
    ),
)
"""What is compiled ahead of time: the types that the reference engine launches with."""
