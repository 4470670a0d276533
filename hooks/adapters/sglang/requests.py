"""Readers of the lives of requests and sessions: where they start, end, are aborted, retracted, and hand over."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

from . import states
from .rows import tell_record
from .tree import node_name
from .watch import KV, ROWS, STATES, Doing, Slots, Watch

Reading = Generator[None, Any, None]


def queued(watch: Watch, scheduler: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """A request enters the queue, if it is let in; a retracted one is there again."""
    rid, retracted = str(req.rid), bool(args[0] if args else kwargs.get("is_retracted", False))
    if not retracted:
        watch.begin(rid)
        watch.san.req_start(owner=rid)
    yield
    if req.finished() and not watch.record(req).holds_kv and rid in watch.live:  # turned away at the door
        watch.san.req_abort(owner=rid)
        end(watch, rid)


def release(watch: Watch, req: Any, tree_cache: Any, *args: Any, **kwargs: Any) -> Reading:
    """`release_kv_cache`: a finished, aborted or retracted request gives back what it holds; a session may keep it."""
    if tree_cache is not watch.tree:
        yield
        return
    rid, owner, kv = str(req.rid), watch.owner_of(req), watch.record(req)
    over = bool(req.finished()) or rid in watch.aborted
    if over:
        (watch.san.req_abort if _aborted(req) or rid in watch.aborted else watch.san.req_finish)(owner=rid)
    with watch.within(Doing("release", owner=owner)):
        yield
    owner = watch.owner_of_record.get(id(kv), owner)  # up to 0.5.21 a session takes over what its first turn releases
    kept = owner != rid and session_slot(watch, owner) is not None
    if not kept:
        tell_record(watch, kv, owner)
        if not over:
            end_shares(watch, owner)
    if over:
        end(watch, rid)
        if owner != rid and not kept and owner in watch.live:
            end(watch, owner)


def _aborted(req: Any) -> bool:
    return type(req.finished_reason).__name__ == "FINISH_ABORT"


def end(watch: Watch, owner: str) -> None:
    """From here on the owner holds nothing."""
    watch.aborted.discard(owner)
    watch.beaming.discard(owner)
    watch.end(owner)
    watch.san.req_end(owner=owner)


def end_shares(watch: Watch, owner: str) -> None:
    """The owner no longer uses the tree's slots; they stay the tree's."""
    watch.then(partial(_end_shares, watch, owner))


def _end_shares(watch: Watch, owner: str) -> None:
    for slots in watch.shared.pop(owner, ()):
        watch.san.free(KV, slots, owner=owner)


def retract(watch: Watch, *args: Any, **kwargs: Any) -> Reading:
    """`release_req(req=)`: the engine takes back what a live request holds, to run it again later."""
    req = kwargs.get("req")
    if req is not None and not req.finished():
        watch.san.req_retract(owner=str(req.rid))
    yield


def aborted_outside(watch: Watch, scheduler: Any, abort_req: Any, req: Any) -> Reading:
    """`send_abort_output`: a request ends that is in no batch."""
    yield
    rid = str(req.rid)
    if rid in watch.live:
        watch.san.req_abort(owner=rid)
        if getattr(watch.record(req), "holds_mamba", False):  # taken when it was matched; `release` follows
            watch.aborted.add(rid)
        elif not watch.record(req).holds_kv:
            end(watch, rid)


def sent(watch: Watch, sender: Any, output: Any, recv_obj: Any = None) -> Reading:
    """`send_output(output, req)`: how 0.5.22 says that a request ends that is in no batch; and much else."""
    if type(output).__name__ == "AbortReq" and recv_obj is not None:
        yield from aborted_outside(watch, None, output, recv_obj)
    else:
        yield


# -- sessions


def session_name(session_id: Any) -> str:
    """What a session is called as an owner."""
    return f"session:{session_id}"


def session_slot(watch: Watch, owner: str) -> Any:
    """The record that a session keeps, if it has one."""
    session = getattr(watch.tree, "session", None)
    return session.slots.get(owner.removeprefix("session:")) if session is not None else None


def session_take(watch: Watch, sessions: Any, req: Any) -> Reading:
    """A session takes over the record, the row, the slots and the lock of its first turn."""
    known = set(map(id, sessions.slots.values()))
    lock = req.lock
    yield
    if req.session is None:
        return
    slot = sessions.slots.get(req.session.session_id)
    if slot is None or id(slot) in known or sessions is not watch.tree.session:
        return
    hand_over(watch, str(req.rid), session_name(req.session.session_id), req.kv, lock.node if lock else None)


def hand_over(watch: Watch, rid: str, owner: str, kv: Any, node: Any) -> None:
    """A request's record, row, slots, states and its lock on a node (None: it has none) are its session's now."""
    watch.begin(owner)
    watch.san.req_start(owner=owner)
    watch.owner_of_record[id(kv)] = owner
    watch.owner_of_row[int(kv.req_pool_idx)] = owner
    watch.san.give(ROWS, int(kv.req_pool_idx), owner=rid, to=owner)
    if watch.slots and kv.kv_allocated_len:
        cells = watch.rows.req_to_token[kv.req_pool_idx, : int(kv.kv_allocated_len)]
        watch.then(partial(_hand_over, watch, rid, owner), watch.take(cells))
    held = states.held(watch, kv)
    if held is not None:
        watch.then(partial(watch.san.give, STATES, owner=rid, to=owner), held)
    if node is not None:
        name = node_name(node)
        watch.san.unlock(node=name, owner=rid)
        watch.san.lock(node=name, owner=owner)


def _hand_over(watch: Watch, rid: str, owner: str, slots: Slots) -> None:
    watch.san.give(KV, slots, owner=rid, to=owner)
    if rid in watch.shared:
        watch.shared[owner] = watch.shared.pop(rid)


def session_release(watch: Watch, sessions: Any, session_id: Any) -> Reading:
    """A session ends and gives back what it keeps."""
    name, slot = session_name(session_id), sessions.slots.get(session_id)
    if sessions is not watch.tree.session or slot is None:
        yield
        return
    owner = watch.holder(slot) or name  # up to 0.5.21 a first turn that is aborted is released as if it were a session
    with watch.within(Doing("session", owner=owner)):
        yield
    if owner == name:
        end_shares(watch, owner)
        end(watch, owner)


def free_kv_row(watch: Watch, tree: Any, kv: Any, *args: Any, **kwargs: Any) -> Reading:
    """`free_kv_row(kv, ranges)`: pieces of a row's own slots; whose row it is says whose they are."""
    with watch.within(Doing("row", owner=watch.owner_of_record.get(id(kv)))):
        yield
