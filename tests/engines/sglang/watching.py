"""The one watch of a test process: probes are put in place once, and each test gives them a fresh state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from adapters import device
from kvsan.hooks.adapters.probes import install
from kvsan.hooks.adapters.readback import HostCopies, Readback
from kvsan.hooks.adapters.sglang.tables import installed, stream_probes
from kvsan.hooks.adapters.sglang.watch import KV, ROWS, Watch
from kvsan.hooks.sanitizer import Sanitizer

WATCH = installed().watch(Sanitizer())


class CpuModule:
    """As much of a scheduler as a watch asks for its streams."""

    device_module = torch.cpu


def _at_once(tensor: Any) -> Any:
    raise AssertionError("ids that are on a device were read at once")


@dataclass(frozen=True)
class Way:
    """Where the engine has its slot ids, and whether they come late."""

    device: str = "cpu"
    late: bool = False


WAYS = {"at once": Way(), "late": Way(late=True), "on a device": Way(device.NAME, late=True)}
"""On the host, where they may be withheld as if they were not; or on a device, which only looks like one."""


@contextmanager
def going(name: str) -> Iterator[Way]:
    """One of the ways, with its device."""
    way = WAYS[name]
    if way.device == "cpu":
        yield way
        return
    if not device.HERE:
        pytest.skip("this torch knows no devices in Python")
    with device.Device():
        yield way


def allocator_of(size: int, page: int, device: str) -> Any:
    """SGLang's allocator of so many token slots, in pages."""
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    common = {"dtype": torch.bfloat16, "device": device, "kvcache": None, "need_sort": False}
    if page == 1:
        return TokenToKVPoolAllocator(size, **common)
    return PagedTokenToKVPoolAllocator(size, page_size=page, **common)


def begin(rows: Any, allocator: Any, way: Way = WAYS["at once"], **options: Any) -> Watch:
    """The watch, its eyes open on a row pool and an allocator of token slots; `options` are the sanitizer's."""
    found = install((*installed().probes, *stream_probes("cpu")), WATCH)
    assert all(each.found for each in found if not each.probe.older)
    vars(WATCH).clear()
    WATCH.__init__(Sanitizer(**options))  # type: ignore[misc]
    if way.late:
        WATCH.readback = HostCopies() if way.device == "cpu" else Readback(way.device)
        WATCH.ids = _at_once  # type: ignore[method-assign]
    page, size = int(allocator.page_size), int(allocator.size)
    WATCH.rows, WATCH.kv = rows, allocator
    WATCH.page, WATCH.slots = page, True
    WATCH.scheduler = CpuModule()
    WATCH.san.pool(ROWS, kind="row", size=int(rows.req_to_token.shape[0]), reserved=[0])
    WATCH.san.pool(KV, kind="kv", size=size + page, page=page, reserved=np.arange(page))
    WATCH.node_of = np.zeros(size + page, np.int64)
    WATCH.blind = False
    return WATCH


def write_row(watch: Watch, row: int, begin: int, end: int, prefix: Any, slots: Any) -> None:
    """SGLang's own writing of a row that is prefilled from `begin` to `end`, in plain torch. Where there is no prefix,
    it has an empty one on the host for all rows."""
    from sglang.srt.mem_cache import allocation

    prefix = torch.empty(0, dtype=torch.int64) if prefix is None else prefix
    row_, begin_, end_, new = [torch.tensor([number]) for number in (row, begin, end, end - begin)]
    both = [each for cpu in (row_, begin_, end_, new) for each in (cpu.to(slots.device), cpu)]
    with (
        mock.patch.object(allocation, "support_triton", lambda backend: False),
        mock.patch.object(allocation, "attention_backends", lambda: ("torch_native", "torch_native"), create=True),
    ):
        allocation.write_cache_indices(slots, *both, [prefix], watch.rows)


def settle(watch: Watch) -> None:
    """All is there that comes late."""
    while watch.san.waiting:
        if isinstance(watch.readback, Readback):
            device.entered().arrive()
        watch.san.settle()


def end(watch: Watch) -> None:
    """Nothing failed that kvsan did."""
    settle(watch)
    assert not watch.blind, watch.san.report().failures


def kinds(watch: Watch) -> list[str]:
    """The kinds of what was found, once all is there that comes late."""
    settle(watch)
    return [finding.kind for finding in watch.san.findings]
