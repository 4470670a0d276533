"""Holdings with a historical bug, each beside the method of `Holdings` that it gets wrong."""

from __future__ import annotations

from . import bugs
from .holdings import Holdings
from .request import Request


class AbortUnlocksTwice(Holdings):
    """A request that goes without leaving anything in the cache is unlocked again."""

    def release(self, request: Request, *, cache_upto: int = 0, keep_states: bool = False) -> None:
        node = request.kv.node
        super().release(request, cache_upto=cache_upto, keep_states=keep_states)
        if node is not None and cache_upto == 0:
            self.cache.unlock(node, request.rid)


class AbortKeepsLock(Holdings):
    """A request that goes without leaving anything in the cache keeps its lock."""

    def release(self, request: Request, *, cache_upto: int = 0, keep_states: bool = False) -> None:
        if request.kv.node is not None and cache_upto == 0:
            request.kv.node = self.cache.root
        super().release(request, cache_upto=cache_upto, keep_states=keep_states)


class MatchesWithoutLock(Holdings):
    """A matched prefix is locked only when the request has got its new slots, for which it may be evicted."""

    unlocked: Request | None = None

    def _hold_prefix(self, request: Request) -> None:
        self.unlocked = request

    def extend(self, request: Request, upto: int) -> None:
        super().extend(request, upto)
        self._hold_late(request)

    def release(self, request: Request, *, cache_upto: int = 0, keep_states: bool = False) -> None:
        self._hold_late(request)
        super().release(request, cache_upto=cache_upto, keep_states=keep_states)

    def _hold_late(self, request: Request) -> None:
        if self.unlocked is request:
            self.unlocked = None
            super()._hold_prefix(request)


class FreesTailApart(Holdings):
    """Gives back what was computed and what was allocated beyond it one after the other, also within one page."""

    def _own_after_insert(self, request: Request, upto: int) -> list[int]:
        own = super()._own_after_insert(request, upto)
        beyond = set(request.kv.slots[len(request.tokens) - 1 :])
        self.kv.give_back([slot for slot in own if slot not in beyond], request.rid)
        return [slot for slot in own if slot in beyond]


class KeysTheUnfinished(Holdings):
    """Puts a block into the cache after each step, under the tokens of that step."""

    def refined(self, request: Request, guess: list[int]) -> None:
        tokens = request.tokens + guess
        upto = len(tokens) - len(tokens) % self.kv.page_size
        if upto <= len(request.tokens) or request.kv.node is None:
            return
        node, cached = self.cache.insert(tokens[:upto], request.kv.slots[:upto], request.rid, request.adapter)
        self.cache.lock(node, request.rid)
        self.cache.attach(node, min(cached, request.kv.protected), request.rid)
        self.cache.unlock(request.kv.node, request.rid)
        request.kv.node, request.kv.protected = node, upto


HOLDINGS: dict[str, type[Holdings]] = {
    bugs.UNLOCKS_TWICE: AbortUnlocksTwice,
    bugs.KEEPS_LOCK: AbortKeepsLock,
    bugs.LATE_LOCK: MatchesWithoutLock,
    bugs.TWO_KEYS: KeysTheUnfinished,
    bugs.TWO_FREES: FreesTailApart,
}
