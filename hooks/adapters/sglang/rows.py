"""Readers of the request rows: who gets which, and which slots are written into them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from .watch import KV, ROWS, Doing, Slots, Watch

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
    ours = req_to_token_pool is watch.rows
    kernel = None
    if ours and watch.readback is not None:
        runs = [Run(row, 0, *each) for row, *each in zip(rows, prefixes, lengths, strict=True)]
        kernel = KernelWrite(watch, runs, writer_of, tell_run)
    with watch.within(Doing("extend", prefix=dict(zip(rows, prefixes, strict=True)))):
        yield
    if kernel is not None:
        fresh = out_cache_loc.split([end - begin for begin, end in zip(prefixes, lengths, strict=True)])
        kernel.over([each for both in zip(prefix_tensors, fresh, strict=True) for each in both])
    elif ours and not watch.slots:
        for row, length in zip(rows, lengths, strict=True):
            tell_unread(watch, row, 0, length)


@dataclass(frozen=True, slots=True)
class Run:
    """Cells [begin, end) of a row; from `fresh` on, their slots are new ones."""

    row: int
    begin: int
    fresh: int
    end: int


Watching = TypeVar("Watching", bound=Watch)


class KernelWrite(Generic[Watching]):
    """One kernel writes runs of several rows; it is made before the kernel is launched.

    What the table has before and after tells a write that something swallowed from one that another write followed.
    `writer` says at the end who writes a row, `tell` what he wrote: the first cell, the slots, and those before.
    """

    def __init__(
        self,
        watch: Watching,
        runs: list[Run],
        writer: Callable[[Watching, int], Any],
        tell: Callable[[Watching, Any, int, Slots, Slots], None],
    ) -> None:
        self._watch, self._runs, self._writer, self._tell = watch, runs, writer, tell
        self._before = self._cells()

    def over(self, asked: list[Any]) -> None:
        """It was launched; these slots were to be written, one run's after the other's. Empty ones may be on another
        device than the rest."""
        import torch

        if self._runs:
            writers = [self._writer(self._watch, run.row) for run in self._runs]
            slots = torch.cat([each for each in asked if each.numel()] or asked[:1])
            taken = self._watch.take(slots), self._before, self._cells()
            self._watch.then(partial(self._written, writers), *taken)

    def _cells(self) -> Any:
        """What the table has now in all these runs."""
        import torch

        table = self._watch.rows.req_to_token
        runs = [table[run.row, run.begin : run.end] for run in self._runs]
        return self._watch.keep(torch.cat(runs)) if runs else None

    def _written(self, writers: list[Any], asked: Slots, before: Slots, there: Slots) -> None:
        first = 0
        for run, writer in zip(self._runs, writers, strict=True):
            split, last = first + run.fresh - run.begin, first + run.end - run.begin
            if last > split:
                self._watch.san.own(KV, asked[split:last], owner=writer.owner)
            for begin, end in ((first, split), (split, last)):
                position = run.begin + begin - first
                self._written_part(writer, position, asked[begin:end], before[begin:end], there[begin:end])
            first = last

    def _written_part(self, writer: Any, position: int, asked: Slots, before: Slots, there: Slots) -> None:
        other = np.flatnonzero(asked != there)
        if not asked.size or (other.size and np.array_equal(there, before)):
            return  # swallowed
        self._tell(self._watch, writer, position, asked, before)
        if other.size:  # another write followed
            again = slice(int(other[0]), int(other[-1]) + 1)
            self._tell(self._watch, writer, position + again.start, there[again], asked[again])


@dataclass(frozen=True, slots=True)
class Writer:
    """Whose row is written, on which stream; `told`: of beams it is not."""

    row: int
    owner: str | None
    agent: str
    told: bool


def writer_of(watch: Watch, row: int) -> Writer:
    """Who writes the row now."""
    owner = watch.owner_of_row.get(row)
    return Writer(row, owner, watch.stream(), owner not in watch.beaming)


def tell_run(watch: Watch, writer: Writer, position: int, slots: Slots, before: Slots) -> None:
    """Slots were written from `position` on."""
    if writer.told:
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
    if not watch.slots:
        tell_unread(watch, row, begin, end)
        return
    doing = watch.current("extend")
    if doing is not None and watch.readback is not None:
        return  # told when all of the batch's are written
    fresh = doing is not None and begin == doing.prefix.get(row)
    taken = watch.take(values), watch.take(pool.req_to_token[row, begin:end])
    watch.then(partial(_written_run, watch, writer_of(watch, row), begin, fresh), *taken)


def _written_run(watch: Watch, writer: Writer, begin: int, fresh: bool, slots: Slots, there: Slots) -> None:
    """Slots were to be written, and the engine's table had these there then: a write that something swallowed is
    none."""
    if fresh:
        watch.san.own(KV, slots, owner=writer.owner)
    if np.array_equal(slots, there):
        tell_run(watch, writer, begin, slots, there)


def tell_unread(watch: Watch, row: int, begin: int, end: int) -> None:
    """Cells [begin, end) of the row were written; with which slots is not followed."""
    nothing = np.zeros(end - begin, np.int64)
    tell_run(watch, writer_of(watch, row), begin, nothing, nothing)


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
