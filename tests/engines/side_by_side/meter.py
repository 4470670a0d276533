"""A plugin of SGLang that weighs its scheduler's steps, and lets its kv-canary run on a CPU.

`KVSAN_TEST_METER=FILE`: whenever the scheduler is idle, FILE holds {"steps", "step_s", "forward_s"}: scheduler steps
that launched a batch so far, CPU seconds of the scheduler's thread in them, and of these the seconds in the model's
forward (which is on a GPU elsewhere).
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from typing import Any

VARIABLE = "KVSAN_TEST_METER"
SCHEDULER = "sglang.srt.managers.scheduler"


class Meter:
    """CPU time of one thread, by step. A step is from one choice of a batch to the next."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.steps = 0
        self.step_s = self.forward_s = 0.0
        self._since: float | None = None
        self._told = -1

    def begin(self, batch: Any) -> None:
        """The scheduler has chosen what to run next (None: nothing)."""
        now = time.thread_time()
        if self._since is not None:
            self.step_s += now - self._since
            self.steps += 1
        self._since = now if batch is not None else None

    def tell(self) -> None:
        """Writes the file, if there is anything new."""
        if self.steps != self._told:
            self._told = self.steps
            text = json.dumps({"steps": self.steps, "step_s": self.step_s, "forward_s": self.forward_s})
            with open(self.file + ".new", "w", encoding="utf-8") as output:
                output.write(text)
            os.replace(self.file + ".new", self.file)


def register() -> None:
    """SGLang calls this in each of its processes, before the scheduler is made."""
    if SCHEDULER not in sys.modules:
        return
    canary_on_cpu()
    file = os.environ.get(VARIABLE)
    if file:
        weigh(Meter(file))


def weigh(meter: Meter) -> None:
    """Puts the meter into the scheduler's class and the model worker's."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.tp_worker import TpModelWorker

    choose, idle, forward = Scheduler.get_next_batch_to_run, Scheduler.on_idle, TpModelWorker.forward_batch_generation

    @functools.wraps(choose)
    def get_next_batch_to_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        plan = choose(self, *args, **kwargs)
        meter.begin(plan.batch_to_run)
        return plan

    @functools.wraps(idle)
    def on_idle(self: Any, *args: Any, **kwargs: Any) -> Any:
        meter.tell()
        return idle(self, *args, **kwargs)

    @functools.wraps(forward)
    def forward_batch_generation(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.thread_time()
        try:
            return forward(self, *args, **kwargs)
        finally:
            meter.forward_s += time.thread_time() - begin

    Scheduler.get_next_batch_to_run = get_next_batch_to_run
    Scheduler.on_idle = on_idle
    TpModelWorker.forward_batch_generation = forward_batch_generation


def canary_on_cpu() -> None:
    """kv-canary copies its results on a stream of their own into pinned memory; a CPU has neither and needs none."""
    import torch
    from sglang.srt.kv_canary.runner import canary_manager
    from sglang.srt.kv_canary.runner.future_tensor import FutureTensors

    canary_manager.create_device_stream = lambda device: torch.cpu.Stream()

    def device_to_host(cls: Any, xs_device: Any, *, d2h_stream: Any) -> Any:
        data = xs_device if isinstance(xs_device, dict) else {_key(): xs_device}
        copied = {
            name: each.detach().clone() if isinstance(each, torch.Tensor) else each for name, each in data.items()
        }
        return cls(_data=copied, _event=torch.cpu.Event())

    FutureTensors.device_to_host = classmethod(device_to_host)


def _key() -> str:
    from sglang.srt.kv_canary.runner import future_tensor

    return str(future_tensor._DUMMY_DICT_KEY)
