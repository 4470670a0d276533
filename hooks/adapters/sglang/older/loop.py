"""Readers of the scheduler's loop: what a launched batch reads, when its results are taken in, and when all is idle."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

from ..watch import KV, ROWS, Doing
from .requests import end_finished
from .watch import OlderWatch, forward_name

Reading = Generator[None, Any, None]


def run_batch(watch: OlderWatch, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Reading:
    """A batch is launched; what it captures is told when its forward is issued (`forward`)."""
    if scheduler is not watch.scheduler:
        yield
        return
    watch.name_streams()
    watch.launched = False
    with watch.within(Doing("run", batch=batch)):
        result = yield
        if not watch.launched:
            _launch(watch, batch)  # a worker that issues its forward in a way of its own
    watch.take_off(batch.reqs, result)


def forward(watch: OlderWatch, worker: Any, *args: Any, **kwargs: Any) -> Reading:
    """`forward_batch_generation`: from here on the batch reads its requests' rows, on the current stream."""
    doing = watch.current("run")
    if doing is not None and not watch.launched:
        _launch(watch, doing.batch)
    yield


def _launch(watch: OlderWatch, batch: Any) -> None:
    watch.launched = True
    watch.launched_as = name = forward_name(watch.scheduler.forward_ct)
    if not batch.reqs or batch.seq_lens_cpu is None:
        return
    agent = watch.stream()
    for req, length in zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True):
        row, owner = int(req.req_pool_idx), str(req.rid)
        watch.san.capture(ROWS, batch=name, row=row, upto=int(length), owner=owner, agent=agent)
    watch.san.launch(batch=name, agent=agent)
    if watch.san.data and batch.out_cache_loc is not None:
        watch.then(partial(watch.san.write, KV, batch=name, agent=agent), watch.take(batch.out_cache_loc))


def process(watch: OlderWatch, scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> Reading:
    """The results of a batch are taken in. With overlap it is the wait for their copy that says the batch is done; only
    where there is none to wait for does the processing itself say it."""
    flight = watch.land(result)
    if flight is None:
        yield
        return
    waits = type(getattr(result, "copy_done", None)).__name__ == "Event"
    if not waits:
        watch.san.done(batch=flight.name)
    yield
    if waits:
        watch.san.done(batch=flight.name)
    end_finished(watch, flight.reqs)


def results(watch: OlderWatch, scheduler: Any, *args: Any, **kwargs: Any) -> Reading:
    """One of the loops over a batch's requests; see `OlderWatch.actor`."""
    with watch.within(Doing("results")):
        yield


def idle(watch: OlderWatch, scheduler: Any, *args: Any, **kwargs: Any) -> Reading:
    """`self_check_during_idle`, later `on_idle`: there is no batch to run, and the engine adds its totals up; where
    something waits for memory, that is not idleness."""
    busy = scheduler.waiting_queue or scheduler.running_batch.reqs or scheduler.chunked_req or watch.flights
    if scheduler is watch.scheduler and not busy and watch.san.told != watch.told_at_idle:
        watch.san.idle()
        watch.san.count(ROWS, available=len(watch.rows.free_slots), total=int(watch.rows.size))
        if watch.slots:
            tree = watch.tree
            watch.san.count(
                KV,
                available=int(watch.kv.available_size()),
                evictable=int(tree.evictable_size()),
                protected=int(tree.protected_size()),
                total=int(watch.kv.size),
            )
        watch.check()
        watch.told_at_idle = watch.san.told
    yield
