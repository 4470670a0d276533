"""The events of a trace, one class each: what a sanitizer sees of one engine process.

Every class mirrors one operation of the trace format. Events are written once and only read afterwards; they are not
frozen because a frozen dataclass costs three times as much to construct, and that cost is paid on scheduler threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Union

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int64]
"""Slot ids, shape [n], int64."""

SlotsLike = Union[int, Sequence[int], "npt.NDArray[np.integer[Any]]"]
"""Slot ids on the host: one, a sequence, or an integer array of shape [n]."""


@dataclass(slots=True, eq=False, kw_only=True)
class Event:
    """Fields that every event has.

    `at` is the event's index (-1: not taken yet), `time_ns` nanoseconds of a monotonic clock, `stack` a stack id of the
    depot, `site` a code position given as text (traces), `extra` the fields of a trace that the format does not know.
    """

    op: ClassVar[str]
    hook: ClassVar[str]

    agent: str = "host"
    via: str | None = None
    owner: str | None = None
    at: int = -1
    time_ns: int | None = None
    stack: int = 0
    site: str | None = None
    extra: dict[str, Any] | None = None


POOL_KINDS = ("row", "kv", "state", "host", "staging")


@dataclass(slots=True, eq=False, kw_only=True)
class Pool(Event):
    """An address space of slots 0..size-1. kind: row, kv, state, host or staging; page: slots given out together."""

    op = "pool"
    pool: str
    kind: str
    size: int
    page: int = 1
    reserved: Slots
    init: bool | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Reset(Event):
    """Everything in the pool is free again."""

    op = "reset"
    pool: str


@dataclass(slots=True, eq=False, kw_only=True)
class Alloc(Event):
    """Takes the slots, and with them their pages, for the owner."""

    op = "alloc"
    pool: str
    slots: Slots


@dataclass(slots=True, eq=False, kw_only=True)
class Own(Event):
    """Names the owner of slots allocated without one."""

    op = "own"
    pool: str
    slots: Slots


@dataclass(slots=True, eq=False, kw_only=True)
class Give(Event):
    """Hands slots over to another owner; tenancy and history stay."""

    op = "give"
    pool: str
    slots: Slots
    to: str


@dataclass(slots=True, eq=False, kw_only=True)
class Reuse(Event):
    """The owner continues on slots that it says it still holds."""

    op = "reuse"
    pool: str
    slots: Slots


@dataclass(slots=True, eq=False, kw_only=True)
class Free(Event):
    """Gives slots back, named directly or by the keys of a secondary map; pending inside a group until its flush."""

    op = "free"
    pool: str
    slots: Slots | None = None
    map: str | None = None
    keys: Slots | None = None
    group: str | None = None
    dedup: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Flush(Event):
    """Carries out what was freed in the group."""

    op = "flush"
    group: str


@dataclass(slots=True, eq=False, kw_only=True)
class CacheInsert(Event):
    """The slots pass from the owner to the prefix cache's node."""

    op = "insert"
    pool: str
    slots: Slots
    node: str
    parent: str | None = None
    key: str | None = None
    ns: str | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Attach(Event):
    """The owner becomes a sharer of a node's slots."""

    op = "attach"
    pool: str
    slots: Slots
    node: str


@dataclass(slots=True, eq=False, kw_only=True)
class Evict(Event):
    """The cache gives back what a node holds in every pool, or some slots of one pool."""

    op = "evict"
    node: str | None = None
    pool: str | None = None
    slots: Slots | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Split(Event):
    """The child takes slots of the node over and stands between the node and its parent."""

    op = "split"
    node: str
    child: str
    slots: Slots
    pool: str | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Match(Event):
    """A lookup found the node, in the key domain `ns`."""

    op = "match"
    node: str
    ns: str | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Lock(Event):
    """Protects the node and its ancestors from eviction."""

    op = "lock"
    node: str


@dataclass(slots=True, eq=False, kw_only=True)
class Unlock(Event):
    """Takes one lock of the node back."""

    op = "unlock"
    node: str


@dataclass(slots=True, eq=False, kw_only=True)
class RowWrite(Event):
    """Writes slots of the pool `into` to the cells row[pos : pos + len(slots)]."""

    op = "row_write"
    pool: str
    row: int
    pos: int
    into: str
    slots: Slots


@dataclass(slots=True, eq=False, kw_only=True)
class Capture(Event):
    """A batch takes the cells row[start:upto] (trace field `from`), which is what it will read."""

    op = "capture"
    batch: str
    pool: str
    row: int
    upto: int
    start: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Launch(Event):
    """The batch runs on the event's agent and reads the slots that it captured."""

    op = "launch"
    batch: str


@dataclass(slots=True, eq=False, kw_only=True)
class Done(Event):
    """The host has seen the batch finish."""

    op = "done"
    batch: str


@dataclass(slots=True, eq=False, kw_only=True)
class Read(Event):
    """Reads the slots; on a row pool, whole rows."""

    op = "read"
    pool: str
    slots: Slots
    batch: str | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Write(Event):
    """Writes the slots; on a row pool, whole rows."""

    op = "write"
    pool: str
    slots: Slots
    batch: str | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class XferBegin(Event):
    """A copy that someone else carries out starts to use the slots; access: read or write."""

    op = "xfer_begin"
    xfer: str
    access: str
    pool: str
    slots: Slots


@dataclass(slots=True, eq=False, kw_only=True)
class XferEnd(Event):
    """The transfer is over, and the calling host thread knows it."""

    op = "xfer_end"
    xfer: str


@dataclass(slots=True, eq=False, kw_only=True)
class Record(Event):
    """The agent records the event."""

    op = "record"
    event: str


@dataclass(slots=True, eq=False, kw_only=True)
class Wait(Event):
    """The agent's next work comes after the event's latest record."""

    op = "wait"
    event: str


@dataclass(slots=True, eq=False, kw_only=True)
class Query(Event):
    """The host asked whether the event is complete."""

    op = "query"
    event: str
    ready: bool


@dataclass(slots=True, eq=False, kw_only=True)
class Sync(Event):
    """The host waited for an agent, or for `event:NAME`."""

    op = "sync"
    on: str


@dataclass(slots=True, eq=False, kw_only=True)
class MapSet(Event):
    """Secondary map entries: key(s) to value(s), such as full-attention slot to window slot."""

    op = "map_set"
    map: str
    key: Slots
    val: Slots


@dataclass(slots=True, eq=False, kw_only=True)
class MapClear(Event):
    """Removes entries of a secondary map."""

    op = "map_clear"
    map: str
    key: Slots


@dataclass(slots=True, eq=False, kw_only=True)
class ReqStart(Event):
    """The request enters the engine."""

    op = "req_start"


@dataclass(slots=True, eq=False, kw_only=True)
class ReqFinish(Event):
    """The request is over; its releases follow."""

    op = "req_finish"


@dataclass(slots=True, eq=False, kw_only=True)
class ReqAbort(Event):
    """The request is over by abort; its releases follow."""

    op = "req_abort"


@dataclass(slots=True, eq=False, kw_only=True)
class ReqRetract(Event):
    """The engine takes back what a live request holds, to run it again later."""

    op = "req_retract"


@dataclass(slots=True, eq=False, kw_only=True)
class ReqEnd(Event):
    """From here on the owner holds nothing."""

    op = "req_end"


@dataclass(slots=True, eq=False, kw_only=True)
class KvRecord(Event):
    """What the engine's own record says the owner holds; lengths in tokens."""

    op = "kv_record"
    row: int | None
    allocated: int
    committed: int
    protected: int
    evicted: int = 0
    pool: str | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Count(Event):
    """The engine's own totals of one pool, in slots."""

    op = "count"
    pool: str
    available: int | None = None
    evictable: int | None = None
    protected: int | None = None
    total: int | None = None
    session: int | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Step(Event):
    """One scheduler iteration ends."""

    op = "step"


@dataclass(slots=True, eq=False, kw_only=True)
class Idle(Event):
    """By the engine's own account nothing is queued, running, retracted or in transfer."""

    op = "idle"


EVENT_CLASSES: tuple[type[Event], ...] = (
    Pool, Reset, Alloc, Own, Give, Reuse, Free, Flush, CacheInsert, Attach, Evict, Split, Match, Lock, Unlock,
    RowWrite, Capture, Launch, Done, Read, Write, XferBegin, XferEnd, Record, Wait, Query, Sync, MapSet, MapClear,
    ReqStart, ReqFinish, ReqAbort, ReqRetract, ReqEnd, KvRecord, Count, Step, Idle,
)  # fmt: skip

EVENT_BY_OP: dict[str, type[Event]] = {cls.op: cls for cls in EVENT_CLASSES}

OWNERSHIP_OPS = frozenset({"alloc", "free", "insert", "evict"})
"""The operations whose sequence must agree on every rank of a group."""

NEVER_CITED = frozenset({"record", "wait", "query", "sync", "step", "flush", "done", "map_set", "map_clear"})
"""What no finding shows: these events are at fault in nothing, and nothing collides with them."""

# Two operations carry the names that engines use for them; the others are kvsan_<op>.
_HOOK_NAMES = {"row_write": "kvsan_write_cache_indices", "insert": "kvsan_cache_insert"}
for _cls in EVENT_CLASSES:
    _cls.hook = _HOOK_NAMES.get(_cls.op, f"kvsan_{_cls.op}")

COMMON_FIELDS = frozenset(f.name for f in fields(Event))


def own_fields(cls: type[Event]) -> dict[str, bool]:
    """The fields of one operation beside the common ones; the value says whether the field is required."""
    return {
        f.name: f.default is MISSING and f.default_factory is MISSING
        for f in fields(cls)
        if f.name not in COMMON_FIELDS
    }


def as_slots(value: SlotsLike) -> Slots:
    """Slot ids as an int64 array of shape [n]; a single id becomes shape [1]. The array is the event's own copy.

    Raises TypeError for what holds no integers.
    """
    if isinstance(value, (int, np.integer)):
        return np.array([value], dtype=np.int64)
    slots = np.array(value)
    if slots.dtype != np.int64:
        if slots.size and slots.dtype.kind not in "iu":
            raise TypeError(f"slots must be integers, not {slots.dtype}")
        slots = slots.astype(np.int64)
    return slots.reshape(-1)
