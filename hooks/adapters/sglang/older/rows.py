"""Readers of the request rows: `alloc(n)` and `free(row)` up to 0.5.8, `alloc(reqs)` and `free(req)` since 0.5.9.

Nothing orders the scheduler's writes to rows after a forward's reads of them, up to 0.5.12 and on a CPU. Most writes
conflict with no reads: a decode step writes the cell after those that are read, a new row is read by nobody. Of the
rest, a write of what stands there already (the prefix of a later chunk, a publication without duplicates) is told as
that (`same`), and of a row that a finished or retracted request gives back, what a batch in flight still reads is for a
result that is thrown away (`spent`). What remains is not sound.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..rows import KernelWrite, Run
from ..watch import KV, ROWS, Doing, Slots
from .watch import OlderWatch, Publication, forward_name

Reading = Generator[None, Any, None]


def alloc_req_slots(watch: OlderWatch, pool: Any, num_reqs: int, reqs: Any, tree: Any) -> Reading:
    """`alloc_req_slots(pool, n, reqs, tree)`: for whom the rows are that `alloc` hands out inside."""
    with watch.within(Doing("rows", batch=reqs)):
        yield


def alloc(watch: OlderWatch, pool: Any, need_size: int) -> Reading:
    """`alloc(n)`: every request gets another row for every chunk."""
    result = yield
    if pool is watch.rows and result:
        doing = watch.current("rows")
        if doing is None or doing.batch is None:
            watch.give_up("rows are handed out where kvsan does not see for whom")
            return
        watch.continued.clear()
        for req, row in zip(doing.batch, result, strict=True):
            _bind(watch, str(req.rid), int(row))


def alloc_reqs(watch: OlderWatch, pool: Any, reqs: Any) -> Reading:
    """`alloc(reqs)`: a request that has a row goes on with it."""
    if pool is not watch.rows:
        yield
        return
    kept = [req for req in reqs if req.req_pool_idx is not None]
    fresh = [req for req in reqs if req.req_pool_idx is None]
    result = yield
    watch.continued.clear()
    for req in kept:
        watch.san.reuse(ROWS, int(req.req_pool_idx), owner=str(req.rid))
        watch.continued.add(int(req.req_pool_idx))
    for req in fresh if result is not None else ():
        _bind(watch, str(req.rid), int(req.req_pool_idx))


def _bind(watch: OlderWatch, owner: str, row: int) -> None:
    if watch.last_owner.get(row) == owner:
        watch.continued.add(row)
    watch.owner_of_row[row] = owner
    watch.begin(owner)
    watch.san.alloc(ROWS, row, owner=owner)


def free(watch: OlderWatch, pool: Any, *what: Any) -> Reading:
    """`free(row)`, `free(rows)` or `free(req)`: the free list says afterwards what came."""
    if pool is not watch.rows:
        yield
        return
    actor, spent = watch.actor(), watch.current("release") is not None
    before = len(pool.free_slots)
    yield
    for row in map(int, pool.free_slots[before:]):
        owner = watch.owner_of_row.pop(row, None)
        if owner is not None:
            watch.last_owner[row] = owner
        watch.san.free(ROWS, row, owner=actor or owner, spent=spent)


def clear(watch: OlderWatch, pool: Any) -> Reading:
    """Every row is free again."""
    yield
    if pool is watch.rows:
        watch.owner_of_row.clear()
        watch.last_owner.clear()
        watch.continued.clear()
        watch.san.reset(ROWS)


# -- what is written into rows


def write_cache_indices(
    watch: OlderWatch,
    out_cache_loc: Any,
    rows_on_device: Any,
    rows_on_host: Any,
    prefixes_on_device: Any,
    prefixes_on_host: Any,
    lengths_on_device: Any,
    lengths_on_host: Any,
    new_on_device: Any,
    new_on_host: Any,
    prefix_tensors: Any,
    *rest: Any,
    **named: Any,
) -> Reading:
    """Prefix and new slots of an extend batch, for each request. On devices a kernel writes them all; else it goes
    through `write`."""
    rows, prefixes, lengths = rows_on_host.tolist(), prefixes_on_host.tolist(), lengths_on_host.tolist()
    kernel = None
    with watch.within(Doing("extend", prefix=dict(zip(rows, prefixes, strict=True)))):
        if watch.readback is not None:
            runs = [Run(row, 0, *each) for row, *each in zip(rows, prefixes, lengths, strict=True)]
            kernel = KernelWrite(watch, runs, _writer_of, _tell_run)
        yield
        if kernel is not None:
            new = out_cache_loc.split([end - begin for begin, end in zip(prefixes, lengths, strict=True)])
            kernel.over([each for both in zip(prefix_tensors, new, strict=True) for each in both])
    if watch.slots:
        return  # told by `write`, or by the kernel's
    for row, prefix, length in zip(rows, prefixes, lengths, strict=True):
        _tell_unread(watch, row, prefix if row in watch.continued else 0, length)


def write(watch: OlderWatch, pool: Any, indices: Any, values: Any) -> Reading:
    """`write((row, slice), slots)` for a run of one row; `write((rows, positions), slots)` for one cell of each row."""
    if pool is not watch.rows:
        yield
        return
    row, where = indices
    if not watch.slots:
        yield
        _told_by_length(watch, row, where)
        return
    if not isinstance(where, slice):
        yield
        _write_cells(watch, pool, indices, values)
        return
    doing = watch.current("extend")
    if not values.numel() or (doing is not None and watch.readback is not None):  # told by the kernel's
        yield
        return
    before = watch.keep(pool.req_to_token[indices])
    yield
    begin = where.start or 0
    new = doing is not None and begin == doing.prefix.get(int(row))
    taken = watch.take(values), before, watch.take(pool.req_to_token[indices])
    watch.then(partial(_written_run, watch, _writer_of(watch, int(row)), begin, new), *taken)


@dataclass(frozen=True, slots=True)
class Writer:
    """Whose row is written, on which stream, and for which batch, if for one."""

    row: int
    owner: str | None
    agent: str
    batch: str | None


def _writer_of(watch: OlderWatch, row: int) -> Writer:
    prepares = watch.current("extend", "decode") is not None
    batch = forward_name(watch.scheduler.forward_ct + 1) if prepares else None
    return Writer(row, watch.owner_of_row.get(row), watch.stream(), batch)


def _written_run(
    watch: OlderWatch, writer: Writer, begin: int, new: bool, slots: Slots, before: Slots, there: Slots
) -> None:
    if np.array_equal(slots, there):  # a write that something swallowed is none
        if new:
            watch.san.own(KV, slots, owner=writer.owner)
        _tell_run(watch, writer, begin, slots, before)


def _tell_run(watch: OlderWatch, writer: Writer, begin: int, slots: Slots, before: Slots) -> None:
    """A run of cells: what comes before the first and after the last that changed is the same as before. Batches read
    rows from their beginning, so that unchanged cells between the two are read only where changed ones are."""
    changed = np.flatnonzero(slots != before)
    first, last = (int(changed[0]), int(changed[-1]) + 1) if changed.size else (slots.size, slots.size)
    for start, stop, same in ((0, first, True), (first, last, False), (last, slots.size, True)):
        if start < stop:
            _tell(watch, writer, begin + start, slots[start:stop], same=same)


def _write_cells(watch: OlderWatch, pool: Any, indices: Any, values: Any) -> None:
    """One cell of each row; on a device the host's copies say which."""
    doing = watch.current("decode")
    if watch.readback is None:
        rows, positions = indices[0].tolist(), indices[1].tolist()
    elif doing is not None and doing.batch.seq_lens_cpu is not None:
        rows = [int(req.req_pool_idx) for req in doing.batch.reqs]
        positions = doing.batch.seq_lens_cpu.tolist()
    else:
        watch.give_up("cells of rows are written where only the device knows which")
        return
    writers = [_writer_of(watch, row) for row in rows]
    taken = watch.take(values), watch.take(pool.req_to_token[indices])
    watch.then(partial(_written_cells, watch, writers, positions), *taken)


def _written_cells(watch: OlderWatch, writers: list[Writer], positions: list[int], slots: Slots, there: Slots) -> None:
    for writer, position, slot, found in zip(writers, positions, slots.tolist(), there.tolist(), strict=True):
        watch.san.own(KV, slot, owner=writer.owner)
        if slot == found:
            _tell(watch, writer, position, slot)


def _told_by_length(watch: OlderWatch, row: Any, where: Any) -> None:
    """A write whose slots cannot be read: how much of it changes anything follows from what it is for."""
    doing = watch.current("extend", "publish", "decode")
    if doing is None:
        if isinstance(where, slice):
            _tell_unread(watch, int(row), where.start or 0, where.stop)
    elif isinstance(doing, Publication):  # only where the cache had the same tokens are its slots others
        _tell_unread(watch, int(row), where.start or 0, min(where.stop, doing.matched))
    elif doing.what == "decode" and doing.batch.seq_lens_cpu is not None:
        for req, position in zip(doing.batch.reqs, doing.batch.seq_lens_cpu.tolist(), strict=True):
            _tell_unread(watch, int(req.req_pool_idx), position, position + 1)


def _tell_unread(watch: OlderWatch, row: int, begin: int, end: int) -> None:
    if begin < end:
        _tell(watch, _writer_of(watch, row), begin, np.zeros(end - begin, np.int64))


def _tell(watch: OlderWatch, writer: Writer, position: int, slots: Any, *, same: bool = False) -> None:
    watch.san.row_write(
        ROWS,
        row=writer.row,
        pos=position,
        into=KV,
        slots=slots,
        same=same,
        batch=writer.batch,
        owner=writer.owner,
        agent=writer.agent,
    )
