"""The operations of a trace as methods: what an engine calls. Arguments are named as the fields of the trace format."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from kvsan import events, several
from kvsan.events import Event, SlotsLike, as_slots


def _fields(**named: object) -> dict[str, object] | None:
    """Fields beside the format's own, without those that are None; None if none is left."""
    return {name: value for name, value in named.items() if value is not None} or None


class Operations:
    """One method for each operation. `agent` is who performs it, `via` the host thread that issues it for another
    agent, `owner` who holds or acts."""

    __slots__ = ()

    def _emit(self, event: Event) -> None:
        raise NotImplementedError

    def _refuse(self, op: str, error: Exception) -> None:
        raise NotImplementedError

    def pool(
        self,
        pool: str,
        *,
        kind: str,
        size: int,
        page: int = 1,
        reserved: SlotsLike = (),
        init: bool | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """An address space of slots 0..size-1. kind: row, kv, state, host or staging; page: slots given out
        together."""
        try:
            event = events.Pool(
                pool=pool, kind=kind, size=size, page=page, reserved=as_slots(reserved), init=init, agent=agent, via=via
            )
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("pool", error)
        else:
            self._emit(event)

    def reset(self, pool: str, *, agent: str = "host", via: str | None = None) -> None:
        """Everything in the pool is free again."""
        self._emit(events.Reset(pool=pool, agent=agent, via=via))

    def alloc(
        self, pool: str, slots: SlotsLike, *, owner: str | None = None, agent: str = "host", via: str | None = None
    ) -> None:
        """Takes the slots, and with them their pages, for the owner."""
        try:
            event = events.Alloc(pool=pool, slots=as_slots(slots), owner=owner, agent=agent, via=via)
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("alloc", error)
        else:
            self._emit(event)

    def own(
        self, pool: str, slots: SlotsLike, *, owner: str | None = None, agent: str = "host", via: str | None = None
    ) -> None:
        """Names the owner of slots allocated without one."""
        try:
            event = events.Own(pool=pool, slots=as_slots(slots), owner=owner, agent=agent, via=via)
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("own", error)
        else:
            self._emit(event)

    def own_each(
        self,
        pool: str,
        slots: Sequence[int],
        *,
        owners: Sequence[str | None],
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """As `own` of each slot with the owner at its place, at a fraction of the cost."""
        try:
            event = several.Owns(pool=pool, slots=_integers(slots, owners), owners=_names(owners), agent=agent, via=via)
        except (TypeError, ValueError) as error:
            self._refuse("own", error)
        else:
            if event.owners:
                self._emit(event)

    def give(
        self,
        pool: str,
        slots: SlotsLike,
        *,
        to: str,
        owner: str | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """Hands slots over to another owner; tenancy and history stay."""
        try:
            event = events.Give(pool=pool, slots=as_slots(slots), to=to, owner=owner, agent=agent, via=via)
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("give", error)
        else:
            self._emit(event)

    def reuse(
        self, pool: str, slots: SlotsLike, *, owner: str | None = None, agent: str = "host", via: str | None = None
    ) -> None:
        """The owner continues on slots that it says it still holds."""
        try:
            event = events.Reuse(pool=pool, slots=as_slots(slots), owner=owner, agent=agent, via=via)
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("reuse", error)
        else:
            self._emit(event)

    def free(
        self,
        pool: str,
        slots: SlotsLike | None = None,
        *,
        map: str | None = None,
        keys: SlotsLike | None = None,
        group: str | None = None,
        dedup: bool = False,
        batch: str | None = None,
        spent: bool = False,
        owner: str | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """Gives slots back, named directly or by the keys of a secondary map; pending inside a group until its flush.

        `batch` names the batch whose result is being processed. `spent`: of these rows, what batches in flight still
        read is for results that the engine throws away, so that a later write to the rows need not wait for them.
        """
        try:
            if slots is None and (map is None or keys is None):
                raise ValueError("a free names slots, or the keys of a map")
            event = events.Free(
                pool=pool,
                slots=as_slots(slots) if slots is not None else None,
                map=map,
                keys=as_slots(keys) if keys is not None else None,
                group=group,
                dedup=dedup,
                owner=owner,
                agent=agent,
                via=via,
                extra=_fields(batch=batch, spent=spent or None),
            )
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("free", error)
        else:
            self._emit(event)

    def flush(self, *, group: str, agent: str = "host", via: str | None = None) -> None:
        """Carries out what was freed in the group."""
        self._emit(events.Flush(group=group, agent=agent, via=via))

    def insert(
        self,
        pool: str,
        slots: SlotsLike,
        *,
        node: str,
        parent: str | None = None,
        key: str | None = None,
        ns: str | None = None,
        owner: str | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """The slots pass from the owner to the prefix cache's node."""
        try:
            event = events.CacheInsert(
                pool=pool,
                slots=as_slots(slots),
                node=node,
                parent=parent,
                key=key,
                ns=ns,
                owner=owner,
                agent=agent,
                via=via,
            )
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("insert", error)
        else:
            self._emit(event)

    def attach(
        self,
        pool: str,
        slots: SlotsLike,
        *,
        node: str,
        owner: str | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """The owner becomes a sharer of a node's slots."""
        try:
            event = events.Attach(pool=pool, slots=as_slots(slots), node=node, owner=owner, agent=agent, via=via)
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("attach", error)
        else:
            self._emit(event)

    def evict(
        self,
        pool: str | None = None,
        slots: SlotsLike | None = None,
        *,
        node: str | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """The cache gives back what a node holds in every pool, or some slots of one pool."""
        try:
            if node is None and (pool is None or slots is None):
                raise ValueError("an evict names a node, or slots of a pool")
            event = events.Evict(
                pool=pool, slots=as_slots(slots) if slots is not None else None, node=node, agent=agent, via=via
            )
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("evict", error)
        else:
            self._emit(event)

    def split(
        self,
        *,
        node: str,
        child: str,
        slots: SlotsLike,
        pool: str | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """The child takes slots of the node over and stands between the node and its parent."""
        try:
            event = events.Split(node=node, child=child, slots=as_slots(slots), pool=pool, agent=agent, via=via)
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("split", error)
        else:
            self._emit(event)

    def match(
        self, *, node: str, ns: str | None = None, owner: str | None = None, agent: str = "host", via: str | None = None
    ) -> None:
        """A lookup found the node, in the key domain `ns`."""
        self._emit(events.Match(node=node, ns=ns, owner=owner, agent=agent, via=via))

    def lock(self, *, node: str, owner: str | None = None, agent: str = "host", via: str | None = None) -> None:
        """Protects the node and its ancestors from eviction."""
        self._emit(events.Lock(node=node, owner=owner, agent=agent, via=via))

    def unlock(self, *, node: str, owner: str | None = None, agent: str = "host", via: str | None = None) -> None:
        """Takes one lock of the node back."""
        self._emit(events.Unlock(node=node, owner=owner, agent=agent, via=via))

    def row_write(
        self,
        pool: str,
        *,
        row: int,
        pos: int,
        into: str,
        slots: SlotsLike,
        batch: str | None = None,
        same: bool = False,
        owner: str | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """Writes slots of the pool `into` to the cells row[pos : pos + len(slots)]; `batch` is the batch that it
        prepares. `same`: memory has these slots in these cells already, so that no reader can tell before from after;
        the write is then no access that a race could be with."""
        try:
            event = events.RowWrite(
                pool=pool,
                row=index(row),
                pos=index(pos),
                into=into,
                slots=as_slots(slots),
                extra=_fields(batch=batch, same=same or None),
                owner=owner,
                agent=agent,
                via=via,
            )
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("row_write", error)
        else:
            self._emit(event)

    def row_write_each(
        self,
        pool: str,
        *,
        rows: Sequence[int],
        positions: Sequence[int],
        into: str,
        slots: Sequence[int],
        owners: Sequence[str | None],
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """As `row_write` of one slot into one cell of each row, at a fraction of the cost."""
        try:
            event = several.RowWrites(
                pool=pool,
                rows=_integers(rows, owners),
                positions=_integers(positions, owners),
                into=into,
                slots=_integers(slots, owners),
                owners=_names(owners),
                agent=agent,
                via=via,
            )
        except (TypeError, ValueError) as error:
            self._refuse("row_write", error)
        else:
            if event.owners:
                self._emit(event)

    def capture_each(
        self,
        pool: str,
        *,
        rows: Sequence[int],
        uptos: Sequence[int],
        batch: str,
        owners: Sequence[str | None],
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """As `capture` of the cells [0, upto) of each row, at a fraction of the cost."""
        try:
            event = several.Captures(
                pool=pool,
                rows=_integers(rows, owners),
                uptos=_integers(uptos, owners),
                batch=batch,
                owners=_names(owners),
                agent=agent,
                via=via,
            )
        except (TypeError, ValueError) as error:
            self._refuse("capture", error)
        else:
            if event.owners:
                self._emit(event)

    def capture(
        self,
        pool: str,
        *,
        row: int,
        upto: int,
        batch: str,
        start: int = 0,
        owner: str | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """A batch takes the cells row[start:upto] (trace field `from`), which is what it will read."""
        try:
            event = events.Capture(
                pool=pool,
                row=index(row),
                upto=index(upto),
                batch=batch,
                start=index(start),
                owner=owner,
                agent=agent,
                via=via,
            )
        except TypeError as error:
            self._refuse("capture", error)
        else:
            self._emit(event)

    def launch(self, *, batch: str, owner: str | None = None, agent: str = "host", via: str | None = None) -> None:
        """The batch runs on the event's agent and reads the slots that it captured."""
        self._emit(events.Launch(batch=batch, owner=owner, agent=agent, via=via))

    def done(self, *, batch: str, agent: str = "host", via: str | None = None) -> None:
        """The host has seen the batch finish."""
        self._emit(events.Done(batch=batch, agent=agent, via=via))

    def read(
        self,
        pool: str,
        slots: SlotsLike,
        *,
        batch: str | None = None,
        note: str | None = None,
        owner: str | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """Reads the slots; on a row pool, whole rows. A finding at this event repeats `note`."""
        try:
            event = events.Read(
                pool=pool,
                slots=as_slots(slots),
                batch=batch,
                extra=_fields(note=note),
                owner=owner,
                agent=agent,
                via=via,
            )
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("read", error)
        else:
            self._emit(event)

    def write(
        self,
        pool: str,
        slots: SlotsLike,
        *,
        batch: str | None = None,
        owner: str | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """Writes the slots; on a row pool, whole rows."""
        try:
            event = events.Write(pool=pool, slots=as_slots(slots), batch=batch, owner=owner, agent=agent, via=via)
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("write", error)
        else:
            self._emit(event)

    def xfer_begin(
        self,
        pool: str,
        slots: SlotsLike,
        *,
        xfer: str,
        access: str,
        owner: str | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """A copy that someone else carries out starts to use the slots; access: read or write."""
        try:
            if access not in ("read", "write"):
                raise ValueError(f"access must be read or write, not {access!r}")
            event = events.XferBegin(
                pool=pool, slots=as_slots(slots), xfer=xfer, access=access, owner=owner, agent=agent, via=via
            )
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("xfer_begin", error)
        else:
            self._emit(event)

    def xfer_end(self, *, xfer: str, agent: str = "host", via: str | None = None) -> None:
        """The transfer is over, and the calling host thread knows it."""
        self._emit(events.XferEnd(xfer=xfer, agent=agent, via=via))

    def record(self, *, event: str, agent: str = "host", via: str | None = None) -> None:
        """The agent records the event."""
        self._emit(events.Record(event=event, agent=agent, via=via))

    def wait(self, *, event: str, agent: str = "host", via: str | None = None) -> None:
        """The agent's next work comes after the event's latest record."""
        self._emit(events.Wait(event=event, agent=agent, via=via))

    def query(self, *, event: str, ready: bool, agent: str = "host", via: str | None = None) -> None:
        """The host asked whether the event is complete."""
        self._emit(events.Query(event=event, ready=ready, agent=agent, via=via))

    def sync(self, *, on: str, agent: str = "host", via: str | None = None) -> None:
        """The host waited for an agent, or for `event:NAME`."""
        if isinstance(on, str):
            self._emit(events.Sync(on=on, agent=agent, via=via))
        else:
            self._refuse("sync", TypeError(f"an agent's name or event:NAME, not {on!r}"))

    def map_set(self, *, map: str, key: SlotsLike, val: SlotsLike, agent: str = "host", via: str | None = None) -> None:
        """Secondary map entries: key(s) to value(s), such as full-attention slot to window slot."""
        try:
            event = events.MapSet(map=map, key=as_slots(key), val=as_slots(val), agent=agent, via=via)
            if event.key.size != event.val.size:
                raise ValueError(f"{event.key.size} keys and {event.val.size} values")
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("map_set", error)
        else:
            self._emit(event)

    def map_clear(self, *, map: str, key: SlotsLike, agent: str = "host", via: str | None = None) -> None:
        """Removes entries of a secondary map."""
        try:
            event = events.MapClear(map=map, key=as_slots(key), agent=agent, via=via)
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse("map_clear", error)
        else:
            self._emit(event)

    def req_start(self, *, owner: str, agent: str = "host", via: str | None = None) -> None:
        """The request enters the engine."""
        self._emit(events.ReqStart(owner=owner, agent=agent, via=via))

    def req_finish(self, *, owner: str, agent: str = "host", via: str | None = None) -> None:
        """The request is over; its releases follow."""
        self._emit(events.ReqFinish(owner=owner, agent=agent, via=via))

    def req_abort(self, *, owner: str, agent: str = "host", via: str | None = None) -> None:
        """The request is over by abort; its releases follow."""
        self._emit(events.ReqAbort(owner=owner, agent=agent, via=via))

    def req_retract(self, *, owner: str, agent: str = "host", via: str | None = None) -> None:
        """The engine takes back what a live request holds, to run it again later."""
        self._emit(events.ReqRetract(owner=owner, agent=agent, via=via))

    def req_end(self, *, owner: str, agent: str = "host", via: str | None = None) -> None:
        """From here on the owner holds nothing."""
        self._emit(events.ReqEnd(owner=owner, agent=agent, via=via))

    def kv_record(
        self,
        *,
        row: int | None,
        allocated: int,
        committed: int,
        protected: int,
        owner: str,
        evicted: int = 0,
        pool: str | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """What the engine's own record says the owner holds; lengths in tokens."""
        try:
            event = events.KvRecord(
                row=_maybe_index(row),
                allocated=index(allocated),
                committed=index(committed),
                protected=index(protected),
                evicted=index(evicted),
                pool=pool,
                owner=owner,
                agent=agent,
                via=via,
            )
        except TypeError as error:
            self._refuse("kv_record", error)
        else:
            self._emit(event)

    def count(
        self,
        pool: str,
        *,
        available: int | None = None,
        evictable: int | None = None,
        protected: int | None = None,
        total: int | None = None,
        session: int | None = None,
        agent: str = "host",
        via: str | None = None,
    ) -> None:
        """The engine's own totals of one pool, in slots."""
        try:
            event = events.Count(
                pool=pool,
                available=_maybe_index(available),
                evictable=_maybe_index(evictable),
                protected=_maybe_index(protected),
                total=_maybe_index(total),
                session=_maybe_index(session),
                agent=agent,
                via=via,
            )
        except TypeError as error:
            self._refuse("count", error)
        else:
            self._emit(event)

    def step(self, *, agent: str = "host", via: str | None = None) -> None:
        """One scheduler iteration ends."""
        self._emit(events.Step(agent=agent, via=via))

    def idle(self, *, agent: str = "host", via: str | None = None) -> None:
        """By the engine's own account nothing is queued, running, retracted or in transfer."""
        self._emit(events.Idle(agent=agent, via=via))


def _maybe_index(value: int | None) -> int | None:
    return index(value) if value is not None else None


def _integers(values: Sequence[int], owners: Sequence[str | None]) -> tuple[int, ...]:
    """One integer for each owner."""
    if len(values) != len(owners):
        raise ValueError(f"{len(values)} numbers and {len(owners)} owners")
    return tuple(map(index, values))


def _names(owners: Sequence[str | None]) -> tuple[str | None, ...]:
    for owner in owners:
        if owner is not None and not isinstance(owner, str):
            raise TypeError(f"an owner's name must be a string, not {owner!r}")
    return tuple(owners)
