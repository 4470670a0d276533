"""The two sides of a disaggregated service. A decode server takes rows and slots ahead of a request's first step, and
keys and values arrive while nobody here looks. What a prefill server has computed is read while nobody here looks.

A transfer uses its slots from the call that tells the other side where to write until the engine takes the request
over, or gives it up; on a prefill server from the call that hands them to a request's sender until the engine has seen
that sender conclude, or aborts it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import requests
from .batches import event_name
from .watch import KV, WINDOW, Slots, Watch

Reading = Generator[None, Any, None]

NIC = "nic"
"""The agent of transfers between servers."""


def obstacle(watch: Watch, role: str) -> str | None:
    """Why the slots of a server that has this role in a disaggregated service cannot be followed."""
    if watch.states is not None:
        return "recurrent states of a disaggregated service are not followed yet"
    if role == "decode" and (watch.window is not None or watch.host is not None):
        return "window slots and host copies that other servers fill are not followed yet"
    if not watch.scheduler.spec_algorithm.is_none():
        return "drafts in a disaggregated service are not followed yet"
    if getattr(watch.scheduler.server_args, "enable_pd_role_switch", False):
        return "a server that may change between prefill and decode is not followed yet"
    return None


# -- a decode server


def pre_alloc(watch: Watch, queue: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """`_pre_alloc`: a row and the slots for all that will arrive."""
    result = yield
    if watch.slots and queue.req_to_token_pool is watch.rows and result is not None:
        watch.then(partial(watch.san.own, KV, owner=watch.owner_of(req)), watch.take(result))


def announce(
    watch: Watch, queue: Any, decode_req: Any, kv_indices: Any, page_size: int, *args: Any, **kwargs: Any
) -> Reading:
    """`_send_kv_metadata`: from here on the other side may write."""
    if not watch.slots or queue.req_to_token_pool is not watch.rows:
        yield
        return
    if kv_indices.numel():
        name, owner = transfer(decode_req), watch.owner_of(decode_req.req)
        begun = partial(watch.san.xfer_begin, KV, xfer=name, access="write", owner=owner, agent=NIC)
        watch.then(begun, watch.take(kv_indices))
        watch.arriving.add(name)
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


# -- a prefill server

CONCLUDED = (0, 4)
"""`KVPoll.Failed` and `KVPoll.Success`."""
NO_WAIT = "NixlKVSender"
"""The sender whose transfers do not wait for the event that an early send is given."""


def send(watch: Watch, scheduler: Any, req: Any, last_chunk: bool = False, end_idx: int | None = None) -> Reading:
    """`_send_kv_chunk`: from here on the other side, or a thread for it, reads the next piece of the request's row.
    With the last piece goes the window's. What is cached may be sent while the forward that computes it is on its way;
    such a send waits for an event."""
    if not watch.slots or scheduler.req_to_token_pool is not watch.rows:
        yield
        return
    sender, begin = req.disagg_kv_sender, int(req.start_send_idx)
    early = getattr(sender, "_early_send_wait_event", None)
    yield
    end = int(req.start_send_idx)
    if early is not None and type(sender).__name__ != NO_WAIT:
        watch.san.wait(event=event_name(early), agent=NIC)
    if req.kv.req_pool_idx is None:
        return
    row = watch.rows.req_to_token[req.kv.req_pool_idx]
    _, sent = watch.sending.setdefault(id(sender), (sender, Sent(f"send of {req.rid}", watch.owner_of(req))))
    if end > begin:
        watch.then(partial(_begin, watch, sent, KV), watch.take(row[begin:end]))
    if watch.window is not None and last_chunk:
        first = max(int(req.disagg_decode_prefix_len), end - int(scheduler.sliding_window_size))
        watch.then(partial(_begin, watch, sent, WINDOW), watch.take(row[first // watch.page * watch.page : end]))


@dataclass(slots=True)
class Sent:
    """A transfer to another server; `begun` once it has slots."""

    name: str
    owner: str
    begun: bool = False


def _begin(watch: Watch, sent: Sent, pool: str, slots: Slots) -> None:
    if pool == WINDOW:
        slots = watch.window.mapped(slots)
    if slots.size:
        watch.san.xfer_begin(pool, slots, xfer=sent.name, access="read", owner=sent.owner, agent=NIC)
        sent.begun = True


def polled(watch: Watch, pollers: Any, *args: Any, **kwargs: Any) -> Reading:
    """`poll_and_all_reduce_attn_cp_tp_group`: how the engine learns, on all ranks alike, that a transfer is over."""
    states = yield
    if watch.sending:
        for sender, state in zip(pollers, states, strict=True):
            if state in CONCLUDED:
                _sent(watch, sender)


def stopped(watch: Watch, sender: Any) -> Reading:
    """`abort` of a sender: the engine gives the transfer up, and what still arrives is thrown away."""
    yield
    _sent(watch, sender)


def _sent(watch: Watch, sender: Any) -> None:
    _, sent = watch.sending.pop(id(sender), (None, None))
    if sent is not None:
        watch.then(partial(_end, watch, sent))


def _end(watch: Watch, sent: Sent) -> None:
    if sent.begun:
        watch.san.xfer_end(xfer=sent.name)


def requeue(watch: Watch, scheduler: Any, req: Any) -> Reading:
    """`optimistic_release_and_requeue`: a request that was computed before anybody could take it will be computed
    again."""
    watch.san.req_retract(owner=str(req.rid))
    yield


def refused(watch: Watch, scheduler: Any, req: Any) -> Reading:
    """`handle_bootstrap_failure` and `release_aborted_prefill_waiting_req`: a request ends that is in no batch, and
    gives back what an earlier attempt left it before it says so."""
    rid = str(req.rid)
    watch.aborted.add(rid)
    yield
    watch.aborted.discard(rid)
    if rid in watch.live:
        watch.san.req_abort(owner=rid)
        requests.end(watch, rid)
