"""The selective state space: a chunk of tokens scanned from the state in a slot, and one token's update.

Each channel ch carries a state h of N numbers. A token with input x, step size delta and the vectors B and C makes

    h = exp(delta * A) * h + delta * x * B        (elementwise; A [N] is the channel's, usually negative)
    y = sum(C * h) + D * x

(A. Gu and T. Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023, with B discretized by one
step of Euler as in its code.) In float32, token after token; `tests/kernels` compares with the references in float64.
"""

from __future__ import annotations

import torch

from .backend import Backend, on_device, resolve
from .checks import check_data, check_indices, check_offsets, check_pool, check_range

_FLOAT32 = (torch.float32,)
MAX_STATE = 256


def selective_scan(
    states: torch.Tensor,
    slots: torch.Tensor,
    fresh: torch.Tensor,
    offsets: torch.Tensor,
    x: torch.Tensor,
    delta: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    backend: Backend | None = None,
) -> torch.Tensor:
    """Scans the tokens [offsets[i], offsets[i + 1]) of each request i from the state in slot slots[i], leaves the state
    after its last token there, and returns y; all other slots stay.

    Where fresh[i] is set the scan starts from zeros, whatever the slot holds. A negative slot starts from zeros and
    keeps nothing. Slot 0, the padding slot, is like any other. A slot named twice is left with one of the states,
    nobody says which.

    states    [slots, channels, N] float32, the elements of a slot contiguous; N at most 256
    slots     [B] int32 or int64
    fresh     [B] bool
    offsets   [B + 1] int32 or int64, from 0 to T, never falling
    x, delta  [T, channels] float16, bfloat16 or float32
    a         [channels, N] float32
    b, c      [T, N], dtype of x
    d         [channels] float32
    out       [T, channels], dtype of x, to be written and returned; by default a new tensor

    Raises TypeError and ValueError for a wrong dtype, shape, layout or device, and on a CPU ValueError for offsets and
    slots outside what they index; on a GPU offsets must be right, and a slot that is not there is taken as a negative
    one. RuntimeError for a backend that cannot run here.
    """
    device, batch, tokens = states.device, len(slots), len(x)
    out = _check_layout(states, slots, x, delta, a, b, c, d, out)
    check_indices("offsets", offsets, batch + 1, device)
    if fresh.dtype != torch.bool:
        raise TypeError(f"fresh must be bool, not {fresh.dtype}")
    if tuple(fresh.shape) != (batch,) or fresh.device != device or not fresh.is_contiguous():
        raise ValueError(f"fresh must have {batch} contiguous entries on {device}, not {list(fresh.shape)}")
    if device.type == "cpu":
        check_offsets("offsets", offsets, tokens)
    chosen = resolve(backend, device)
    if chosen is Backend.TORCH:
        y, last = selective_scan_reference(states, slots, fresh, offsets, x, delta, a, b, c, d)
        _keep(states, slots, last)
        return out.copy_(y)
    if batch == 0 or a.numel() == 0:
        return out

    from .state_scan_kernel import BLOCK_C, selective_scan_kernel

    channels, lanes = a.shape
    with on_device(device):
        selective_scan_kernel[(batch, -(-channels // BLOCK_C))](
            out,
            states,
            states.stride(0),
            len(states),
            slots,
            fresh,
            offsets,
            tokens,
            x,
            delta,
            a,
            b,
            c,
            d,
            channels,
            lanes,
            BLOCK_C=BLOCK_C,
            BLOCK_N=1 << (lanes - 1).bit_length(),
            enable_fp_fusion=True,
        )
    return out


def state_update(
    states: torch.Tensor,
    slots: torch.Tensor,
    x: torch.Tensor,
    delta: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    backend: Backend | None = None,
) -> torch.Tensor:
    """One token of each request: as `selective_scan` with T = B, one token a request and nothing fresh."""
    device, batch = states.device, len(slots)
    out = _check_layout(states, slots, x, delta, a, b, c, d, out)
    if len(x) != batch:
        raise ValueError(f"x must have {batch} tokens, one for each slot, not {len(x)}")
    chosen = resolve(backend, device)
    if chosen is Backend.TORCH:
        y, last = state_update_reference(states, slots, x, delta, a, b, c, d)
        _keep(states, slots, last)
        return out.copy_(y)
    if batch == 0 or a.numel() == 0:
        return out

    from .state_scan_kernel import BLOCK_C, state_update_kernel

    channels, lanes = a.shape
    with on_device(device):
        state_update_kernel[(batch, -(-channels // BLOCK_C))](
            out,
            states,
            states.stride(0),
            len(states),
            slots,
            x,
            delta,
            a,
            b,
            c,
            d,
            channels,
            lanes,
            BLOCK_C=BLOCK_C,
            BLOCK_N=1 << (lanes - 1).bit_length(),
            enable_fp_fusion=True,
        )
    return out


def selective_scan_reference(
    states: torch.Tensor,
    slots: torch.Tensor,
    fresh: torch.Tensor,
    offsets: torch.Tensor,
    x: torch.Tensor,
    delta: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs [T, channels] and the last states [B, channels, N] in float64; unchecked, writes nothing."""
    at: list[int] = offsets.tolist()
    y = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    last = _initial(states, slots, fresh)
    for i in range(len(slots)):
        for token in range(at[i], at[i + 1]):
            y[token], last[i] = _step(last[i], x[token], delta[token], a, b[token], c[token], d)
    return y, last


def state_update_reference(
    states: torch.Tensor,
    slots: torch.Tensor,
    x: torch.Tensor,
    delta: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs y [B, channels] and the states after them [B, channels, N] in float64, unchecked; writes nothing."""
    return _step(_initial(states, slots, torch.zeros_like(slots, dtype=torch.bool)), x, delta, a, b, c, d)


def _initial(states: torch.Tensor, slots: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    empty = fresh | (slots < 0)
    return torch.where(empty[:, None, None], 0.0, states[slots.clamp(min=0).long()].double())


def _step(
    h: torch.Tensor,
    x: torch.Tensor,
    delta: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output [..., channels] and the new state [..., channels, N] of a token."""
    x, delta, a, b, c, d = (tensor.double() for tensor in (x, delta, a, b, c, d))
    h = torch.exp(delta[..., None] * a) * h + (delta * x)[..., None] * b[..., None, :]
    return (h * c[..., None, :]).sum(-1) + d * x, h


def _keep(states: torch.Tensor, slots: torch.Tensor, last: torch.Tensor) -> None:
    kept = slots >= 0
    states[slots[kept].long()] = last[kept].to(states.dtype)


def _check_layout(
    states: torch.Tensor,
    slots: torch.Tensor,
    x: torch.Tensor,
    delta: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """Checks headers, and on a CPU the slots; returns the tensor for the result."""
    device = states.device
    check_pool("states", states, "[slots, channels, N]", device, dtypes=_FLOAT32)
    channels, lanes = states.shape[1:]
    if lanes > MAX_STATE:
        raise ValueError(f"a channel's state must have at most {MAX_STATE} numbers, not {lanes}")
    check_indices("slots", slots, len(slots), device)
    check_data("x", x, "[T, channels]", device)
    tokens = len(x)
    check_data("x", x, "[T, channels]", device, shape=(tokens, channels))
    check_data("delta", delta, "[T, channels]", device, dtypes=(x.dtype,), shape=(tokens, channels))
    check_data("a", a, "[channels, N]", device, dtypes=_FLOAT32, shape=(channels, lanes))
    check_data("b", b, "[T, N]", device, dtypes=(x.dtype,), shape=(tokens, lanes))
    check_data("c", c, "[T, N]", device, dtypes=(x.dtype,), shape=(tokens, lanes))
    check_data("d", d, "[channels]", device, dtypes=_FLOAT32, shape=(channels,))
    if device.type == "cpu":
        check_range("slots", slots.clamp(min=0), 0, len(states), "the pool has the slots")
    if out is None:
        return torch.empty_like(x)
    check_data("out", out, "[T, channels]", device, dtypes=(x.dtype,), shape=(tokens, channels))
    return out
