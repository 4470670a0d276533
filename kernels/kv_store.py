"""Storing the keys and values of new tokens into the pools of slots."""

from __future__ import annotations

import torch

from .backend import Backend, on_device, resolve
from .checks import check_data, check_indices, check_pool, check_range


def store_kv(
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    *,
    backend: Backend | None = None,
) -> None:
    """Copies token i's key and value into slot slots[i] of the pools, in place; all other slots stay.

    A negative slot stores nothing. Slot 0, the padding slot, is written like any other: padding lanes name it all at
    once. Of a slot that is named twice each element takes one of the values, nobody says which.

    k_pool, v_pool  [slots, heads, dim] float16, bfloat16 or float32, the elements of a slot contiguous; the two may
                    differ in dim
    keys, values    [n, heads, dim], dtype and dim of their pool
    slots           [n] int32 or int64

    Raises TypeError and ValueError for a wrong dtype, shape, layout or device, and on a CPU ValueError for a slot that
    the pool does not have; on a GPU such a slot stores nothing. RuntimeError for a backend that cannot run here.
    """
    device = k_pool.device
    check_pool("k_pool", k_pool, "[slots, heads, dim]", device)
    check_pool("v_pool", v_pool, "[slots, heads, dim]", device)
    num_slots, count = len(k_pool), len(slots)
    if len(v_pool) != num_slots:
        raise ValueError(f"k_pool has {num_slots} slots, but v_pool {len(v_pool)}")
    check_indices("slots", slots, count, device)
    for name, tensor, pool in (("keys", keys, k_pool), ("values", values, v_pool)):
        check_data(name, tensor, "[n, heads, dim]", device, dtypes=(pool.dtype,), shape=(count, *pool.shape[1:]))
    if device.type == "cpu":
        check_range("slots", slots.clamp(min=0), 0, num_slots, "the pool has the slots")
    if resolve(backend, device) is Backend.TORCH:
        store_kv_reference(k_pool, v_pool, keys, values, slots)
        return
    k_width, v_width = keys[0].numel() if count else 0, values[0].numel() if count else 0
    if max(k_width, v_width) == 0:
        return

    from .kv_store_kernel import BLOCK, store_kv_kernel

    grid = (count, -(-max(k_width, v_width) // BLOCK))
    with on_device(device):
        store_kv_kernel[grid](
            k_pool,
            v_pool,
            k_pool.stride(0),
            v_pool.stride(0),
            keys,
            values,
            k_width,
            v_width,
            slots,
            num_slots,
            BLOCK=BLOCK,
            enable_fp_fusion=True,
        )


def store_kv_reference(
    k_pool: torch.Tensor, v_pool: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor
) -> None:
    """What `store_kv` computes, unchecked; on a GPU it waits for the slots."""
    stored = slots >= 0
    k_pool[slots[stored].long()] = keys[stored]
    v_pool[slots[stored].long()] = values[stored]
