"""Readers of the lives of requests. A request's end is when it is over and no launched batch computes for it any more:
the loop launches one decode step too many, whose slot is given back with that step's results."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .. import requests as present
from ..watch import Doing
from .tree import publication
from .watch import OlderWatch

Reading = Generator[None, Any, None]


def queued(watch: OlderWatch, scheduler: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """`_add_request_to_queue`: a request enters, or is there again after a retraction; or it is turned away."""
    rid = str(req.rid)
    if rid not in watch.live:
        watch.begin(rid)
        watch.san.req_start(owner=rid)
    yield
    queue = scheduler.waiting_queue
    if not queue or queue[-1] is not req:
        _over(watch, req, aborted=True)
        end(watch, req)


def release_kv_cache(watch: OlderWatch, req: Any, tree: Any, *args: Any, **kwargs: Any) -> Reading:
    """`release_kv_cache(req, tree)`: a finished, aborted or retracted request gives back what it holds."""
    if tree is not watch.tree:
        yield
        return
    _over(watch, req)
    with watch.within(Doing("release", owner=str(req.rid))):
        yield
    _released(watch, req)


def finish(watch: OlderWatch, tree: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """`cache_finished_req` in 0.5.4, which is both release and publication."""
    if tree is not watch.tree:
        yield
        return
    _over(watch, req)
    with watch.within(Doing("release", owner=str(req.rid))), watch.within(publication(req)):
        yield
    _released(watch, req)


def _released(watch: OlderWatch, req: Any) -> None:
    if req.finished_reason is None:  # retracted: it will match anew
        present.end_shares(watch, str(req.rid))


def _over(watch: OlderWatch, req: Any, *, aborted: bool = False) -> None:
    """Tells once of a request that it is over, if it is."""
    rid = str(req.rid)
    if (req.finished_reason is not None or aborted) and rid not in watch.over and rid in watch.live:
        watch.over.add(rid)
        aborted = aborted or type(req.finished_reason).__name__ == "FINISH_ABORT"
        (watch.san.req_abort if aborted else watch.san.req_finish)(owner=rid)


def end(watch: OlderWatch, req: Any) -> None:
    """Ends a request of which is told that it is over, unless a batch still computes for it."""
    rid = str(req.rid)
    if rid in watch.over and not watch.flying[rid]:
        watch.over.discard(rid)
        present.end(watch, rid)


def end_finished(watch: OlderWatch, reqs: tuple[Any, ...]) -> None:
    """The results for these are taken in. Who is over and was not released has been forgotten."""
    for req in reqs:
        _over(watch, req)
        end(watch, req)


def retract(watch: OlderWatch, batch: Any, idx: int, *args: Any, **kwargs: Any) -> Reading:
    """`release_req(index)`: the engine takes back what a live request holds, to run it again later."""
    req = batch.reqs[idx]
    if req.finished_reason is None:
        watch.san.req_retract(owner=str(req.rid))
    yield


def abort(watch: OlderWatch, scheduler: Any, *args: Any, **kwargs: Any) -> Reading:
    """`abort_request`: requests in the queue end at once, running ones with their next step."""
    before = list(scheduler.waiting_queue)
    yield
    left = {id(req) for req in scheduler.waiting_queue}
    for req in before:
        if id(req) not in left:
            _over(watch, req, aborted=True)
            end(watch, req)
