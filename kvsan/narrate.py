"""Puts a violation into words and evidence: the two accesses, where the slot comes from, its neighbourhood, why, what
to do."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .encoding import HOLDER_MASK, STACK_BITS, STACK_MASK, generation, holder
from .events import Event, Slots
from .findings import Access, Finding, Frame, Held, Joined, SlotMap, frame_of
from .shadow import PoolShadow
from .state import State
from .verdicts import Violation

Frames = Callable[[int], tuple[Frame, ...]]

SHOWN_SLOTS = 4096  # slots kept in one finding
NEIGHBOURHOOD = 24  # slots of the map on either side
HISTORY = 8  # transitions shown

WORDS = {
    "alloc": "allocated", "own": "named", "give": "given", "free": "freed", "insert": "inserted", "attach": "shared",
    "evict": "evicted", "split": "split off", "reuse": "reused", "row_write": "write", "xfer_begin": "transfer",
    "capture": "read", "launch": "read", "req_end": "end",
}  # fmt: skip

BLAMES_ORIGIN = frozenset(
    [
        "double_free",
        "page_double_free",
        "use_after_free",
        "double_alloc",
        "invalid_free",
        "free_not_owner",
        "stale_row",
        "alias",
        "orphan",
    ]
)
"""Kinds whose other side is what made the slot what it is: its last alloc or free."""

TRANSITIONS = frozenset({"alloc", "own", "give", "free", "insert", "attach", "evict", "split"})


def no_frames(stack: int) -> tuple[Frame, ...]:
    """Frames where there are none: traces carry sites."""
    return ()


def with_joined(finding: Finding, joined: Iterable[Joined]) -> Finding:
    """The finding with the violations that joined it."""
    return dataclasses.replace(finding, joined=tuple(joined))


class Narrator:
    """Makes findings from violations.

    In a server (`brief`) only the first findings of a token are told in full: reports count the others, and the search
    for a slot's past goes through all the events that are kept.
    """

    IN_FULL = 4
    KEPT_TOKENS = 4096

    def __init__(self, frames: Frames, *, brief: bool = False) -> None:
        self._frames = frames
        self._brief = brief
        self._told: Counter[str] = Counter()

    def _in_full(self, token: str) -> bool:
        if not self._brief:
            return True
        if len(self._told) < self.KEPT_TOKENS or token in self._told:
            self._told[token] += 1
        return self._told[token] <= self.IN_FULL

    def __call__(self, state: State, event: Event, violation: Violation) -> Finding:
        """The finding of a violation at this event."""
        pool = violation.pool
        slots = tuple(violation.slots[:SHOWN_SLOTS].tolist())
        first = slots[0] if slots else None
        inside = pool is not None and first is not None and 0 <= first < pool.size
        word = int(pool.tenancy[first]) if pool is not None and inside else 0
        present = self.access(state, event, state.history.step, pool, slots)
        if violation.kind == "race":
            present = dataclasses.replace(present, what=_doing(event))
        elif violation.kind == "leak" and violation.detail.get("ended") == "abort":
            present = dataclasses.replace(present, note="by abort")
        earlier = self._earlier(state, violation, first if inside else None)
        owner = violation.owner or event.owner
        token = _token(violation, present, earlier, event)
        full = self._in_full(token)
        located = pool is not None and first is not None
        return Finding(
            kind=violation.kind,
            at=event.at,
            object=_object(violation, pool, first, event),
            pool=pool.name if pool is not None else None,
            slots=slots,
            owner=owner,
            holder=state.holders.name(holder(word)) if word & HOLDER_MASK else None,
            node=violation.node,
            present=present,
            earlier=earlier,
            provenance=self._provenance(state, pool, first, event.at) if full and pool and first is not None else (),
            generation=generation(word) or None,
            held=self._held(state, violation) if full and violation.kind == "leak" else (),
            slot_map=_slot_map(state, pool, slots) if full and pool is not None and located else None,
            why=_why(event, violation, owner, earlier),
            missing=_missing(present, earlier) if violation.kind == "race" else "",
            token=token,
            extra={
                **{key: str(value) for key, value in violation.detail.items() if key not in ("earlier", "ended")},
                **({"note": str(event.extra["note"])} if event.extra and "note" in event.extra else {}),
            },
        )

    def access(
        self, state: State, event: Event, step: int, pool: PoolShadow | None = None, slots: tuple[int, ...] = ()
    ) -> Access:
        """An event as findings cite it: its own pool and slots, and of those the given ones where they are of its
        pool."""
        fields: Any = event
        own_pool: str | None = getattr(event, "pool", None)
        cells = None
        if event.op in ("row_write", "capture"):
            slots = (fields.row,)
            cells = (
                (fields.pos, fields.pos + int(fields.slots.size))
                if event.op == "row_write"
                else (fields.start, fields.upto)
            )
        elif own_pool is None:
            own_pool = pool.name if pool is not None else None
        elif pool is None or pool.name != own_pool:
            named = getattr(event, "slots", None)
            slots = tuple(named[:SHOWN_SLOTS].tolist()) if named is not None else ()
        batch = getattr(event, "batch", None) or (event.extra or {}).get("batch")
        return Access(
            what=WORDS.get(event.op, event.op),
            at=event.at,
            agent=event.agent,
            owner=event.owner,
            pool=own_pool,
            slots=slots,
            cells=cells,
            batch=str(batch) if batch is not None else None,
            node=getattr(event, "node", None),
            step=step if step or event.time_ns is not None else None,
            time_ns=event.time_ns,
            stack=self._frames(event.stack),
            site=event.site,
            note=f"to {fields.to}" if event.op == "give" else "",
        )

    def _earlier(self, state: State, violation: Violation, slot: int | None) -> Access | None:
        """The event that the present one collides with; where the rule names none, the slot's last alloc or free."""
        pool, at = violation.pool, violation.earlier
        slots = (slot,) if slot is not None else ()
        stack = 0
        if at is None:
            if violation.kind not in BLAMES_ORIGIN or pool is None or slot is None or not pool.origin[slot]:
                return None
            at, stack = _origin(int(pool.origin[slot]))
        what = violation.detail.get("earlier", "")
        found = state.history.find(at)
        if found is None:
            agent = state.clocks.names[violation.earlier_agent] if violation.earlier_agent is not None else "host"
            name = pool.name if pool is not None else None
            return Access(
                what=what or ("last alloc or free" if stack else "access"), at=at, agent=agent, pool=name, slots=slots,
                stack=self._frames(stack), note="older than the events kept",
            )  # fmt: skip
        event, step = found
        access = self.access(state, event, step, pool, slots)
        if what:
            access = dataclasses.replace(access, what=what)
        batch = state.batches.find(access.batch) if access.batch is not None else None
        if batch is not None and batch.captures and batch.outstanding(state.clocks):
            access = dataclasses.replace(access, note="in flight" if batch.launches else "not launched yet")
        return access

    def _provenance(self, state: State, pool: PoolShadow, slot: int, present: int) -> tuple[Access, ...]:
        """The slot's last transitions, oldest first, as far as they are kept."""
        found: list[Access] = []
        page = slot // pool.page
        for event, step in state.history.backwards(TRANSITIONS):
            if event.at == present or getattr(event, "pool", None) != pool.name:
                continue
            slots = getattr(event, "slots", None)
            if slots is None or not np.count_nonzero(slots // pool.page == page):
                continue
            access = self.access(state, event, step, pool, (slot,))
            if event.op == "free" and event.owner is not None:
                owner = state.holders.find(event.owner)
                if owner is not None and owner.over_at < event.at and owner.live:
                    access = dataclasses.replace(access, note="not finished")
            found.append(access)
            if len(found) == HISTORY:
                break
        if not any(access.what == "allocated" for access in found) and 0 <= slot < pool.size:
            at, stack = _origin(int(pool.origin[slot]))
            if stack and all(access.at != at for access in found):
                found.append(
                    Access(
                        what="last alloc or free", at=at, pool=pool.name, slots=(slot,), stack=self._frames(stack),
                        note="older than the events kept",
                    )
                )  # fmt: skip
        return tuple(reversed(found))

    def _held(self, state: State, violation: Violation) -> tuple[Held, ...]:
        """What leaks, by pool and allocation."""
        result = []
        for pool, slots in violation.places():
            origins = pool.origin[slots]
            for word in np.unique(origins).tolist():
                some = slots[origins == word]
                at, stack = _origin(word)
                found = state.history.find(at)
                shown = tuple(some[:SHOWN_SLOTS].tolist())
                if found is not None:
                    allocated = self.access(state, found[0], found[1], pool, shown[:1])
                else:
                    allocated = Access(
                        what="allocated", at=at, pool=pool.name, slots=shown[:1], stack=self._frames(stack)
                    )
                result.append(Held(pool.name, shown, int(some.size), pool.size, allocated, _through(state, pool, some)))
        return tuple(result)


def _origin(word: int) -> tuple[int, int]:
    """Event and stack of a reference word."""
    return word >> STACK_BITS, word & STACK_MASK


def _through(state: State, pool: PoolShadow, slots: Slots) -> str:
    """The rows through which leaked slots are held; a search, for reports only."""
    if pool.cells is None or not np.count_nonzero(pool.cells[slots]):
        return ""
    rows = [
        row.number
        for table in state.tables.values()
        for row in table.all()
        if row.into is pool and np.count_nonzero(pool.among(slots, row.slots[row.live(0, row.length)]))
    ]
    return f"row {rows[0]}" if len(rows) == 1 else f"rows {', '.join(map(str, rows[:8]))}" if rows else ""


def _object(violation: Violation, pool: PoolShadow | None, slot: int | None, event: Event) -> str:
    if violation.kind in ("lock_leak", "lock_underflow", "namespace_mixup") or (violation.node and slot is None):
        return f"node:{violation.node}"
    if violation.kind == "record_contract":
        return f"owner:{violation.owner}"
    if pool is not None and slot is not None:
        if violation.kind == "page_double_free":
            return f"{pool.name}:page{slot // pool.page}"
        return f"{pool.name}:{slot}"
    return pool.name if pool is not None else f"owner:{violation.owner or event.owner}"


def _site(access: Access | None) -> str:
    if access is None:
        return "?"
    frame = access.stack[0] if access.stack else frame_of(access.site or "")  # one token here and for the trace
    if frame is not None:
        module = frame.file.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".py")
        return f"{module}.{frame.function.rsplit('.', 1)[-1]}"
    return access.site or f"{access.agent}.{access.what}"


def _token(violation: Violation, present: Access, earlier: Access | None, event: Event) -> str:
    """Equal for findings of one kind at one pair of sites."""
    parts = [violation.kind, _site(present)]
    if earlier is not None:
        parts.append(_site(earlier))
    elif violation.pool is not None:
        parts.append(violation.pool.name)
    if not present.stack and present.site is None:  # a trace without sites: the object has to tell them apart
        first = int(violation.slots[0]) if violation.slots.size else None
        parts.append(_object(violation, violation.pool, first, event))
    return ":".join(parts)


def _doing(event: Event) -> str:
    if event.op == "xfer_begin":
        return str(getattr(event, "access", "read"))
    return "write" if event.op in ("row_write", "write") else "read"


def _slot_map(state: State, pool: PoolShadow, slots: tuple[int, ...]) -> SlotMap | None:
    """The letters around the first slot; a map says who is next to it at a glance."""
    if not slots or not 0 <= slots[0] < pool.size:
        return None
    first = max(0, min(slots[0] - NEIGHBOURHOOD, pool.size - 2 * NEIGHBOURHOOD - 1))
    last = min(pool.size, first + 2 * NEIGHBOURHOOD + 1)
    letters = list(pool.states(first, last))
    for capture in state.batches.readers(pool):
        if capture.batch.outstanding(state.clocks):
            read = [capture.row.number] if capture.table is pool else []
            if capture.into is pool:
                read += capture.slots.tolist()
            for slot in read:
                if first <= slot < last and letters[slot - first] != "#":
                    letters[slot - first] = "r"
    for slot in slots:
        if first <= slot < last:
            letters[slot - first] = "!"
    return SlotMap(pool.name, first, "".join(letters))


def _missing(present: Access, earlier: Access | None) -> str:
    """Which order would have made a race none."""
    if earlier is None:
        return ""
    if earlier.agent == present.agent:
        return ""
    return (
        f"nothing makes {present.agent} wait for {earlier.agent}: between event {earlier.at} and event {present.at} "
        f"there is no record on {earlier.agent} that {present.agent}, or the host thread issuing its work, waits for"
    )


def _why(event: Event, violation: Violation, owner: str | None, earlier: Access | None) -> str:
    """A sentence or two about this case; empty where only the kind's general explanation would be repeated."""
    kind, detail = violation.kind, violation.detail
    if kind == "race" and earlier is not None:
        who = f'"{owner}"' if owner else "somebody unknown"
        other = f'"{earlier.owner}"' if earlier.owner else "somebody unknown"
        batch = f" (batch {earlier.batch})" if earlier.batch else ""
        return (
            f"{who} {'writes' if _doing(event) == 'write' else 'reads'} what {other}{batch} may still be "
            f"{'reading' if detail.get('earlier') == 'read' else 'writing'}. Whether tokens go wrong depends on "
            f"timing; the fault does not."
        )
    if kind == "leak":
        ended = detail.get("ended", "")
        if ended == "pending":
            return "The engine is idle, and these slots were freed inside a group that was never flushed."
        if ended == "no owner":
            return "The engine is idle, and nobody is known to hold these slots."
        if event.op == "idle":
            return f'The engine is idle, and "{owner}", which never ended, still holds slots.'
        how = {"abort": " by abort", "finish": " after it finished"}.get(ended, "")
        return f'"{owner}" ended{how} and still holds slots: the path that ended it does not give them back.'
    if kind == "stale_capture":
        return (
            f'Batch {detail.get("batch")} of "{owner}" captured these slots through row {detail.get("row")} and is not '
            f"done; the request is not over, so its next steps will read other slots than this one."
        )
    return ""
