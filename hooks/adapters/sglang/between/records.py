"""Up to 0.5.18 a request keeps itself what it holds; only two lengths are in a record, which it has while it has a
row."""

from __future__ import annotations

from typing import Any

from ..watch import Watch


class OwnRecord:
    """What a request says that it holds, by the names of the later record."""

    def __init__(self, req: Any) -> None:
        self._req = req

    @property
    def holds_kv(self) -> bool:
        """Does it have a row?"""
        return self._req.req_pool_idx is not None

    @property
    def holds_mamba(self) -> bool:
        """Does it have a recurrent state?"""
        return self._req.mamba_pool_idx is not None

    @property
    def req_pool_idx(self) -> int | None:
        """Its row."""
        row: int | None = self._req.req_pool_idx
        return row

    @property
    def kv_allocated_len(self) -> int:
        """How many cells of its row are its."""
        return 0 if self._req.kv is None else int(self._req.kv.kv_allocated_len)

    @property
    def kv_committed_len(self) -> int:
        """How many of them have KV."""
        return int(self._req.kv_committed_len)

    @property
    def cache_protected_len(self) -> int:
        """How many of them are the prefix cache's."""
        return int(self._req.cache_protected_len)


class OwnRecordsWatch(Watch):
    """The watch over a scheduler of these releases."""

    caches = ("RadixCache", "ChunkCache")
    sessions = False

    def record(self, holder: Any) -> Any:
        """What the request holds, as it says itself."""
        return OwnRecord(holder)

    def bind(self, req: Any, owner: str) -> None:
        """Nobody but a request itself ever runs on what it holds."""

    def unbind(self, holder: Any) -> None:
        """See `bind`."""

    def holder(self, holder: Any) -> str | None:
        """See `bind`."""
        return None
