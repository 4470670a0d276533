"""The Triton kernel behind `store_kv`; importing it needs triton and fixes whether it is compiled or interpreted."""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from .specialization import Specialization

BLOCK = 1024
"""Elements of a token's key, and of its value, that one program copies."""


@triton.jit  # type: ignore[untyped-decorator]
def store_kv_kernel(  # type: ignore[no-untyped-def]
    k_pool,
    v_pool,
    k_stride,
    v_stride,
    keys,
    values,
    k_width,
    v_width,
    slots,
    num_slots,
    BLOCK: tl.constexpr,
):
    # Program (i, b) copies block b of the key and of the value of token i; a token that stores nothing copies nothing.
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # A scalar condition goes into the bounds: as part of a mask the interpreter would make it an integer.
    stored = (slot >= 0) & (slot < num_slots)

    in_key = element < tl.where(stored, k_width, 0)
    key = tl.load(keys + token * k_width + element, mask=in_key)
    tl.store(k_pool + slot * k_stride + element, key, mask=in_key)

    in_value = element < tl.where(stored, v_width, 0)
    value = tl.load(values + token * v_width + element, mask=in_value)
    tl.store(v_pool + slot * v_stride + element, value, mask=in_value)


AHEAD = tuple(
    Specialization(
        kernel=store_kv_kernel,
        variant=dtype,
        signature={
            "k_pool": f"*{dtype}",
            "v_pool": f"*{dtype}",
            "k_stride": "i32",
            "v_stride": "i32",
            "keys": f"*{dtype}",
            "values": f"*{dtype}",
            "k_width": "i32",
            "v_width": "i32",
            "slots": "*i64",
            "num_slots": "i32",
        },
        constants={"BLOCK": BLOCK},
    )
    for dtype in ("fp32", "bf16")
)
"""What is compiled ahead of time: for the reference engine, and for a usual 16-bit model."""
