"""Readers of the request rows: who gets which, and which slots are written into them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
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
        watch.begin(owner)
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
    extend_lens_tensor: Any,
    extend_lens_cpu: Any,
    prefix_tensors: Any,
    req_to_token_pool: Any,
) -> Reading:
    """Prefix and new slots of an extend batch, for each request. On devices a kernel writes them all; else it goes
    through `write`."""
    rows, prefixes, lengths = req_pool_indices_cpu.tolist(), prefix_lens_cpu.tolist(), seq_lens_cpu.tolist()
    far = watch.slots and watch.readback is not None and req_to_token_pool is watch.rows and bool(rows)
    before = watch.take(_beginnings(req_to_token_pool, rows, lengths)) if far else None
    with watch.within(Doing("extend", prefix=dict(zip(rows, prefixes, strict=True)))):
        yield
    if far:
        import torch

        pieces = [
            Piece(_writer(watch, row), begin, end) for row, begin, end in zip(rows, prefixes, lengths, strict=True)
        ]
        asked = watch.take(torch.cat(prefix_tensors)), watch.take(out_cache_loc)
        there = watch.take(_beginnings(req_to_token_pool, rows, lengths))
        watch.then(partial(_tell_extended, watch, pieces), *asked, before, there)
    elif not watch.slots and req_to_token_pool is watch.rows:
        agent = watch.stream()
        for row, length in zip(rows, lengths, strict=True):
            tell_write(watch, row, 0, np.zeros(length, np.int64), agent)


def _beginnings(pool: Any, rows: list[int], lengths: list[int]) -> Any:
    """The first so many cells of each row, one row's after the other's, on the device."""
    import torch

    return torch.cat([pool.req_to_token[row, :length] for row, length in zip(rows, lengths, strict=True)])


@dataclass(frozen=True, slots=True)
class Writer:
    """Whose row is written, on which stream; `told`: of beams it is not."""

    row: int
    owner: str | None
    agent: str
    told: bool


def _writer(watch: Watch, row: int) -> Writer:
    owner = watch.owner_of_row.get(row)
    return Writer(row, owner, watch.stream(), owner not in watch.beaming)


@dataclass(frozen=True, slots=True)
class Piece:
    """A request's part in an extend batch: how long its prefix is, and how far its row goes now."""

    writer: Writer
    begin: int
    end: int


def _tell_extended(watch: Watch, pieces: list[Piece], prefix: Slots, new: Slots, before: Slots, there: Slots) -> None:
    """What a kernel was to write, one request's after the other's, and what the table had before and after. Cells that
    have something else than both were written twice."""
    shared = taken = seen = 0
    for piece in pieces:
        begin, count = piece.begin, piece.end - piece.begin
        asked = np.concatenate([prefix[shared : shared + begin], new[taken : taken + count]])
        watch.san.own(KV, asked[begin:], owner=piece.writer.owner)
        old, cells = before[seen : seen + piece.end], there[seen : seen + piece.end]
        for part in (slice(0, begin), slice(begin, piece.end)):
            other = np.flatnonzero(asked[part] != cells[part])
            if not other.size or not np.array_equal(cells[part], old[part]):
                _written(watch, piece.writer, part.start, asked[part], asked[part])
                if other.size:
                    again = slice(part.start + int(other[0]), part.start + int(other[-1]) + 1)
                    _written(watch, piece.writer, again.start, cells[again], cells[again])
        shared, taken, seen = shared + begin, taken + count, seen + piece.end


def _written(watch: Watch, writer: Writer, position: int, slots: Slots, there: Slots) -> None:
    """Slots were to be written from `position` on, and the engine's table had these there then: a write that something
    swallowed is none."""
    if writer.told and slots.size and np.array_equal(slots, there):
        watch.san.row_write(
            ROWS, row=writer.row, pos=position, into=KV, slots=slots, owner=writer.owner, agent=writer.agent
        )


def write(watch: Watch, pool: Any, indices: Any, values: Any) -> Reading:
    """`write((row, slice), slots)` for a run of one row; `write((rows, positions), slots)` for one cell of each row."""
    yield
    if pool is not watch.rows:
        return
    row, where = indices
    if isinstance(where, slice):
        _write_run(watch, pool, int(row), where.start or 0, where.stop, values)
        return
    doing = watch.current("decode")
    if watch.slots and watch.readback is None:
        rows, positions = numbers(row), numbers(where)
    elif doing is not None and doing.batch.seq_lens_cpu is not None:
        rows, positions = numbers(doing.batch.req_pool_indices_cpu), numbers(doing.batch.seq_lens_cpu)
    else:
        if watch.slots:
            watch.give_up("cells of rows are written where only the device knows which")
        return
    owners = [watch.owner_of_row.get(number) for number in rows]
    cells = Cells(rows, positions, owners, [owner not in watch.beaming for owner in owners], watch.stream())
    if watch.slots:
        taken = watch.take(values), watch.take(pool.req_to_token[indices])
        watch.then(partial(_own_and_tell_cells, watch, cells), *taken)
    else:
        _tell_cells(watch, cells, [0] * len(rows), [0] * len(rows))


@dataclass(frozen=True, slots=True)
class Cells:
    """One cell of each row; `told`: of beams they are not."""

    rows: list[int]
    positions: list[int]
    owners: list[str | None]
    told: list[bool]
    agent: str


def _own_and_tell_cells(watch: Watch, cells: Cells, slots: Slots, there: Slots) -> None:
    written = slots.tolist()
    watch.san.own_each(KV, written, owners=cells.owners)
    _tell_cells(watch, cells, written, there.tolist())


def _tell_cells(watch: Watch, cells: Cells, slots: list[int], there: list[int]) -> None:
    """The slots that were to be written, and those that were there then."""
    told = [
        (row, position, slot, owner)
        for row, position, owner, tell, slot, found in zip(
            cells.rows, cells.positions, cells.owners, cells.told, slots, there, strict=True
        )
        if tell and slot == found
    ]
    if told:
        rows, positions, written, owners = zip(*told, strict=True)
        watch.san.row_write_each(
            ROWS, rows=rows, positions=positions, into=KV, slots=written, owners=owners, agent=cells.agent
        )


def numbers(tensor: Any) -> list[int]:
    """What a tensor on the CPU holds, as integers: for a few, an array would cost more."""
    found: list[int] = tensor.reshape(-1).tolist()
    return found


def _write_run(watch: Watch, pool: Any, row: int, begin: int, end: int, values: Any) -> None:
    if end <= begin:
        return
    writer = _writer(watch, row)
    if not watch.slots:
        nothing = np.zeros(end - begin, np.int64)
        _written(watch, writer, begin, nothing, nothing)
        return
    doing = watch.current("extend")
    if doing is not None and watch.readback is not None:
        return  # told when all of the batch's are written
    fresh = doing is not None and begin == doing.prefix.get(row)
    taken = watch.take(values), watch.take(pool.req_to_token[row, begin:end])
    watch.then(partial(_written_run, watch, writer, begin, fresh), *taken)


def _written_run(watch: Watch, writer: Writer, begin: int, fresh: bool, slots: Slots, there: Slots) -> None:
    if fresh:
        watch.san.own(KV, slots, owner=writer.owner)
    _written(watch, writer, begin, slots, there)


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
