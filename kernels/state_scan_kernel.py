"""The Triton kernels behind `selective_scan` and `state_update`; importing it needs triton and fixes whether they are
compiled or interpreted."""

from __future__ import annotations

from typing import Any

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from .specialization import Specialization

BLOCK_C = 64
"""Channels of one program; a channel needs nothing of another."""


@triton.jit
def _step(  # type: ignore[no-untyped-def]
    h,
    token,
    x,
    delta,
    b,
    c,
    decay,
    skip,
    y,
    channel,
    lane,
    channels,
    lanes,
):
    # One token: stores its output and returns the state h [BLOCK_C, BLOCK_N] after it.
    in_channels = channel < channels
    in_lanes = lane < lanes
    x_now = tl.load(x + token * channels + channel, mask=in_channels, other=0.0).to(tl.float32)
    delta_now = tl.load(delta + token * channels + channel, mask=in_channels, other=0.0).to(tl.float32)
    b_now = tl.load(b + token * lanes + lane, mask=in_lanes, other=0.0).to(tl.float32)
    c_now = tl.load(c + token * lanes + lane, mask=in_lanes, other=0.0).to(tl.float32)
    h = tl.exp(delta_now[:, None] * decay) * h + (delta_now * x_now)[:, None] * b_now[None, :]
    out = tl.sum(h * c_now[None, :], 1) + skip * x_now
    tl.store(y + token * channels + channel, out.to(y.dtype.element_ty), mask=in_channels)
    return h


@triton.jit  # type: ignore[untyped-decorator]
def selective_scan_kernel(  # type: ignore[no-untyped-def]
    y,
    states,
    state_stride,
    num_slots,
    slots,
    fresh,
    offsets,
    num_tokens,
    x,
    delta,
    decay,
    b,
    c,
    skip,
    channels,
    lanes,
    BLOCK_C: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # Program (i, k) carries channels [k * BLOCK_C, (k + 1) * BLOCK_C) through the tokens of request i.
    request = tl.program_id(0)
    slot = tl.load(slots + request).to(tl.int64)
    begin = tl.maximum(tl.load(offsets + request).to(tl.int64), 0)
    end = tl.minimum(tl.load(offsets + request + 1).to(tl.int64), num_tokens)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    lane = tl.arange(0, BLOCK_N)
    element = channel[:, None] * lanes + lane[None, :]
    inside = (channel < channels)[:, None] & (lane < lanes)[None, :]
    # The host cannot check slots that live on the GPU without waiting for it, so one that is not there is left alone.
    # A scalar condition goes into the bounds: as part of a mask the interpreter would make it an integer.
    kept_channels = tl.where((slot >= 0) & (slot < num_slots), channels, 0)
    loaded_channels = tl.where(tl.load(fresh + request) != 0, 0, kept_channels)
    kept = (channel < kept_channels)[:, None] & (lane < lanes)[None, :]
    loaded = (channel < loaded_channels)[:, None] & (lane < lanes)[None, :]

    rates = tl.load(decay + element, mask=inside, other=0.0)
    straight = tl.load(skip + channel, mask=channel < channels, other=0.0)
    # A masked lane must come out as 0 whatever a fresh slot holds, not as its content times 0.
    h = tl.load(states + slot * state_stride + element, mask=loaded, other=0.0)
    token = begin
    # Not `range` with a bound from memory: Triton 3.6 cannot interpret that with NumPy 2.4 and newer.
    while token < end:
        h = _step(h, token, x, delta, b, c, rates, straight, y, channel, lane, channels, lanes)
        token += 1
    tl.store(states + slot * state_stride + element, h, mask=kept)


@triton.jit  # type: ignore[untyped-decorator]
def state_update_kernel(  # type: ignore[no-untyped-def]
    y,
    states,
    state_stride,
    num_slots,
    slots,
    x,
    delta,
    decay,
    b,
    c,
    skip,
    channels,
    lanes,
    BLOCK_C: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # Program (i, k) carries channels [k * BLOCK_C, (k + 1) * BLOCK_C) of request i through its one token.
    request = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + request).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    lane = tl.arange(0, BLOCK_N)
    element = channel[:, None] * lanes + lane[None, :]
    inside = (channel < channels)[:, None] & (lane < lanes)[None, :]
    kept_channels = tl.where((slot >= 0) & (slot < num_slots), channels, 0)
    kept = (channel < kept_channels)[:, None] & (lane < lanes)[None, :]

    rates = tl.load(decay + element, mask=inside, other=0.0)
    straight = tl.load(skip + channel, mask=channel < channels, other=0.0)
    h = tl.load(states + slot * state_stride + element, mask=kept, other=0.0)
    h = _step(h, request, x, delta, b, c, rates, straight, y, channel, lane, channels, lanes)
    tl.store(states + slot * state_stride + element, h, mask=kept)


def _ahead(kernel: Any, dtype: str, lanes: int) -> Specialization:
    """The kernel for tokens of a dtype, and for a channel's state of so many numbers."""
    pool = {"y": f"*{dtype}", "states": "*fp32", "state_stride": "i32", "num_slots": "i32", "slots": "*i64"}
    spans = {"fresh": "*i1", "offsets": "*i64", "num_tokens": "i32"} if kernel is selective_scan_kernel else {}
    tokens = dict.fromkeys(("x", "delta"), f"*{dtype}") | {"decay": "*fp32"}
    vectors = dict.fromkeys(("b", "c"), f"*{dtype}") | {"skip": "*fp32", "channels": "i32", "lanes": "i32"}
    return Specialization(
        kernel=kernel,
        variant=f"{dtype},{lanes}",
        signature=pool | spans | tokens | vectors,
        constants={"BLOCK_C": BLOCK_C, "BLOCK_N": lanes},
    )


AHEAD = tuple(
    _ahead(kernel, dtype, lanes)
    for kernel in (selective_scan_kernel, state_update_kernel)
    for dtype, lanes in (("fp32", 8), ("bf16", 16))
)
"""What is compiled ahead of time: the reference engine's states, and those of a usual 16-bit model."""
