"""Beam search: one request with several rows, which alias each other on purpose and are remapped without a probe.

All rows and slots of a beam belong to its leader's request, so that its leaks and double frees are found. What the
rows' cells map from the first fork on is not told: cells of one beam share slots, and a remap leaves slots behind that
are given back only when the batch that reads them is over.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .watch import ROWS, Doing, Watch

Reading = Generator[None, Any, None]


def spawn(watch: Watch, coordinator: Any, group: Any, leader: Any) -> Reading:
    """`_spawn_member_rows`: the leader's prefill is issued, and its request gets a row for each further beam."""
    if coordinator.req_to_token_pool is not watch.rows:
        yield
        return
    owner = watch.owner_of(leader)
    watch.beaming.add(owner)
    with watch.within(Doing("beam", owner=owner)):
        yield


def alloc_rows(watch: Watch, pool: Any, need_size: int) -> Reading:
    """`alloc_rows(n)` called for itself: rows that no request is bound to."""
    result = yield
    if pool is not watch.rows or watch.rowing or not result:
        return
    doing = watch.current("beam")
    if doing is None or doing.owner is None:
        watch.give_up("rows were taken for nobody that kvsan knows")
        return
    for row in result:
        watch.owner_of_row[int(row)] = doing.owner
        watch.san.alloc(ROWS, int(row), owner=doing.owner)


def free_rows(watch: Watch, pool: Any, indices: Any) -> Reading:
    """`free_rows(rows)` called for itself: the rows of a beam's members."""
    if pool is not watch.rows or watch.rowing:
        yield
        return
    rows = [int(row) for row in indices]
    owners = {row: watch.owner_of_row.pop(row, None) for row in rows}
    before = len(pool.free_slots)
    yield
    came = [int(row) for row in pool.free_slots[before:]] if len(pool.free_slots) != before + len(rows) else rows
    for row in came:
        watch.san.free(ROWS, row, owner=owners.get(row))


def free_members(watch: Watch, group: Any, pool: Any, *args: Any, **kwargs: Any) -> Reading:
    """`free_member_rows`: the beam ends, and gives back what all its rows have beyond the prompt, each slot once."""
    if pool is not watch.rows or group.leader is None:
        yield
        return
    with watch.within(Doing("beam", owner=watch.owner_of(group.leader))):
        yield


def reclaim(watch: Watch, coordinator: Any, group: Any, *args: Any, **kwargs: Any) -> Reading:
    """`_reclaim_orphans`: slots that no row of the beam maps any more, and whose readers are done."""
    if coordinator.req_to_token_pool is not watch.rows:
        yield
        return
    with watch.within(Doing("beam", owner=watch.owner_of(group.leader))):
        yield
