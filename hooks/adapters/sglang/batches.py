"""Readers of batches, streams and the scheduler's loop: what is read when, and in which order the code asks for it."""

from __future__ import annotations

import threading
from collections.abc import Generator
from functools import partial
from typing import Any

from . import host
from .rows import tell_record
from .watch import KV, ROWS, STATES, WINDOW, Doing, Watch

Reading = Generator[None, Any, None]


def iteration(watch: Watch, scheduler: Any, *args: Any, **kwargs: Any) -> Reading:
    """`get_next_batch_to_run`, or what the loop of a prefill or decode server has in its place: the iteration before is
    over, if anything happened in it. Rows are written before the first batch is launched, and the loop's stream may be
    drawn when it starts."""
    watch.name_streams()
    watch.san.settle()
    if watch.san.told not in (watch.told_at_step, watch.told_at_idle):
        watch.san.step()
        watch.told_at_step = watch.san.told
    yield


def loop(watch: Watch, scheduler: Any, *args: Any, **kwargs: Any) -> Reading:
    """`run_event_loop`: when it fails the server's main process kills the scheduler, maybe before its interpreter ends,
    and what led to that is in what came last."""
    try:
        yield
    finally:
        watch.san.settle_at_end()


def run_batch(watch: Watch, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Reading:
    """A batch is launched; what it captures is told when its forward is issued (`forward`)."""
    if scheduler is not watch.scheduler:
        yield
        return
    watch.name_streams()
    watch.launched = False
    with watch.within(Doing("run", batch=batch)):
        yield
        if not watch.launched:
            _launch(watch, batch)  # a worker that issues its forward in a way of its own


def forward(watch: Watch, worker: Any, batch: Any = None, *args: Any, **kwargs: Any) -> Reading:
    """`forward_batch_generation`: from here on the batch reads its requests' rows, on the current stream."""
    doing = watch.current("run")
    if doing is not None and not watch.launched and doing.batch is not None:
        _launch(watch, doing.batch)
    yield


def _launch(watch: Watch, batch: Any) -> None:
    watch.launched = True
    if not batch.reqs or batch.req_pool_indices_cpu is None:
        return
    name, agent = batch_name(batch), watch.stream()
    verifies = batch.forward_mode.is_target_verify()
    drafts = int(batch.spec_info.draft_token_num) if verifies and watch.ahead else 0  # behind what each row has
    told = [
        (int(row), int(length) + drafts, str(req.rid))
        for req, row, length in zip(batch.reqs, batch.req_pool_indices_cpu.tolist(), _lengths(batch), strict=False)
        if watch.owner_of(req) not in watch.beaming
    ]
    if told:
        captured, uptos, owners = zip(*told, strict=True)
        watch.san.capture_each(ROWS, batch=name, rows=captured, uptos=uptos, owners=owners, agent=agent)
    watch.san.launch(batch=name, agent=agent)
    if batch.forward_mode.is_extend() and not verifies:
        # after the captures, which say more about a row that lacks something
        for req in batch.reqs:
            tell_record(watch, watch.record(req), watch.owner_of(req))
    if watch.san.data and batch.out_cache_loc is not None:
        watch.then(partial(watch.san.write, KV, batch=name, agent=agent), watch.take(batch.out_cache_loc))


def _lengths(batch: Any) -> list[int]:
    """How much each row has. Where only the device knows how many drafts were accepted last, what is known here."""
    if batch.seq_lens_cpu is None:
        return [req.kv.kv_committed_len for req in batch.reqs]
    lengths: list[int] = batch.seq_lens_cpu.tolist()
    return lengths


def batch_name(batch: Any) -> str:
    """What a batch is called: its kind and the number of its forward. While a decode step judges drafts, its kind is
    another one."""
    kind = "decode" if batch.forward_mode.is_target_verify() else batch.forward_mode.name.lower()
    return f"{kind} {batch.forward_iter}"


def process(watch: Watch, scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> Reading:
    """The results of a batch are taken in. With overlap it is the wait for their copy that says the batch is done; only
    where there is none to wait for does the processing itself say it."""
    name = batch_name(batch)
    waits = type(getattr(result, "copy_done", None)).__name__ == "Event"
    if not waits:
        watch.san.done(batch=name)
    yield
    if waits:
        watch.san.done(batch=name)


# -- streams and events


class _Order(threading.local):
    """Is the thread in a call whose order is told already? CUDA's `wait_stream` is made of a record and a wait, its
    `wait_event` of another wait."""

    told = False


_order = _Order()


def _told_already() -> Reading:
    _order.told = True
    try:
        yield
    finally:
        _order.told = False


def wait_stream(watch: Watch, stream: Any, other: Any) -> Reading:
    """`stream.wait_stream(other)`."""
    before, after = watch.stream_name(other), watch.stream_name(stream)
    event = f"{before} for {after}"
    watch.san.record(event=event, agent=before)
    watch.san.wait(event=event, agent=after)
    yield from _told_already()


def wait_event(watch: Watch, stream: Any, event: Any) -> Reading:
    """`stream.wait_event(event)`."""
    if _order.told:
        yield
        return
    watch.san.wait(event=event_name(event), agent=watch.stream_name(stream))
    yield from _told_already()


def event_wait(watch: Watch, event: Any, stream: Any = None) -> Reading:
    """`event.wait(stream=None)`: the current stream waits, where none is named."""
    if not _order.told:
        watch.san.wait(event=event_name(event), agent=watch.stream() if stream is None else watch.stream_name(stream))
    yield


def barrier(watch: Watch, scheduler: Any) -> Reading:
    """`_apply_war_barrier`: where it is on, the scheduler's stream waits until the forward has read the shared tables.
    The mark it waits for may be recorded inside a device graph, where no probe sees it; so its meaning is told."""
    yield
    if scheduler is watch.scheduler and scheduler._war_barrier_enabled:
        watch.san.record(event="shared reads", agent=watch.stream_name(scheduler.forward_stream))
        watch.san.wait(event="shared reads", agent=watch.stream_name(scheduler.schedule_stream))


def record_event(watch: Watch, event: Any, stream: Any = None) -> Reading:
    """`event.record(stream=None)`: on the current stream, where none is named."""
    if not _order.told:
        watch.san.record(event=event_name(event), agent=watch.stream() if stream is None else watch.stream_name(stream))
    yield


def synchronize_event(watch: Watch, event: Any) -> Reading:
    """`event.synchronize()`."""
    yield
    if threading.get_ident() == watch.thread:
        watch.san.sync(on=f"event:{event_name(event)}")
        host.ended(watch, event)


def event_name(event: Any) -> str:
    """What an event is called."""
    return f"event {id(event):x}"


# -- idle, and the engine's own totals


def on_idle(watch: Watch, scheduler: Any) -> Reading:
    """There is no batch to run; whether the scheduler is idle is its own test's to say (`fully_idle`)."""
    with watch.within(Doing("idle")):
        yield


def fully_idle(watch: Watch, scheduler: Any, *args: Any, **kwargs: Any) -> Reading:
    """The scheduler's own test, asked by its own housekeeping."""
    result = yield
    asked = result and watch.doing and watch.doing[-1].what == "idle" and watch.san.told != watch.told_at_idle
    if asked and not (watch.host is not None and watch.host.busy):
        watch.san.idle()
        watch.san.count(ROWS, available=len(watch.rows.free_slots), total=int(watch.rows.req_to_token.shape[0]) - 1)
        watch.check()
        watch.told_at_idle = watch.san.told


COUNTED = {"full": KV, "swa": WINDOW, "mamba": STATES}
"""The pools that the engine's own check adds up, by its names."""


def totals(
    watch: Watch,
    pool_name: str,
    available: int,
    evictable: int,
    protected: int,
    session_held: int,
    total: int,
    uncached: int = 0,
) -> Reading:
    """`_check_pool_invariant`: the numbers that the engine's own check adds up."""
    yield
    claimed = (available, evictable, protected, session_held, total)
    quiet = watch.san.told == watch.told_at_idle
    pool = COUNTED.get(pool_name)
    here = {KV: True, WINDOW: watch.window is not None, STATES: watch.states is not None}
    if pool is None or not watch.slots or not here[pool]:
        return
    if not (quiet and claimed == watch.claimed.get(pool)):
        watch.claimed[pool] = claimed
        watch.san.count(
            pool,
            available=int(available),
            evictable=int(evictable),
            protected=int(protected),
            session=int(session_held),
            total=int(total),
        )
        if quiet:  # an idle loop that comes by here again has nothing new to tell
            watch.told_at_idle = watch.san.told
