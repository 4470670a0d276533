"""Takes the pools of a scheduler of these releases under watch. What was not seen to be silent on a sound server is not
watched at all, and the report says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import readback
from ..watch import KV, ROWS
from .watch import OlderWatch

FOLLOWED = {
    "rows": ("ReqToTokenPool",),
    "allocator": ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator"),
    "cache": ("RadixCache", "ChunkCache"),
}


def begin(watch: OlderWatch, scheduler: Any, in_place: Callable[[str], bool]) -> None:
    """Declares the pools and lets the probes see, if all that is needed is `in_place` for the scheduler's device."""
    watch.scheduler = scheduler
    watch.rows = scheduler.req_to_token_pool
    watch.kv = scheduler.token_to_kv_pool_allocator
    watch.tree = scheduler.tree_cache
    watch.page = page = int(watch.kv.page_size)
    why = obstacle(watch)
    if why is not None:
        watch.give_up(f"{why} not followed in this release")
        return
    device = str(scheduler.device).partition(":")[0]
    if not in_place(device):
        return
    import torch

    watch.device_module = torch.get_device_module(device)
    watch.name_streams()
    watch.slots = watch.san.options.level != "rows" and device in ("cpu", *readback.DEVICES)
    if watch.slots:
        watch.read_late(device)
    elif watch.san.options.level != "rows":
        watch.watch_rows_only(f"slot ids are on the device ({device})")
    declare_rows(watch)
    size = (int(watch.kv.size) // page + 1) * page if watch.slots else 1
    watch.san.pool(KV, kind="kv", size=size, page=page if watch.slots else 1, reserved=np.arange(min(page, size)))
    watch.node_of = np.zeros(size, np.int64)
    watch.blind = False
    watch.check()


def declare_rows(watch: OlderWatch) -> None:
    """The request rows; from 0.5.11 on there is one more of them, the first, which padding stands for."""
    count = int(watch.rows.req_to_token.shape[0])
    watch.san.pool(ROWS, kind="row", size=count, reserved=np.arange(count - int(watch.rows.size)))


def obstacle(watch: OlderWatch) -> str | None:
    """What is not followed, if there is something."""
    scheduler = watch.scheduler
    for what, each in (("rows", watch.rows), ("allocator", watch.kv), ("cache", watch.tree)):
        if type(each).__name__ not in FOLLOWED[what]:
            return f"what a {type(each).__name__} holds is"
    if str(getattr(scheduler.disaggregation_mode, "value", "null")) != "null":
        return "rows and slots that other servers fill are"
    if not scheduler.spec_algorithm.is_none():
        return "the writes of speculative decoding are"
    if getattr(scheduler, "ps", scheduler).pp_size > 1:
        return "pipeline stages are"
    if getattr(scheduler, "enable_pdmux", False):
        return "the loop that prefills and decodes side by side (--enable-pdmux) is"
    if getattr(scheduler, "dllm_config", None) is not None:
        return "block diffusion is"
    if scheduler.model_config.is_encoder_decoder:
        return "encoder slots are"
    if int(watch.kv.available_size()) != int(watch.kv.size) // watch.page * watch.page:
        return "slots that are handed out before the scheduler is ready are"
    return None
