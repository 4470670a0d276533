"""A decode server that prefill servers fill: rows and slots are taken ahead of a request's first step, and its keys and
values arrive while nobody here looks.

A transfer uses its slots from the call that tells the other side where to write until the engine takes the request
over, or gives it up.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from .watch import KV, Watch

Reading = Generator[None, Any, None]


def obstacle(watch: Watch) -> str | None:
    """Why the slots of a decode server cannot be followed."""
    if watch.window is not None or watch.states is not None or watch.host is not None:
        return "window slots, recurrent states and host copies that other servers fill are not followed yet"
    return None


def pre_alloc(watch: Watch, queue: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """`_pre_alloc`: a row and the slots for all that will arrive."""
    result = yield
    if watch.slots and queue.req_to_token_pool is watch.rows and result is not None:
        watch.san.own(KV, watch.ids(result).copy(), owner=watch.owner_of(req))


def announce(
    watch: Watch, queue: Any, decode_req: Any, kv_indices: Any, page_size: int, *args: Any, **kwargs: Any
) -> Reading:
    """`_send_kv_metadata`: from here on the other side may write."""
    if not watch.slots or queue.req_to_token_pool is not watch.rows:
        yield
        return
    slots = np.asarray(kv_indices).reshape(-1).astype(np.int64)
    if slots.size:
        owner = watch.owner_of(decode_req.req)
        watch.san.xfer_begin(KV, slots, xfer=transfer(decode_req), access="write", owner=owner, agent="nic")
        watch.arriving.add(transfer(decode_req))
    yield


def over(watch: Watch, queue: Any, decode_req: Any, *args: Any, **kwargs: Any) -> Reading:
    """`_commit_transfer_to_req` and `_release_request`: it has arrived, or the other side has stopped."""
    name = transfer(decode_req)
    if name in watch.arriving:
        watch.arriving.discard(name)
        watch.san.xfer_end(xfer=name)
    yield


def transfer(decode_req: Any) -> str:
    """What the transfer of a request is called."""
    return f"arrival of {decode_req.req.rid}"
