"""The one watch of a test process: probes are put in place once, and each test gives them a fresh state."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from kvsan.hooks.adapters.probes import install
from kvsan.hooks.adapters.readback import HostCopies
from kvsan.hooks.adapters.sglang.tables import installed, stream_probes
from kvsan.hooks.adapters.sglang.watch import KV, ROWS, Watch
from kvsan.hooks.sanitizer import Sanitizer

WATCH = installed().watch(Sanitizer())


class CpuModule:
    """As much of a scheduler as a watch asks for its streams."""

    device_module = torch.cpu


def _at_once(tensor: Any) -> Any:
    raise AssertionError("ids that are on a device were read at once")


def begin(rows: Any, allocator: Any, *, late: bool = False, **options: Any) -> Watch:
    """The watch, its eyes open on a row pool and an allocator of token slots, whose ids may come late, as from a
    device; `options` are the sanitizer's."""
    found = install((*installed().probes, *stream_probes("cpu")), WATCH)
    assert all(each.found for each in found if not each.probe.older)
    vars(WATCH).clear()
    WATCH.__init__(Sanitizer(**options))  # type: ignore[misc]
    if late:
        WATCH.readback, WATCH.ids = HostCopies(), _at_once  # type: ignore[method-assign]
    page, size = int(allocator.page_size), int(allocator.size)
    WATCH.rows, WATCH.kv = rows, allocator
    WATCH.page, WATCH.slots = page, True
    WATCH.scheduler = CpuModule()
    WATCH.san.pool(ROWS, kind="row", size=int(rows.req_to_token.shape[0]), reserved=[0])
    WATCH.san.pool(KV, kind="kv", size=size + page, page=page, reserved=np.arange(page))
    WATCH.node_of = np.zeros(size + page, np.int64)
    WATCH.blind = False
    return WATCH


def kinds(watch: Watch) -> list[str]:
    """The kinds of what was found, once all is there that comes late."""
    watch.san.settle()
    return [finding.kind for finding in watch.san.findings]
