"""What pages of several slots lack on a CPU up to 0.5.21, as a plugin of SGLang: the two kernels that hand them out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class Kernel:
    """Looks like a kernel of triton: `kernel[grid](...)`."""

    def __init__(self, run: Callable[..., None]) -> None:
        self._run = run

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._run


def extend(begins: Any, ends: Any, last: Any, free_pages: Any, out: Any, _: int, page: int) -> None:
    """Slots for cells [begin, end) of each request, whose cell before `begin` has the slot `last`."""
    pages, slots = iter(free_pages.tolist()), list[int]()
    for begin, end, slot in zip(begins.tolist(), ends.tolist(), last.tolist(), strict=True):
        for position in range(begin, end):
            slot = next(pages, 0) * page if position % page == 0 else slot + 1
            slots.append(slot)
    out[:] = out.new_tensor(slots)


def decode(ends: Any, last: Any, free_pages: Any, out: Any, _: int, page: int) -> None:
    """A slot for the last cell of each request."""
    extend(ends - 1, ends, last, free_pages, out, _, page)


def register() -> None:
    """SGLang calls this in each of its processes, before the scheduler is made."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.mem_cache.allocator import paged

    vars(paged).update(alloc_extend_kernel=Kernel(extend), alloc_decode_kernel=Kernel(decode))  # later ones: not used
