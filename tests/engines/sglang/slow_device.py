"""Slot ids that come late, as from a device, as a plugin of SGLang: where `KVSAN_TEST_LATE` has a number of
milliseconds, kvsan gets what a tensor holds that much after the call."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

VARIABLE = "KVSAN_TEST_LATE"


class Late:
    """Numbers that were taken at once, and are handed over later."""

    def __init__(self, tensor: Any, seconds: float) -> None:
        self._numbers = tensor.detach().reshape(-1).long().clone().numpy()
        self._at = time.monotonic() + seconds

    def ready(self) -> bool:
        """Is it time?"""
        return time.monotonic() >= self._at

    def value(self) -> Any:
        """The numbers, int64, shape [n]."""
        assert self.ready(), "asked too early"
        return self._numbers


class SlowDevice:
    """Stands in for `kvsan.hooks.adapters.readback.Readback`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def copy(self, tensor: Any) -> Late:
        """What the tensor holds now."""
        return Late(tensor, self._seconds)


def register() -> None:
    """SGLang calls this in each of its processes, before the scheduler is made."""
    milliseconds = os.environ.get(VARIABLE)
    if not milliseconds or "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from kvsan.hooks.adapters import readback
    from kvsan.hooks.adapters.sglang.watch import Watch

    readback.readback_from = lambda device: SlowDevice(int(milliseconds) / 1000)

    def ids(watch: Watch, tensor: Any) -> Any:
        raise AssertionError("ids that are on a device were read at once")

    Watch.ids = ids
