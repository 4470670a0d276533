"""Profiling: what a prefill costs by its size, so that the stages of a pipeline can be given chunks of equal cost."""

from __future__ import annotations

import random
import time

from . import bugs
from .config import EngineConfig
from .holdings import Holdings
from .probe import Probe
from .request import Request, SamplingParams
from .scheduler import Scheduler


def profile(scheduler: Scheduler, holdings: Holdings, config: EngineConfig, probe: Probe) -> dict[int, float]:
    """Times prefills of growing sizes, one after the other, in an engine that does nothing else.

    Returns seconds by number of tokens. Each prefill gives back what it used; its chunks but the last stay cached.
    """
    longest = config.profile_chunks * config.chunked_prefill_size
    seconds: dict[int, float] = {}
    for number in range(1, config.profile_sizes + 1):
        size = max(1, longest * number // config.profile_sizes)
        prompt = random.Random(number).choices(range(256), k=size)
        request = Request(f"profile-{size}", prompt, SamplingParams(1))
        probe.req_start(owner=request.rid)
        begin = time.perf_counter()
        scheduler.prefill_alone(request)
        seconds[size] = time.perf_counter() - begin
        probe.req_finish(owner=request.rid)
        if config.bug == bugs.PROFILING_BY_HAND:
            _release_by_hand(holdings, request)
        else:
            holdings.release(request)
        probe.req_end(owner=request.rid)
    return seconds


def _release_by_hand(holdings: Holdings, request: Request) -> None:
    """As good as a release while nothing of the request stands in the cache, and it has no states."""
    record = request.kv
    holdings.give_row(request)
    holdings.kv.give_back(record.slots[record.protected :], request.rid)
    record.slots = []
    record.committed = 0
    holdings.tell_record(request)
