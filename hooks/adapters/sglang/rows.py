"""Readers of the request rows: who gets which, and which slots are written into them."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import numpy as np

from .watch import KV, NONE, ROWS, Doing, Slots, Watch

Reading = Generator[None, Any, None]


def alloc(watch: Watch, pool: Any, reqs: Any) -> Reading:
    """`alloc(reqs)`: binds a row to each request that has none; the others go on with theirs."""
    if pool is not watch.rows or watch.rowing:
        yield
        return
    records = [(req, watch.record(req)) for req in reqs]
    reusing = [(watch.owner_of(req), int(record.req_pool_idx)) for req, record in records if record.holds_kv]
    fresh = [req for req, record in records if not record.holds_kv]
    watch.rowing += 1
    try:
        result = yield
    finally:
        watch.rowing -= 1
    for owner, row in reusing:
        watch.san.reuse(ROWS, row, owner=owner)
    if result is None:
        return
    for req in fresh:
        owner, row = str(req.rid), int(watch.record(req).req_pool_idx)
        watch.bind(req, owner)
        watch.owner_of_row[row] = owner
        watch.live.add(owner)
        watch.san.alloc(ROWS, row, owner=owner)


def free(watch: Watch, pool: Any, req: Any) -> Reading:
    """`free(req)`: a request or a session's slot gives its row back."""
    if pool is not watch.rows or watch.rowing or not watch.record(req).holds_kv:
        yield
        return
    row = int(watch.record(req).req_pool_idx)
    owner = watch.holder(req) or watch.owner_of_row.get(row) or getattr(req, "rid", None)
    before = len(pool.free_slots)
    watch.rowing += 1
    try:
        yield
    finally:
        watch.rowing -= 1
    if watch.record(req).req_pool_idx is None:
        watch.unbind(req)
    _freed(watch, pool, [row], owner, before)


def _freed(watch: Watch, pool: Any, rows: list[int], owner: str | None, before: int) -> None:
    """Tells the rows that are in the free list now, as often as they came."""
    came = [int(row) for row in pool.free_slots[before:]] if len(pool.free_slots) != before + len(rows) else rows
    for row in came:
        watch.owner_of_row.pop(row, None)
        watch.san.free(ROWS, row, owner=owner)


def clear(watch: Watch, pool: Any) -> Reading:
    """Every row is free again."""
    yield
    if pool is watch.rows:
        watch.owner_of_row.clear()
        watch.owner_of_record.clear()
        watch.san.reset(ROWS)


# -- what is written into rows


def write_cache_indices(
    watch: Watch,
    out_cache_loc: Any,
    req_pool_indices_tensor: Any,
    req_pool_indices_cpu: Any,
    prefix_lens_tensor: Any,
    prefix_lens_cpu: Any,
    seq_lens_tensor: Any,
    seq_lens_cpu: Any,
    *rest: Any,
    **named: Any,
) -> Reading:
    """Prefix and new slots of an extend batch, for each request. On devices a kernel writes them all; else it goes
    through `write`."""
    rows, prefixes = req_pool_indices_cpu.tolist(), prefix_lens_cpu.tolist()
    with watch.within(Doing("extend", prefix=dict(zip(rows, prefixes, strict=True)))):
        yield
    if watch.slots:
        return  # told by `write`
    agent = watch.stream()
    for row, length in zip(rows, seq_lens_cpu.tolist(), strict=True):
        tell_write(watch, row, 0, np.zeros(length, np.int64), agent)


def write(watch: Watch, pool: Any, indices: Any, values: Any) -> Reading:
    """`write((row, slice), slots)` for a run of one row; `write((rows, positions), slots)` for one cell of each row."""
    yield
    if pool is not watch.rows:
        return
    row, where = indices
    agent = watch.stream()
    if isinstance(where, slice):
        _run(watch, pool, int(row), where.start or 0, where.stop, values, agent)
    elif watch.slots:
        rows, slots = numbers(row), numbers(values)
        there = numbers(pool.req_to_token[indices])
        watch.san.own_each(KV, slots, owners=[watch.owner_of_row.get(number) for number in rows])
        _tell_cells(watch, zip(rows, numbers(where), slots, there, strict=True), agent)
    else:
        doing = watch.current("decode")
        if doing is not None and doing.batch.seq_lens_cpu is not None:
            rows, lengths = doing.batch.req_pool_indices_cpu.tolist(), doing.batch.seq_lens_cpu.tolist()
            nothing = [0] * len(rows)
            _tell_cells(watch, zip(rows, lengths, nothing, nothing, strict=True), agent)


def _tell_cells(watch: Watch, cells: Iterable[tuple[int, int, int, int]], agent: str) -> None:
    """Cells of one row each: row, position, the slot that was to be written, and the one that is there."""
    told = [
        (row, position, slot, owner)
        for row, position, slot, found in cells
        if slot == found and (owner := watch.owner_of_row.get(row)) not in watch.beaming
    ]
    if told:
        rows, positions, slots, owners = zip(*told, strict=True)
        watch.san.row_write_each(ROWS, rows=rows, positions=positions, into=KV, slots=slots, owners=owners, agent=agent)


def numbers(tensor: Any) -> list[int]:
    """What a tensor on the CPU holds, as integers: for a few, an array would cost more."""
    found: list[int] = tensor.reshape(-1).tolist()
    return found


def _run(watch: Watch, pool: Any, row: int, begin: int, end: int, values: Any, agent: str) -> None:
    if end <= begin:
        return
    if not watch.slots:
        tell_write(watch, row, begin, np.zeros(end - begin, np.int64), agent)
        return
    slots = watch.ids(values)
    doing = watch.current("extend")
    if doing is not None and begin == doing.prefix.get(row):
        watch.san.own(KV, slots, owner=watch.owner_of_row.get(row))
    if np.array_equal(slots, table(pool, (row, slice(begin, end)))):
        tell_write(watch, row, begin, slots, agent)


def table(pool: Any, indices: Any) -> Slots:
    """What the engine's table has there now: a write that something swallowed is none. Only read on the CPU."""
    array: Slots = pool.req_to_token[indices].reshape(-1).numpy()
    return array


def tell_write(watch: Watch, row: int, position: int, slots: Any, agent: str) -> None:
    """Slots are now in the row's cells from `position` on."""
    owner = watch.owner_of_row.get(row)
    if owner not in watch.beaming:
        watch.san.row_write(ROWS, row=row, pos=position, into=KV, slots=slots, owner=owner, agent=agent)


def row_slots(watch: Watch, kv: Any, begin: int, end: int) -> Slots:
    """The slots that a record's row has in cells [begin, end); only on the CPU."""
    if not watch.slots or kv.req_pool_idx is None or end <= begin:
        return NONE
    return watch.ids(watch.rows.req_to_token[kv.req_pool_idx, begin:end])


def alloc_for_decode(watch: Watch, batch: Any, token_per_req: int) -> Reading:
    """One decode step's slots for every request of the batch."""
    with watch.within(Doing("decode", batch=batch)):
        yield


def tell_record(watch: Watch, kv: Any, owner: str) -> None:
    """What the engine's own record says that the owner holds."""
    if owner in watch.beaming:
        return
    row, allocated = kv.req_pool_idx, int(kv.kv_allocated_len)
    if row is None:  # a record that was given back keeps its other lengths until it is used again
        watch.san.kv_record(row=None, allocated=allocated, committed=0, protected=0, owner=owner, pool=ROWS)
        return
    watch.san.kv_record(
        row=int(row),
        allocated=allocated,
        committed=int(kv.kv_committed_len),
        protected=int(kv.cache_protected_len),
        owner=owner,
        pool=ROWS,
    )
