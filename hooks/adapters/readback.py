"""Copies of a device's integers to the host, for which nobody waits.

A copy is queued on the stream that is current, behind what computes its numbers and before whatever may overwrite them;
so the engine's streams stay ordered as they are. The device does a few microseconds of work for each.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class Copy:
    """One tensor's numbers on their way. It keeps the tensor until they are there."""

    __slots__ = ("_event", "_host", "_tensor")

    def __init__(self, tensor: Any, host: Any, event: Any) -> None:
        self._tensor, self._host, self._event = tensor, host, event

    def ready(self) -> bool:
        """Have they arrived? Asks the device's event, and does not wait for it."""
        return bool(self._event.query())

    def value(self) -> Numbers:
        """The numbers, int64, shape [n]; an array of its own, as the memory that they came in is used again."""
        self._tensor = None
        return np.array(self._host.numpy(), np.int64)


class There:
    """Numbers that were on the host already, as they were."""

    __slots__ = ("_numbers",)

    def __init__(self, tensor: Any) -> None:
        self._numbers: Numbers = np.array(tensor.detach().reshape(-1).numpy(), np.int64)

    def ready(self) -> bool:
        """They are."""
        return True

    def value(self) -> Numbers:
        """The numbers, int64, shape [n]."""
        return self._numbers


class Copies(Protocol):
    """What brings a tensor's numbers."""

    def copy(self, tensor: Any) -> Copy | There:
        """The numbers that an integer tensor of any shape has now."""


class HostCopies:
    """For numbers that are on the host, and are to be treated as if they were not."""

    def copy(self, tensor: Any) -> There:
        """The numbers that the tensor has now."""
        return There(tensor)


class Readback:
    """Copies from one kind of device, such as "cuda"."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._device = device
        self._module = torch.get_device_module(device)

    def copy(self, tensor: Any) -> Copy | There:
        """The numbers that an integer tensor of any shape has when the current stream gets here.

        Raises RuntimeError while a device graph is captured, which would have to leave them out.
        """
        if tensor.device.type == "cpu":
            return There(tensor)
        if self._module.is_current_stream_capturing():
            raise RuntimeError("slot ids are handed out while a device graph is captured")
        flat = tensor.detach().reshape(-1)
        host = self._torch.empty(flat.shape, dtype=flat.dtype, device="cpu", pin_memory=True)
        host.copy_(flat, non_blocking=True)
        # not torch.cuda.Event, whose records are the engine's order
        event = self._torch.Event(self._device, enable_timing=False)
        event.record()
        return Copy(flat, host, event)


DEVICES = ("cuda",)
"""The devices (AMD's have this name, too) whose streams copy as is said here."""


def readback_from(device: str) -> Copies | None:
    """What brings integers from that kind of device; None where they are on the host."""
    return None if device == "cpu" else Readback(device)
