"""An allocator of one's own under kvsan: one line beside each operation tells the sanitizer what happened.

python examples/own_allocator.py                      nothing to report
python examples/own_allocator.py --bug double-free    an aborted request's blocks are given back twice
python examples/own_allocator.py --bug leak           an aborted request keeps its blocks
"""

from __future__ import annotations

import argparse
import sys

import kvsan
from kvsan.reporters.terminal import console_for, render

SIZE = 64


class Blocks:
    """Hands out cache blocks to requests; block 0 is for padding."""

    def __init__(self, sanitizer: kvsan.Sanitizer) -> None:
        self.free = list(range(SIZE - 1, 0, -1))
        self.held: dict[str, list[int]] = {}
        self.sanitizer = sanitizer
        sanitizer.pool("blocks", kind="kv", size=SIZE, page=1, reserved=[0])

    def take(self, request: str, count: int) -> None:
        blocks = [self.free.pop() for _ in range(count)]
        self.held.setdefault(request, []).extend(blocks)
        self.sanitizer.alloc("blocks", blocks, owner=request)

    def give_back(self, request: str) -> None:
        blocks = self.held[request]
        self.free.extend(blocks)
        self.sanitizer.free("blocks", blocks, owner=request)


def serve(blocks: Blocks, bug: str | None) -> None:
    """Three requests; the second is aborted."""
    for request in ("req-1", "req-2", "req-3"):
        blocks.take(request, 4)
    blocks.give_back("req-1")
    if bug != "leak":
        blocks.give_back("req-2")
    if bug == "double-free":
        blocks.give_back("req-2")  # The abort and the end of the batch both clean up.
    blocks.give_back("req-3")
    for request in ("req-1", "req-2", "req-3"):
        blocks.sanitizer.req_end(owner=request)


def main() -> int:
    parser = argparse.ArgumentParser(description="A small allocator, watched by kvsan.")
    parser.add_argument("--bug", choices=["double-free", "leak"])
    sanitizer = kvsan.Sanitizer(level="slots", on_error="log")
    serve(Blocks(sanitizer), parser.parse_args().bug)
    render(sanitizer.report(), console_for(sys.stdout))
    return 88 if sanitizer.findings else 0


if __name__ == "__main__":
    sys.exit(main())
