"""What 0.5.16 to 0.5.21 have otherwise than the present release: who holds what, and when a session takes over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kvsan.hooks.adapters.sglang import rows
from kvsan.hooks.adapters.sglang.between import sessions
from kvsan.hooks.adapters.sglang.between.records import OwnRecordsWatch
from kvsan.hooks.adapters.sglang.watch import ROWS, Watch
from kvsan.hooks.sanitizer import Sanitizer


def watching(kind: type[Watch], pool: Any) -> Watch:
    """A watch over rows alone."""
    watch = kind(Sanitizer())
    watch.rows = pool
    watch.san.pool(ROWS, kind="row", size=4, reserved=[0])
    watch.live.add("a")
    watch.san.req_start(owner="a")
    return watch


def read(reader: Any, during: Any = lambda: None) -> None:
    """A call that does `during`, with its result, under the reader."""
    next(reader)
    with pytest.raises(StopIteration):
        reader.send(during())


@pytest.mark.parametrize(("given_back", "found"), [(True, []), (False, ["leak"])])
def test_a_request_that_keeps_its_row_itself(given_back: bool, found: list[str]) -> None:
    """Up to 0.5.18; its record is there only while it has a row."""
    pool = SimpleNamespace(free_slots=[2, 3])
    watch = watching(OwnRecordsWatch, pool)
    req = SimpleNamespace(rid="a", req_pool_idx=None, kv=None, kv_committed_len=0, cache_protected_len=0)

    def take() -> list[int]:
        req.req_pool_idx, req.kv = 1, SimpleNamespace(kv_allocated_len=5)
        return [1]

    def give() -> None:
        pool.free_slots.append(req.req_pool_idx)
        req.req_pool_idx = None

    read(rows.alloc(watch, pool, [req]), take)
    assert (watch.record(req).req_pool_idx, watch.record(req).kv_allocated_len) == (1, 5)
    assert watch.owner_of(req) == "a"
    if given_back:
        read(rows.free(watch, pool, req), give)
        req.kv = None
        assert (watch.record(req).holds_kv, watch.record(req).kv_allocated_len) == (False, 0)
    watch.san.req_end(owner="a")
    assert [finding.kind for finding in watch.san.findings] == found


@pytest.mark.parametrize(("streams", "owner"), [(True, "session:s"), (False, "a")])
def test_a_session_takes_over_when_its_first_turn_ends(streams: bool, owner: str) -> None:
    """From 0.5.19 to 0.5.21; a request that is none of a session's keeps what it has."""
    pool = SimpleNamespace(free_slots=[2, 3])
    watch = watching(Watch, pool)
    held = SimpleNamespace(holds_kv=False, req_pool_idx=None, kv_allocated_len=0)
    req = SimpleNamespace(
        rid="a", kv=held, last_node=None, session=SimpleNamespace(session_id="s") if streams else None
    )
    kept = SimpleNamespace(slots={})
    watch.tree = SimpleNamespace(session=kept)

    def take() -> list[int]:
        held.holds_kv, held.req_pool_idx = True, 1
        return [1]

    def keep() -> bool:
        if streams:
            kept.slots["s"] = SimpleNamespace(kv=held)
            req.kv = SimpleNamespace(holds_kv=False, req_pool_idx=None)
        return streams

    read(rows.alloc(watch, pool, [req]), take)
    read(sessions.keep(watch, kept, req), keep)
    watch.san.req_end(owner="a")
    assert watch.owner_of_row[1] == owner
    assert [finding.kind for finding in watch.san.findings] == ([] if streams else ["leak"])
