"""Which operations CUDA refuses because they mix devices, and which make the host wait, of those that may come up."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

MOVING = {aten.copy_, aten._to_copy}
"""What takes numbers from one device to another."""
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
WAITING = {
    aten._local_scalar_dense, aten.equal, aten.allclose, aten.nonzero, aten.masked_select, aten._unique,
    aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.bincount,
}  # fmt: skip
"""What the host must know numbers or sizes of; the first is how `int`, `bool` and their like ask."""


def _on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def refuse_two_devices(func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
    """Raises RuntimeError if the tensors of an operation on a device are not all there. What has no dimension may be on
    the host; so may indices."""
    if func.overloadpacket in INDEXED:
        own, _, *values = args[:3]
        if _on_host(own):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        tensors = [own, *values]
    if any(each.dim() and _on_host(each) for each in tensors):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices ({func})")


def waiting(func: Any, args: Any, kwargs: Any) -> str | None:
    """What the host waits for in an operation on a device; None if it does not."""
    op = func.overloadpacket
    unsized = func is aten.repeat_interleave.Tensor and len(args) < 2 and kwargs.get("output_size") is None
    if op in WAITING or unsized:
        return str(func)
    if op not in INDEXED:
        return None
    indices = [each for each in args[1] if each is not None]
    if any(_on_host(each) for each in indices):
        return f"{func} with indices that are on the host"
    fills = len(args) > 2 and len(indices) == 1 and args[2].numel() == 1  # one number where a mask says so
    masks = any(each.dtype in (torch.bool, torch.uint8) for each in indices)
    return f"{func} with a mask" if masks and not fills else None
