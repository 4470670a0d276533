"""Faults for a living SGLang scheduler, as a plugin of it; a control file says which one is armed.

A fault wraps a function of SGLang. By default it does so outside kvsan's probe, so that kvsan sees the faulty call; as
`NAME:inside` it sits between kvsan's probe and SGLang, so that only the effect gives it away. The file
(`KVSAN_TEST_FAULT` has its path) is looked at before each batch. A fault that was armed strikes once, at its first
chance, unless it says otherwise; what it did, and at which event and step of kvsan, it appends to `FILE.hits`. A plugin
of kvsan appends every finding to `FILE.found`, those too that a report shows as repeats.

The places are those of SGLang 0.5.22 and 0.5.23; where a release has them not, `earlier_faults` says what stands for
them there.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pluggy

VARIABLE = "KVSAN_TEST_FAULT"
SCHEDULER = "sglang.srt.managers.scheduler"
BASE = "sglang.srt.mem_cache.allocator.base:BaseTokenToKVPoolAllocator"
TOKEN = "sglang.srt.mem_cache.allocator.token:TokenToKVPoolAllocator"
PAGED = "sglang.srt.mem_cache.allocator.paged:PagedTokenToKVPoolAllocator"
ROWS = "sglang.srt.mem_cache.memory_pool:ReqToTokenPool"
WINDOW = "sglang.srt.mem_cache.swa_memory_pool:SWAKVPool"
BASE_TREE = "sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache"
TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
COMMON = "sglang.srt.mem_cache.common"
PREFILL = "sglang.srt.disaggregation.prefill"
PREFILLING = f"{PREFILL}:SchedulerDisaggregationPrefillMixin"
RECORD = "sglang.srt.managers.schedule_batch:ReqKvInfo"
ALLOCATION = "sglang.srt.mem_cache.allocation"
EAGLE = "sglang.srt.speculative.eagle_utils"
TOTALS = "sglang.srt.managers.scheduler_components.invariant_checker:SchedulerInvariantChecker"

Original = Callable[..., Any]


class Switch:
    """Which fault is armed, and what it has done. `scheduler` is the living one, `processed` the batch whose
    results it took in last, `evicting` whether the cache gives something back."""

    def __init__(self, file: Path, faults: dict[str, Fault]) -> None:
        self.file = file
        self.faults = faults
        self.armed = ""
        self.left = 0
        self.scheduler: Any = None
        self.processed: Any = None
        self.evicting = False
        self.sanitizer: Any = None
        self._version = (0, 0)
        self._restore: Callable[[], None] = lambda: None

    def look(self, scheduler: Any) -> None:
        """Reads the control file, if it was written since."""
        self.scheduler = scheduler
        status = os.stat(self.file)
        version = (status.st_ino, status.st_mtime_ns)
        if version == self._version:
            return
        self._version = version
        self._listen()
        self._restore()
        self._restore = lambda: None
        self.armed = self.file.read_text(encoding="utf-8").strip()
        if self.armed:
            fault = self.faults[self.armed.partition(":")[0]]
            self.left = fault.strikes
            if ":" not in self.armed:
                self._restore = wrap(fault.where, functools.partial(fault.act, self))

    def strike(self, **facts: Any) -> bool:
        """Does the fault strike now? If so, `facts` are noted."""
        if not self.left:
            return False
        self.left -= 1
        if self.sanitizer.enabled:
            facts |= {"event": self.sanitizer.events, "step": self.sanitizer.tracker.state.history.step}
        self._append("hits", facts | {"fault": self.armed})
        return True

    def _listen(self) -> None:
        if self.sanitizer is None:
            from kvsan.hooks import current

            self.sanitizer = current()
            if self.sanitizer.enabled:
                self.sanitizer.add_plugin(self, "faults")

    @pluggy.HookimplMarker("kvsan")
    def kvsan_finding(self, finding: Any) -> None:
        """kvsan calls this with every finding, before anybody asks whether there was one like it."""
        from kvsan.serialize import to_dict

        self._append("found", to_dict(finding, defaults=False))

    def _append(self, what: str, line: Any) -> None:
        with open(f"{self.file}.{what}", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    # -- what faults ask of the scheduler

    def requests(self) -> list[Any]:
        """The requests that hold a row."""
        batches = [self.processed, self.scheduler.running_batch, self.scheduler.last_batch]
        sent = getattr(self.scheduler, "disagg_prefill_inflight_queue", None) or ()
        batched = (req for batch in batches if batch is not None for req in batch.reqs)
        every = [self.scheduler.chunked_req, *batched, *sent]
        return list({id(req): req for req in every if req is not None and self.row_of(req) is not None}.values())

    def row_of(self, req: Any) -> int | None:
        """The row that a request holds."""
        row = record(req).req_pool_idx
        return None if row is None else int(row)

    def owner(self, kv: Any) -> str | None:
        """Whose record this is."""
        return next((str(req.rid) for req in self.requests() if req.kv is kv), None)

    def acting(self) -> str | None:
        """On whose behalf the engine is at it: the `req` of the innermost caller that has one; nobody's in an
        eviction."""
        frame: Any = None if self.evicting else sys._getframe(1)
        while frame is not None:
            req = frame.f_locals.get("req")
            if hasattr(req, "rid"):
                return str(req.rid)
            frame = frame.f_back
        return None

    def row(self, kv: Any) -> Any:
        """The slots that the record's row maps, shape [allocated]."""
        return self.scheduler.req_to_token_pool.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len].long()

    def slots_of(self, req: Any) -> Any:
        """The slots that the request's row maps, shape [allocated]."""
        row = record(req).req_pool_idx
        return self.scheduler.req_to_token_pool.req_to_token[row, : req.kv.kv_allocated_len].long()

    def of_row(self, number: int) -> str | None:
        """Who has the row."""
        return next((str(req.rid) for req in self.requests() if self.row_of(req) == number), None)


def record(req: Any) -> Any:
    """What a request or session holds: in a record, or (up to 0.5.18) as the request says itself."""
    return req.kv if hasattr(getattr(req, "kv", None), "holds_kv") else req


def on_row(row: int) -> Any:
    """What looks to a pool as if it held that row."""
    return SimpleNamespace(req_pool_idx=row, kv=SimpleNamespace(holds_kv=True, req_pool_idx=row))


def grouped(pool: Any) -> bool:
    """Is what is freed now put aside? Up to 0.5.18 a flag says so."""
    return not getattr(pool, "is_not_in_free_group", pool.free_group is None)


# -- token slots


def leak(switch: Switch, original: Original, tree: Any, kv: Any, ranges: Any) -> Any:
    """A release forgets its last slot, with pages the last page."""
    page = tree.page_size
    begin, end = ranges[-1] if ranges else (0, 0)
    kept = max(begin, (end - 1) // page * page)
    owner = switch.owner(kv)
    if end > begin and owner and switch.strike(owner=owner, slots=switch.row(kv)[kept:end].tolist()):
        ranges = [*ranges[:-1], (begin, kept)]
    return original(tree, kv, ranges)


def lost_in_free(switch: Switch, original: Original, pool: Any, free_index: Any) -> Any:
    """The allocator forgets the last slot of what it is given."""
    chance = not grouped(pool) and free_index.numel() > 1
    if chance and switch.strike(slots=free_index[-1:].tolist(), owner=switch.acting()):
        free_index = free_index[:-1]
    return original(pool, free_index)


def lost_in_eviction(switch: Switch, original: Original, pool: Any, free_index: Any) -> Any:
    """The allocator forgets the last slot of what the cache gives back."""
    return (lost_in_free if switch.evicting else _harmless)(switch, original, pool, free_index)


def evicted_twice(switch: Switch, original: Original, pool: Any, free_index: Any) -> Any:
    """The allocator puts what the cache gives back into its free list twice."""
    return (added_twice if switch.evicting else _harmless)(switch, original, pool, free_index)


def _harmless(switch: Switch, original: Original, pool: Any, free_index: Any) -> Any:
    return original(pool, free_index)


def lost_page(switch: Switch, original: Original, pool: Any, *page_ids: Any) -> Any:
    """The allocator forgets the last page of what it is given."""
    if page_ids[-1].numel() and switch.strike(slots=(page_ids[-1][-1:] * pool.page_size).tolist()):
        page_ids = (*page_ids[:-1], page_ids[-1][:-1])
    return original(pool, *page_ids)


def double_free(switch: Switch, original: Original, tree: Any, kv: Any, ranges: Any) -> Any:
    """A release runs twice."""
    result = original(tree, kv, ranges)
    slots = [slot for begin, end in ranges for slot in switch.row(kv)[begin:end].tolist()]
    owner = switch.owner(kv)
    if slots and owner and switch.strike(owner=owner, slots=slots):
        original(tree, kv, ranges)
    return result


def added_twice(switch: Switch, original: Original, pool: Any, free_index: Any) -> Any:
    """The allocator puts what it is given into its free list twice."""
    result = original(pool, free_index)
    if not grouped(pool) and free_index.numel() > 1 and switch.strike(slots=free_index.tolist(), owner=switch.acting()):
        original(pool, free_index)
    return result


def page_twice(switch: Switch, original: Original, pool: Any, free_index: Any, *, start_pos: int) -> Any:
    """A page is given back again, through a slot of it that the first release did not name."""
    result = original(pool, free_index, start_pos=start_pos)
    other = int(free_index[-1]) + 1 if free_index.numel() else 0
    if other % pool.page_size and switch.strike(slots=[other]):
        pool.free(free_index[-1:] + 1)
    return result


def foreign_free(switch: Switch, original: Original, tree: Any, kv: Any, ranges: Any) -> Any:
    """A release frees the last page of its prefix, which the tree holds, along with its own."""
    held, page = kv.cache_protected_len, tree.page_size
    owner = switch.owner(kv)
    chance = held > 0 and ranges and ranges[0][0] >= held and owner
    if chance and switch.strike(owner=owner, slots=switch.row(kv)[held - page : held].tolist()):
        ranges = [(held - page, held), *ranges]
    return original(tree, kv, ranges)


def invalid_free(switch: Switch, original: Original, pool: Any, free_index: Any, *, start_pos: int) -> Any:
    """A release gives the padding slot back along with its own."""
    import torch

    if free_index.numel() and switch.strike(slots=[0]):
        free_index = torch.cat((free_index, torch.zeros(1, dtype=free_index.dtype)))
    return original(pool, free_index, start_pos=start_pos)


def double_alloc(switch: Switch, original: Original, pool: Any, need_size: int) -> Any:
    """The free list keeps a slot that it hands out."""
    import torch

    result = original(pool, need_size)
    if result is not None and result.numel() and switch.strike(slots=result[:1].tolist()):
        pool.free_pages = torch.cat((result[:1], pool.free_pages))
    return result


def double_alloc_page(switch: Switch, original: Original, pool: Any, *args: Any, **named: Any) -> Any:
    """The free list keeps a page that it hands out for a prefill."""
    import torch

    result = original(pool, *args, **named)
    if result is not None and result.numel() and switch.strike(slots=result[-1:].tolist()):
        pool.free_pages = torch.cat((result[-1:] // pool.page_size, pool.free_pages))
    return result


def rank_order(switch: Switch, original: Original, pool: Any, need_size: int) -> Any:
    """One rank of several turns its free list around, so that it takes other slots than the others."""
    import torch
    from sglang.srt.runtime_context import get_parallel

    if get_parallel().attn_tp_rank == 1 and need_size < pool.free_pages.numel() and switch.strike():
        pool.free_pages = torch.flip(pool.free_pages, (0,))
    return original(pool, need_size)


def reserved_slot(switch: Switch, original: Original, pool: Any, need_size: int) -> Any:
    """The padding slot is handed out instead of a free one."""
    import torch

    result = original(pool, need_size)
    if result is not None and result.numel() and switch.strike(slots=[0]):
        pool.free_pages = torch.cat((result[:1], pool.free_pages))
        result = torch.cat((torch.zeros(1, dtype=result.dtype), result[1:]))
    return result


def early_free(switch: Switch, original: Original, scheduler: Any, batch: Any, result: Any) -> Any:
    """A slot of a running request is given back while a batch that captured it is in flight."""
    for req in scheduler.running_batch.reqs:
        kv = record(req)
        if not req.finished() and kv.kv_committed_len > kv.cache_protected_len + 2:
            slot = switch.slots_of(req)[kv.cache_protected_len + 1].reshape(1)
            if switch.strike(owner=str(req.rid), slots=slot.tolist()):
                scheduler.token_to_kv_pool_allocator.free(slot)
            break
    return original(scheduler, batch, result)


def taken_for_sent(switch: Switch, original: Original, scheduler: Any, *args: Any, **named: Any) -> Any:
    """A transfer that is under way is taken for over, and what the other side reads is given back."""
    from sglang.srt.disaggregation.base import KVPoll

    prefill = import_module(PREFILL)
    poll, groups = (
        prefill.poll_and_all_reduce_attn_cp_tp_group,
        (scheduler.attn_cp_cpu_group, scheduler.attn_tp_cpu_group),
    )
    for req in scheduler.disagg_prefill_inflight_queue:
        sender, own = req.disagg_kv_sender, switch.row(req.kv)[req.kv.cache_protected_len :]
        if own.numel() and poll([sender], *groups) == [KVPoll.Transferring]:
            break
    else:
        return original(scheduler, *args, **named)
    if not switch.strike(owner=str(req.rid), slots=own.tolist()):
        return original(scheduler, *args, **named)
    prefill.poll_and_all_reduce_attn_cp_tp_group = lambda pollers, *groups: [
        KVPoll.Success if each is sender else state for each, state in zip(pollers, poll(pollers, *groups), strict=True)
    ]
    try:
        return original(scheduler, *args, **named)
    finally:
        prefill.poll_and_all_reduce_attn_cp_tp_group = poll
        while poll([sender], *groups) == [KVPoll.Transferring]:
            time.sleep(0.01)


def sent_unwaited(switch: Switch, original: Original, scheduler: Any, req: Any, *args: Any, **named: Any) -> Any:
    """A cached prefix is sent without a wait for the forward that computes it."""
    sender, end = req.disagg_kv_sender, named.get("end_idx")
    if end is not None and getattr(sender, "_early_send_wait_event", None) is not None:
        computed = {slot for batch, _ in scheduler.result_queue for slot in batch.out_cache_loc.tolist()}
        slots = computed.intersection(switch.row(req.kv)[req.start_send_idx : end].tolist())
        if slots and switch.strike(owner=str(req.rid), slots=sorted(slots)):
            sender._early_send_wait_event = None
    return original(scheduler, req, *args, **named)


# -- rows


def stale_prefix(switch: Switch, original: Original, pool: Any, indices: Any, values: Any) -> Any:
    """A matched prefix is not written into its row. (A later chunk writes what is there already: that is no chance.)"""
    if isinstance(indices[1], slice) and indices[1].start == 0 and (indices[1].stop or 0) > 4:
        row = int(indices[0])
        same = bool((pool.req_to_token[indices] == values).all())
        if not same and switch.strike(row=row, length=int(indices[1].stop)):
            return None
    return original(pool, indices, values)


def row_leak(switch: Switch, original: Original, pool: Any, req: Any) -> Any:
    """A request forgets its row instead of giving it back."""
    if switch.strike(owner=str(req.rid), row=int(record(req).req_pool_idx)):
        record(req).req_pool_idx = None
        return None
    return original(pool, req)


def session_row_leak(switch: Switch, original: Original, pool: Any, slot: Any) -> Any:
    """A session that closes forgets its row."""
    if not hasattr(slot, "rid") and switch.strike(row=int(slot.kv.req_pool_idx)):
        slot.kv.req_pool_idx = None
        return None
    return original(pool, slot)


def row_lost(switch: Switch, original: Original, pool: Any, indices: Any) -> Any:
    """The pool forgets the rows that it is given."""
    row = int(indices[0])
    if switch.strike(owner=switch.of_row(row), row=row):
        return None
    return original(pool, indices)


def row_double_free(switch: Switch, original: Original, pool: Any, req: Any) -> Any:
    """A request gives its row back twice."""
    row = record(req).req_pool_idx
    result = original(pool, req)
    if switch.strike(owner=str(req.rid), row=int(row)):
        record(req).req_pool_idx = row
        original(pool, req)
    return result


def row_added_twice(switch: Switch, original: Original, pool: Any, indices: Any) -> Any:
    """The pool puts the rows that it is given into its free list twice."""
    row = int(indices[0])
    if switch.strike(owner=switch.of_row(row), row=row):
        original(pool, indices)
    return original(pool, indices)


def row_freed_early(switch: Switch, original: Original, pool: Any, indices: Any, values: Any) -> Any:
    """A row is given back while its request goes on decoding on it."""
    result = original(pool, indices, values)
    if not isinstance(indices[1], slice):
        row = int(indices[0][0])
        if switch.strike(owner=switch.of_row(row), row=row):
            pool.free(on_row(row))
    return result


def chunk_row_freed(switch: Switch, original: Original, pool: Any, reqs: Any) -> Any:
    """The row of a chunked prefill is given back before its next chunk goes on with it."""
    for req in reqs:
        row = switch.row_of(req)
        if row is not None and switch.strike(owner=str(req.rid), row=row):
            pool.free(on_row(row))
    return original(pool, reqs)


def use_after_free(switch: Switch, original: Original, pool: Any, indices: Any, values: Any) -> Any:
    """The slot of a decode step is given back before the batch that is to use it is launched."""
    result = original(pool, indices, values)
    decodes = not isinstance(indices[1], slice)
    if decodes and switch.strike(owner=switch.of_row(int(indices[0][0])), slots=values[:1].tolist()):
        switch.scheduler.token_to_kv_pool_allocator.free(values[:1].long())
    return result


def alias(switch: Switch, original: Original, pool: Any, indices: Any, values: Any) -> Any:
    """A decode step writes the slot of the second request into the row of the first as well."""
    if not isinstance(indices[1], slice) and values.numel() > 1:
        rows = indices[0][:2].tolist()
        owners = [switch.of_row(int(row)) for row in rows]
        if switch.strike(owners=owners, slots=values[1:2].tolist(), lost=values[:1].tolist()):
            values = values.clone()
            values[0] = values[1]
    return original(pool, indices, values)


def orphan(switch: Switch, original: Original, pool: Any, indices: Any, values: Any) -> Any:
    """The second slot of a prefill is written over the first."""
    result = original(pool, indices, values)
    if isinstance(indices[1], slice) and values.numel() > 4:
        row, begin = int(indices[0]), indices[1].start
        if switch.strike(slots=values[:1].tolist()):
            original(pool, (row, slice(begin, begin + 1)), values[1:2])
    return result


def record_contract(switch: Switch, original: Original, kv: Any) -> Any:
    """A release leaves its record as if it still had KV."""
    if switch.strike(allocated=int(kv.kv_allocated_len)):
        return None
    return original(kv)


# -- speculative decoding


def tail_leak(switch: Switch, original: Original, req: Any, start: int, end: int, tree: Any) -> Any:
    """A release forgets what was taken ahead and not needed."""
    slots = switch.row(req.kv)[-(-start // tree.page_size) * tree.page_size : end].tolist()
    if slots and not req.is_retracted and switch.strike(owner=str(req.rid), slots=slots):
        return None
    return original(req, start, end, tree)


def tail_twice(switch: Switch, original: Original, req: Any, start: int, end: int, tree: Any) -> Any:
    """What was taken ahead and not needed is given back twice."""
    slots = switch.row(req.kv)[-(-start // tree.page_size) * tree.page_size : end].tolist()
    original(req, start, end, tree)
    if slots and switch.strike(owner=str(req.rid), slots=slots):
        original(req, start, end, tree)


def tail_too_long(switch: Switch, original: Original, req: Any, start: int, end: int, tree: Any) -> Any:
    """A release takes a slot that was accepted, and given back already, for one that was not needed."""
    if tree.page_size == 1 and start - 1 >= req.kv.cache_protected_len and start < end:
        slot = switch.row(req.kv)[start - 1 : start].tolist()
        if switch.strike(owner=str(req.rid), slots=slot):
            start -= 1
    return original(req, start, end, tree)


def ahead_alias(
    switch: Switch, original: Original, rows: Any, table: Any, begin: Any, end: Any, slots: Any, size: int
) -> Any:
    """The first slot taken ahead for the second request goes to the first as well."""
    counts = (end - begin).tolist()
    if len(counts) > 1 and counts[0] and counts[1]:
        owners = [switch.of_row(int(row)) for row in rows[:2]]
        other = slots[counts[0] : counts[0] + 1]
        if switch.strike(owners=owners, slots=other.tolist(), lost=slots[:1].tolist()):
            slots = slots.clone()
            slots[0] = other[0]
    return original(rows, table, begin, end, slots, size)


def ahead_lost(
    switch: Switch, original: Original, rows: Any, table: Any, begin: Any, end: Any, slots: Any, size: int
) -> Any:
    """What is taken ahead is not written into the row."""
    if slots.numel() and switch.strike(row=int(rows[0])):
        return None
    return original(rows, table, begin, end, slots, size)


def ahead_freed(switch: Switch, original: Original, tree: Any, pool: Any, **named: Any) -> Any:
    """A slot is given back right after it was taken ahead."""
    req = named["reqs"][0]
    before = req.kv.kv_allocated_len
    result = original(tree, pool, **named)
    if req.kv.kv_allocated_len > before > req.kv.kv_committed_len + 1:  # no step in flight reads it yet
        slot = switch.row(req.kv)[before : before + 1]
        if switch.strike(owner=str(req.rid), slots=slot.tolist()):
            tree.token_to_kv_pool_allocator.free(slot)
    return result


# -- the prefix cache


def lock_leak(switch: Switch, original: Original, tree: Any, lock: Any) -> Any:
    """A release skips its unlock."""
    if lock is not None and switch.strike(node=str(lock.node), owner=switch.acting()):
        return None
    return original(tree, lock)


def lock_underflow(switch: Switch, original: Original, tree: Any, lock: Any) -> Any:
    """What a request has locked is unlocked twice."""
    result = original(tree, lock)
    owner = next((str(req.rid) for req in switch.requests() if req.lock is lock), None)
    if lock is not None and owner and switch.strike(owner=owner, node=str(lock.node)):
        original(tree, lock)
    return result


def evict_locked(switch: Switch, original: Original, tree: Any, *args: Any, **named: Any) -> Any:
    """An eviction takes a slot of a node that a running request has locked."""
    for req in switch.requests():
        if req.lock is not None and req.kv.cache_protected_len > 2 and not req.finished():
            slot = switch.row(req.kv)[req.kv.cache_protected_len - 1].reshape(1)
            if switch.strike(owner=str(req.rid), slots=slot.tolist(), node=str(req.lock.node)):
                tree.token_to_kv_pool_allocator.free(slot)
            break
    return original(tree, *args, **named)


def namespace_mixup(switch: Switch, original: Original, tree: Any, params: Any) -> Any:
    """A request's key domain is dropped when its prefix is looked up."""
    key, req = params.key, params.req
    if req is not None and key.extra_key is not None and switch.strike(owner=str(req.rid), domain=key.extra_key):
        key.extra_key = None
    return original(tree, params)


# -- what attention reads


def lost_write(switch: Switch, original: Original, pool: Any, layer: Any, loc_info: Any, *args: Any) -> Any:
    """A decode step's keys and values are not written into a window layer."""
    slots = getattr(loc_info, "swa_loc", None)
    decodes = slots is not None and slots.numel() == len(switch.scheduler.running_batch.reqs)
    if decodes and pool.layers_mapping[layer.layer_id][1] and switch.strike(slots=slots.tolist()):
        return None
    return original(pool, layer, loc_info, *args)


# -- order, and the engine's totals


def no_barrier(switch: Switch, original: Original, scheduler: Any) -> Any:
    """The barrier after a forward's reads is left out."""
    if not switch.strike():
        original(scheduler)


def count_mismatch(switch: Switch, original: Original, *args: Any, **named: Any) -> Any:
    """The engine counts one slot too many as evictable."""
    pool, available, evictable, *rest = args
    if switch.strike(available=int(available), evictable=int(evictable)):
        evictable += 1
    return original(pool, available, evictable, *rest, **named)


# -- what is no fault, to know that it happened and nothing was said of it


def mixed(switch: Switch, original: Original, scheduler: Any, batch: Any, *args: Any, **named: Any) -> Any:
    """A batch has prefills and decode steps."""
    if batch.forward_mode.is_mixed():
        switch.strike()
    return original(scheduler, batch, *args, **named)


def abort_chunked(switch: Switch, original: Original, scheduler: Any, *args: Any, **named: Any) -> Any:
    """A request is aborted between its chunks, while others are served."""
    chunked = scheduler.chunked_req
    _abort(switch, [chunked] if chunked is not None and len(switch.requests()) > 1 else [])
    return original(scheduler, *args, **named)


def abort_queued(switch: Switch, original: Original, scheduler: Any, *args: Any, **named: Any) -> Any:
    """A request is aborted that has not begun."""
    _abort(switch, [req for req in scheduler.waiting_queue if switch.row_of(req) is None and not req.output_ids])
    return original(scheduler, *args, **named)


def abort_running(switch: Switch, original: Original, scheduler: Any, *args: Any, **named: Any) -> Any:
    """A request is aborted that decodes."""
    running = scheduler.running_batch
    _abort(switch, [req for req in running.reqs if not req.finished() and len(req.output_ids) > 1])
    return original(scheduler, *args, **named)


def _abort(switch: Switch, requests: list[Any]) -> None:
    from sglang.srt.managers.io_struct import AbortReq

    if requests and switch.strike(aborted=str(requests[0].rid)):
        switch.scheduler.abort_request(AbortReq(rid=requests[0].rid))


@dataclass(frozen=True)
class Fault:
    """What a fault wraps, how, and how often it strikes once armed; `below`: a wrapper that can be armed `:inside`."""

    where: str
    act: Callable[..., Any]
    strikes: int = 1
    below: tuple[str, Callable[..., Any]] | None = None

    @property
    def possible(self) -> bool:
        """Has the installed release the places?"""
        return there(self.where) and (self.below is None or there(self.below[0]))


def only_below(where: str, act: Callable[..., Any]) -> Fault:
    """A fault that makes sense between probe and engine only."""
    return Fault(where, act, below=(where, act))


ALWAYS = 1 << 30

PRESENT: dict[str, Fault] = {
    "leak": Fault(f"{BASE_TREE}.free_kv_row", leak, below=(f"{TOKEN}.free", lost_in_free)),
    "leak_page": Fault(f"{BASE_TREE}.free_kv_row", leak, below=(f"{PAGED}._release_page_ids", lost_page)),
    "double_free": Fault(f"{BASE_TREE}.free_kv_row", double_free, below=(f"{TOKEN}.free", added_twice)),
    "double_free_page": Fault(f"{BASE_TREE}.free_kv_row", double_free),
    "page_twice": Fault(f"{PAGED}.free_segment", page_twice),
    "foreign_free": Fault(f"{BASE_TREE}.free_kv_row", foreign_free),
    "invalid_free": Fault(f"{BASE}.free_segment", invalid_free),
    "double_alloc": Fault(f"{TOKEN}.alloc", double_alloc),
    "double_alloc_page": Fault(f"{PAGED}.alloc_extend", double_alloc_page),
    "rank_order": Fault(f"{TOKEN}.alloc", rank_order),
    "reserved_slot": only_below(f"{TOKEN}.alloc", reserved_slot),
    "evict_leak": only_below(f"{TOKEN}.free", lost_in_eviction),
    "evict_twice": only_below(f"{TOKEN}.free", evicted_twice),
    "taken_for_sent": Fault(f"{PREFILLING}.process_disagg_prefill_inflight_queue", taken_for_sent),
    "sent_unwaited": Fault(f"{PREFILLING}._send_kv_chunk", sent_unwaited),
    "early_free": Fault(f"{SCHEDULER}:Scheduler.process_batch_result", early_free),
    "stale_prefix": Fault(f"{ROWS}.write", stale_prefix, below=(f"{ROWS}.write", stale_prefix)),
    "row_leak": Fault(f"{ROWS}.free", row_leak, below=(f"{ROWS}.free_rows", row_lost)),
    "session_row_leak": Fault(f"{ROWS}.free", session_row_leak),
    "row_double_free": Fault(f"{ROWS}.free", row_double_free, below=(f"{ROWS}.free_rows", row_added_twice)),
    "row_freed_early": Fault(f"{ROWS}.write", row_freed_early),
    "chunk_row_freed": Fault(f"{ROWS}.alloc", chunk_row_freed),
    "use_after_free": Fault(f"{ROWS}.write", use_after_free),
    "alias": Fault(f"{ROWS}.write", alias),
    "orphan": Fault(f"{ROWS}.write", orphan),
    "tail_leak": Fault(f"{COMMON}:_release_overallocated_kv_indices", tail_leak),
    "tail_twice": Fault(f"{COMMON}:_release_overallocated_kv_indices", tail_twice),
    "tail_too_long": Fault(f"{COMMON}:_release_overallocated_kv_indices", tail_too_long),
    "ahead_alias": Fault(f"{ALLOCATION}:assign_req_to_token_pool_func", ahead_alias),
    "ahead_lost": only_below(f"{ALLOCATION}:assign_req_to_token_pool_func", ahead_lost),
    "ahead_freed": Fault(f"{EAGLE}:alloc_for_spec_decode", ahead_freed),
    "record_contract": Fault(f"{RECORD}.mark_kv_released", record_contract),
    "lock_leak": Fault(f"{TREE}.unlock", lock_leak),
    "lock_leaks": Fault(f"{TREE}.unlock", lock_leak, strikes=ALWAYS),
    "lock_underflow": Fault(f"{TREE}.unlock", lock_underflow),
    "evict_locked": only_below(f"{TREE}._evict", evict_locked),
    "namespace_mixup": Fault(f"{TREE}.match_prefix", namespace_mixup),
    "lost_write": Fault(f"{WINDOW}.set_kv_buffer", lost_write),
    "no_barrier": Fault(f"{SCHEDULER}:Scheduler._apply_war_barrier", no_barrier, strikes=ALWAYS),
    "count_mismatch": Fault(f"{TOTALS}._check_pool_invariant", count_mismatch),
    "mixed": Fault(f"{SCHEDULER}:Scheduler.process_batch_result", mixed),
    "abort_chunked": Fault(f"{SCHEDULER}:Scheduler.get_next_batch_to_run", abort_chunked),
    "abort_queued": Fault(f"{SCHEDULER}:Scheduler.get_next_batch_to_run", abort_queued),
    "abort_running": Fault(f"{SCHEDULER}:Scheduler.get_next_batch_to_run", abort_running),
}


def register() -> None:
    """SGLang calls this in each of its processes, before the scheduler is made and kvsan puts its probes in."""
    file = os.environ.get(VARIABLE)
    if not file or SCHEDULER not in sys.modules:
        return
    from kvsan_test_earlier_faults import EVICTIONS, earlier

    faults = {name: fault for name, fault in (PRESENT | earlier()).items() if fault.possible}
    begin(Switch(Path(file), faults), EVICTIONS)


def begin(switch: Switch, evictions: tuple[str, ...] = ()) -> None:
    """From here on the scheduler looks at the control file."""
    for where in dict.fromkeys(fault.below[0] for fault in switch.faults.values() if fault.below):
        wrap(where, functools.partial(_inside, switch, where))
    for where in filter(there, evictions):
        wrap(where, functools.partial(_evict, switch))
    wrap(f"{SCHEDULER}:Scheduler.get_next_batch_to_run", functools.partial(_look, switch))
    if there(disaggregated := f"{PREFILLING}.get_next_disagg_prefill_batch_to_run"):
        wrap(disaggregated, functools.partial(_look, switch))
    wrap(f"{SCHEDULER}:Scheduler.process_batch_result", functools.partial(_process, switch))


def _look(switch: Switch, original: Original, scheduler: Any, *args: Any, **named: Any) -> Any:
    switch.look(scheduler)
    return original(scheduler, *args, **named)


def _evict(switch: Switch, original: Original, tree: Any, *args: Any, **named: Any) -> Any:
    switch.evicting = True
    try:
        return original(tree, *args, **named)
    finally:
        switch.evicting = False


def _process(switch: Switch, original: Original, scheduler: Any, batch: Any, *args: Any, **named: Any) -> Any:
    switch.processed = batch
    return original(scheduler, batch, *args, **named)


def _inside(switch: Switch, where: str, original: Original, *args: Any, **named: Any) -> Any:
    """The armed fault, if it was armed to act here."""
    name, _, place = switch.armed.partition(":")
    if place and switch.left:
        below = switch.faults[name].below
        if below is not None and below[0] == where:
            return below[1](switch, original, *args, **named)
    return original(*args, **named)


def there(where: str) -> bool:
    """Is there such a place in the installed release?"""
    module, _, path = where.partition(":")
    *outer, name = path.split(".")
    owner = functools.reduce(lambda owner, part: getattr(owner, part, None), outer, import_module(module))
    return name in getattr(owner, "__dict__", {})


def wrap(where: str, act: Callable[..., Any]) -> Callable[[], None]:
    """Puts `act(original, ...)` in the place of "module:function" or "module:Class.method"; the result undoes it."""
    module, _, path = where.partition(":")
    *outer, name = path.split(".")
    owner: Any = functools.reduce(getattr, outer, import_module(module))
    before = vars(owner)[name]
    original = before.__func__ if isinstance(before, staticmethod) else before

    @functools.wraps(original)
    def call(*args: Any, **named: Any) -> Any:
        return act(original, *args, **named)

    setattr(owner, name, staticmethod(call) if isinstance(before, staticmethod) else call)
    return lambda: setattr(owner, name, before)
