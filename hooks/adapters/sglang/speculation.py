"""Speculative decoding: slots are taken ahead of what is accepted, and written into rows by a kernel of their own.

A draft model has keys and values of its own, but the same rows, and the same slots for them. What a request took and
did not need is given back when it ends, by the same calls as the rest.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import numpy as np

from .batches import batch_name
from .rows import KernelWrite, Run, tell_run, tell_unread, writer_of
from .watch import KV, Doing, Slots, Watch

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
    doing = watch.current("ahead")
    if not watch.slots or req_to_token is not watch.rows.req_to_token:
        yield
        return
    if doing is None:
        watch.give_up("slots are taken ahead where kvsan does not see for which cells")
        yield
        return
    kernel = KernelWrite(watch, doing.runs, writer_of, tell_run)
    yield
    kernel.over([out_cache_loc])


def reserve(watch: Watch, tree: Any, pool: Any, **named: Any) -> Reading:
    """`alloc_for_spec_decode`: the lengths on the host say which cells are written."""
    rows = [int(req.kv.req_pool_idx) for req in named["reqs"]]
    begins, ends = named["cur_kv_lens_cpu"].tolist(), named["nxt_kv_lens_cpu"].tolist()
    runs = [Run(row, begin, begin, end) for row, begin, end in zip(rows, begins, ends, strict=True) if end > begin]
    with watch.within(Doing("ahead", runs=runs)):
        yield
    if watch.slots or pool is not watch.rows:
        return
    for run in runs:
        tell_unread(watch, run.row, run.begin, run.end)


def move(watch: Watch, batch: Any, accept_index: Any, num_correct_drafts: Any, allocator: Any) -> Reading:
    """`move_accept_tokens_to_target_kvcache`: of a tree of drafts, the accepted ones go to the front of their request's
    slots. Accepted drafts of a chain stand there already."""
    yield
    if watch.slots and watch.san.data:
        taken = [watch.keep(each) for each in (batch.out_cache_loc, accept_index, num_correct_drafts)]
        watch.then(partial(_moved, watch, batch_name(batch), watch.stream()), *taken)


def _moved(watch: Watch, name: str, agent: str, window: Slots, accepted: Slots, correct: Slots) -> None:
    source = window[accepted[accepted >= 0]]
    counts = correct + 1
    target = np.concatenate([each[:count] for each, count in zip(window.reshape(len(counts), -1), counts, strict=True)])
    moved = source != target
    if moved.any():
        watch.san.read(KV, source[moved], batch=name, agent=agent)
        watch.san.write(KV, target[moved], batch=name, agent=agent)


RUN = ("NGRAM", "STANDALONE", "EAGLE", "EAGLE3")
"""The algorithms of which a server was seen to stay silent."""
ALIKE = ("FROZEN_KV_MTP",)
"""Algorithms that take, judge and give back by EAGLE's own functions, of which no server was run. Others reserve in a
way of their own, or judge another number of drafts for each request."""


def obstacle(algorithm: Any) -> str | None:
    """Why the slots of a server that drafts by this algorithm cannot be followed."""
    return None if algorithm.name in (*RUN, *ALIKE) else f"drafts by {algorithm.name} are not followed yet"
