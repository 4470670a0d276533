"""Speculative decoding: slots are taken ahead of what is accepted, and written into rows by a kernel of their own.

What a request took and did not need is given back when it ends, by the same calls as the rest. The engine's record runs
ahead of what is committed, so that no record is told.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from .rows import table, tell_write
from .watch import KV, Watch

Reading = Generator[None, Any, None]


def assign(
    watch: Watch,
    req_pool_indices: Any,
    req_to_token: Any,
    start_offset: Any,
    end_offset: Any,
    out_cache_loc: Any,
    batch_size: int,
) -> Reading:
    """`assign_req_to_token_pool_func`: for each row its piece of the slots, one after the other. A draft model's own
    table is none of ours."""
    yield
    if not watch.slots or req_to_token is not watch.rows.req_to_token:
        return
    agent, taken = watch.stream(), 0
    slots = watch.ids(out_cache_loc).copy()
    pieces = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, begin, end in pieces:
        mine = slots[taken : taken + end - begin]
        taken += end - begin
        if not mine.size:
            continue
        watch.san.own(KV, mine, owner=watch.owner_of_row.get(row))
        if np.array_equal(mine, table(watch.rows, (row, slice(begin, end)))):
            tell_write(watch, row, begin, mine, agent)


def reserve(watch: Watch, tree: Any, pool: Any, **named: Any) -> Reading:
    """`alloc_for_spec_decode`: where slot ids stay on a device, the lengths on the host say which cells are written."""
    begins, ends = named["cur_kv_lens_cpu"].tolist(), named["nxt_kv_lens_cpu"].tolist()
    yield
    if watch.slots or pool is not watch.rows:
        return
    agent = watch.stream()
    for req, begin, end in zip(named["reqs"], begins, ends, strict=True):
        if end > begin:
            tell_write(watch, int(req.kv.req_pool_idx), begin, np.zeros(end - begin, np.int64), agent)
