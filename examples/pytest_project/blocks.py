"""A pool of cache blocks that tells kvsan, where kvsan watches, what it hands out and takes back."""

from __future__ import annotations

from kvsan import hooks


class Blocks:
    """Blocks 1 to size - 1; block 0 is for padding."""

    def __init__(self, size: int) -> None:
        self.free = list(range(size - 1, 0, -1))
        self.held: dict[str, list[int]] = {}
        self.sanitizer = hooks.current()  # does nothing where nobody watches
        self.sanitizer.pool("blocks", kind="kv", size=size, page=1, reserved=[0])

    def take(self, request: str, count: int) -> list[int]:
        blocks = [self.free.pop() for _ in range(count)]
        self.held.setdefault(request, []).extend(blocks)
        self.sanitizer.alloc("blocks", blocks, owner=request)
        return blocks

    def finish(self, request: str) -> None:
        """Gives back what the request holds."""
        blocks = self.held.pop(request)
        self.free.extend(blocks)
        self.sanitizer.free("blocks", blocks, owner=request)
        self.sanitizer.req_end(owner=request)

    def abort(self, request: str) -> None:
        """Forgets the request, and with it, wrongly, its blocks."""
        del self.held[request]
        self.sanitizer.req_end(owner=request)
