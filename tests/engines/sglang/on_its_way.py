"""Numbers of tensors on a device that has no memory, and which never come."""

from __future__ import annotations

from typing import Any

DEVICE = "meta"
"""torch's device that refuses what a GPU cannot do, or cannot do without being waited for: to mix devices, to look at a
number."""


class OnItsWay:
    """Numbers that do not come."""

    def ready(self) -> bool:
        """Never."""
        return False

    def value(self) -> Any:
        raise AssertionError("asked too early")


class Copies:
    """Stands in for `kvsan.hooks.adapters.readback.Readback`: notes how many numbers it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def copy(self, tensor: Any) -> OnItsWay:
        """What the tensor has on its device."""
        assert tensor.device.type == DEVICE
        self.asked.append(tensor.detach().reshape(-1).numel())
        return OnItsWay()
