"""Copying recurrent states from slot to slot: copy-on-write from a cached state, and donation of a tracked one."""

from __future__ import annotations

import torch

from .backend import Backend, on_device, resolve
from .checks import check_indices, check_pool, check_range


def copy_states(
    states: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    mask: torch.Tensor,
    *,
    backend: Backend | None = None,
) -> None:
    """Copies slot sources[i] of the pool to slot targets[i], bit by bit and in place, for every lane i of the mask.

    A lane with a negative slot, or whose two slots are the same, copies nothing. The lanes run in no order: a target
    must not be another lane's target or source. Padding lanes copy slot 0 onto itself or are left out by the mask.

    states            [slots, ...] float16, bfloat16 or float32, the elements of a slot contiguous
    sources, targets  [n] int32 or int64
    mask              [n] bool

    Raises TypeError and ValueError for a wrong dtype, shape, layout or device, and on a CPU ValueError for slots that
    the pool does not have and for a target that another lane reads or writes; on a GPU a lane with a slot that is not
    there copies nothing. RuntimeError for a backend that cannot run here.
    """
    device, count, num_slots = states.device, len(sources), len(states)
    words = "[slots" + ", ..." * (states.dim() - 1) + "]"
    check_pool("states", states, words, device)
    check_indices("sources", sources, count, device)
    check_indices("targets", targets, count, device)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool, not {mask.dtype}")
    if tuple(mask.shape) != (count,) or mask.device != device or not mask.is_contiguous():
        raise ValueError(f"mask must have {count} contiguous entries on {device}, not {list(mask.shape)} there")
    if device.type == "cpu":
        _check_values(num_slots, sources, targets, mask)
    if resolve(backend, device) is Backend.TORCH:
        copy_states_reference(states, sources, targets, mask)
        return
    width = states[0].numel() if num_slots else 0
    if count == 0 or width == 0:
        return

    from .state_copy_kernel import BLOCK, copy_states_kernel

    with on_device(device):
        copy_states_kernel[(count, -(-width // BLOCK))](
            states, states.stride(0), num_slots, width, sources, targets, mask, BLOCK=BLOCK, enable_fp_fusion=True
        )


def copy_states_reference(
    states: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor
) -> None:
    """What `copy_states` computes, unchecked; on a GPU it waits for the slots."""
    copied = _copied(sources, targets, mask)
    states[targets[copied].long()] = states[sources[copied].long()]


def _copied(sources: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return mask & (sources >= 0) & (targets >= 0) & (sources != targets)


def _check_values(num_slots: int, sources: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> None:
    for name, slots in (("sources", sources), ("targets", targets)):
        check_range(name, torch.where(mask, slots, 0).clamp(min=0), 0, max(num_slots, 1), "the pool has the slots")
    copied = _copied(sources, targets, mask)
    reads: set[int] = set(sources[copied].tolist())
    writes: set[int] = set()
    for target in targets[copied].tolist():
        if target in writes or target in reads:
            other = "writes" if target in writes else "reads"
            raise ValueError(f"slot {target} is a target, but another lane {other} it: copy in two calls")
        writes.add(target)
