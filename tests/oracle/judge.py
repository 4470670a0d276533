"""A slow, plain judge of traces: one function a rule, one object a slot, happens-before by explicit reachability.

It shares no code with the tracker on purpose. Where the trace format leaves a choice, READING.md says which was taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
Key = tuple[Any, ...]

# The order in which rules name an event that breaks several of them; an insert has an order of its own.
KINDS: tuple[str, ...] = (
    "reserved_slot", "double_alloc", "invalid_free", "double_free", "page_double_free", "free_not_owner",
    "free_in_flight", "evict_locked", "stale_capture", "alias", "orphan", "stale_row", "use_after_free", "race",
    "uninit_read", "leak", "lock_leak", "lock_underflow", "count_mismatch", "record_contract", "namespace_mixup",
    "rank_divergence",
)  # fmt: skip
INSERT_KINDS: tuple[str, ...] = ("alias", "use_after_free", "free_not_owner")
OWNERSHIP_OPS = ("alloc", "free", "insert", "evict")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One finding: the rule, the event that broke it, and the slots, node or owner concerned."""

    kind: str
    at: int
    pool: str | None = None
    slots: tuple[int, ...] = ()
    node: str | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule broken for one unit (a slot, a row cell, a node, an owner) of one event.

    `keys` are what it concerns, for joining; `cause` tells apart the independent owners and nodes of one event.
    """

    kind: str
    unit: Key
    keys: tuple[Key, ...] = ()
    pool: str | None = None
    slot: int | None = None
    node: str | None = None
    owner: str | None = None
    cause: Key = ()


# --- What orders two events -------------------------------------------------------------------------------------------


def is_host_thread(agent: str) -> bool:
    return agent == "host" or agent.startswith("host:")


def agent_of(event: Event) -> str:
    return str(event.get("agent") or "host")


def host_thread_of(event: Event) -> str:
    """The host thread that performs the event, or that issues it for another agent."""
    agent = agent_of(event)
    return agent if is_host_thread(agent) else str(event.get("via") or "host")


class Order:
    """The graph of happens-before: each node keeps the set of all nodes that reach it, as a bitset.

    An event is one node; a transfer's body is a node of its own, and so is a host thread's return from a call that
    another agent is named for.
    """

    def __init__(self) -> None:
        self.past: list[int] = []
        self.last: dict[str, int] = {}
        self.records: dict[str, int] = {}
        self.batches: dict[str, list[int]] = defaultdict(list)
        self.transfers: dict[str, list[int]] = defaultdict(list)
        self.access = -1
        """The node at which the present event's accesses happen."""
        self.host = -1
        """What the present event's host thread has done so far, the event itself included if it is that thread's."""

    def node_after(self, before: Sequence[int | None]) -> int:
        node = len(self.past)
        reached = 1 << node
        for earlier in before:
            if earlier is not None:
                reached |= self.past[earlier]
        self.past.append(reached)
        return node

    def reaches(self, earlier: int, later: int) -> bool:
        return later >= 0 and bool(self.past[later] >> earlier & 1)

    def joined_by_host(self, event: Event) -> list[int]:
        """The nodes that the calling host thread is ordered after from here on (rule 4)."""
        op = event["op"]
        if op == "sync":
            on = str(event["on"])
            if on.startswith("event:"):
                recorded = self.records.get(on.removeprefix("event:"))
                return [] if recorded is None else [recorded]
            return [self.last[on]] if on in self.last else []
        if op == "query":
            recorded = self.records.get(event["event"])
            return [recorded] if event["ready"] and recorded is not None else []
        if op == "done":
            return self.batches[event["batch"]]
        if op == "xfer_end":
            return self.transfers[event["xfer"]]
        return []

    def take(self, event: Event) -> None:
        op, agent, thread = event["op"], agent_of(event), host_thread_of(event)
        joined = self.joined_by_host(event)
        before = [self.last.get(agent), self.last.get(thread)]
        if op == "wait":
            before.append(self.records.get(event["event"]))
        if agent == thread:
            before += joined
        node = self.node_after(before)
        if agent != thread and joined:
            self.last[thread] = self.node_after([self.last.get(thread), *joined])
        self.last[agent] = node
        self.access = node
        self.host = self.last.get(thread, -1)
        if op == "record":
            self.records[event["event"]] = node
        if op in ("read", "write", "capture", "launch") and event.get("batch") is not None:
            self.batches[event["batch"]].append(node)
        if op == "xfer_begin":
            self.access = self.node_after([node])
            self.transfers[event["xfer"]].append(self.access)


# --- What the trace says about slots, nodes, batches and owners -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Access:
    node: int
    write: bool


@dataclass(frozen=True, slots=True)
class Cell:
    """What a row's cell holds: a slot of the pool `into`, in the tenancy that the slot had at the write."""

    into: str
    slot: int
    tenancy: int


@dataclass(slots=True)
class Slot:
    pool: str
    id: int
    reserved: bool
    state: str = "free"
    """free, held or pending (freed in a group that is not flushed)."""
    holder: str | None = None
    named: bool = False
    """Named by an alloc of this tenancy; the unnamed rest of a page is held along with it."""
    tenancy: int = 0
    """Its number, from 1 on, no two alike in the trace; it stays when the tenancy ends."""
    ever: bool = False
    written: bool = False
    group: str | None = None
    sharers: set[str] = field(default_factory=set)
    accesses: list[Access] = field(default_factory=list)
    """Of the slot, or of a whole row; they outlive tenancies."""
    cells: dict[int, Cell] = field(default_factory=dict)
    cell_accesses: dict[int, list[Access]] = field(default_factory=lambda: defaultdict(list))

    @property
    def held(self) -> bool:
        return self.state == "held"

    @property
    def node(self) -> str | None:
        """The node that holds the slot, if one does."""
        return self.holder.removeprefix("tree:") if self.holder is not None and is_cached(self.holder) else None


class Pool:
    def __init__(self, event: Event) -> None:
        self.name: str = event["pool"]
        self.kind: str = event["kind"]
        self.size: int = event["size"]
        self.page: int = event.get("page") or 1
        init = event.get("init")
        self.init: bool = self.kind == "state" if init is None else bool(init)
        reserved = set(event.get("reserved") or [])
        self.slots = [Slot(self.name, i, i in reserved) for i in range(self.size)]
        self.given_back_as: dict[int, set[int]] = defaultdict(set)
        """For each page, the slots that were named when it was last given back."""

    def slot(self, index: int) -> Slot | None:
        return self.slots[index] if 0 <= index < self.size else None

    def page_of(self, index: int) -> int:
        return index // self.page

    def page_slots(self, page: int) -> list[Slot]:
        return [s for s in self.slots[max(0, page * self.page) : (page + 1) * self.page] if not s.reserved]


@dataclass(slots=True)
class Node:
    parent: str | None = None
    inserted: bool = False
    ns: str | None = None
    split_from: str | None = None
    gone: bool = False
    """Evicted as a whole; who inserts under this name again makes another node."""


@dataclass(slots=True)
class Captured:
    """One cell that a batch took, and the slot in it."""

    pool: str
    row: int
    row_tenancy: int
    pos: int
    cell: Cell
    owner: str | None
    at: int


@dataclass(slots=True)
class Batch:
    captured: list[Captured] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Transfer:
    node: int
    pool: str
    slots: set[int]


@dataclass(slots=True)
class World:
    """Everything that the events so far have made of the engine."""

    order: Order = field(default_factory=Order)
    pools: dict[str, Pool] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    locks: list[tuple[str, str | None]] = field(default_factory=list)
    batches: dict[str, Batch] = field(default_factory=dict)
    transfers: dict[str, list[Transfer]] = field(default_factory=lambda: defaultdict(list))
    maps: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    records: dict[str, int] = field(default_factory=dict)
    """What each owner's record in force says is allocated."""
    over: dict[str, str] = field(default_factory=dict)
    """Owners that are not live: finished, retracted or ended."""
    over_since: dict[str, int] = field(default_factory=dict)
    tenancies: int = 0
    last_count: dict[str, Key] = field(default_factory=dict)
    covered: dict[Key, int] = field(default_factory=dict)
    """For each thing that a finding concerned, the index of the latest one."""
    began: dict[Key, int] = field(default_factory=dict)
    """For each of them, the index at which its present tenancy began."""

    def slot(self, pool: str, index: int) -> Slot | None:
        return self.pools[pool].slot(index)

    def key(self, pool: str, index: int) -> Key:
        return ("page", pool, self.pools[pool].page_of(index))

    def node(self, name: str) -> Node:
        return self.nodes.setdefault(name, Node())

    def live(self, cell: Cell) -> bool:
        slot = self.slot(cell.into, cell.slot)
        return slot is not None and slot.held and slot.tenancy == cell.tenancy

    def all_slots(self) -> Iterator[Slot]:
        for pool in self.pools.values():
            yield from pool.slots


def ids(value: Any) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else list(value)


def is_cached(holder: str | None) -> bool:
    return holder is not None and holder.startswith("tree:")


def is_session(holder: str | None) -> bool:
    return holder is not None and holder.startswith("session:")


def violation(world: World, kind: str, pool: str, slot: int, unit: Key | None = None, **more: Any) -> Violation:
    """A violation that concerns one slot, and with it its page."""
    keys = (world.key(pool, slot), *more.pop("keys", ()))
    return Violation(kind, unit or ("slot", pool, slot), keys, pool, slot, **more)


def named_slots(world: World, event: Event) -> list[tuple[str, int]]:
    """The slots that an event names: directly, by the keys of a map, or as those of a node."""
    if event["op"] == "evict" and event.get("slots") is None:
        holder = f"tree:{event.get('node')}"
        return [(s.pool, s.id) for s in world.all_slots() if s.held and s.holder == holder]
    if event.get("map") is not None:
        mapping = world.maps[event["map"]]
        return [(event["pool"], mapping[k]) for k in ids(event["keys"]) if k in mapping]
    return [(event["pool"], s) for s in ids(event["slots"])]


def ends_a_share(event: Event, slot: Slot) -> bool:
    owner = event.get("owner")
    return event["op"] == "free" and owner is not None and owner in slot.sharers and slot.holder != owner


def given_back(world: World, event: Event) -> list[Slot]:
    """The slots that a free or evict gives back: the whole pages of those held slots that it names, shares aside."""
    pages: dict[tuple[str, int], None] = {}
    for pool, index in named_slots(world, event):
        slot = world.slot(pool, index)
        if slot is not None and slot.held and not ends_a_share(event, slot):
            pages[(pool, world.pools[pool].page_of(index))] = None
    return [s for pool, page in pages for s in world.pools[pool].page_slots(page) if s.held]


def protected_by_lock(world: World, node: str) -> bool:
    for locked, _ in world.locks:
        seen: set[str] = set()
        at: str | None = locked
        while at is not None and at not in seen:
            if at == node:
                return True
            seen.add(at)
            at = world.nodes[at].parent if at in world.nodes else None
    return False


def split_from(world: World, node: str, ancestor: str) -> bool:
    """Whether `node` is `ancestor` or was split from it, perhaps in several steps."""
    seen: set[str] = set()
    at: str | None = node
    while at is not None and at not in seen:
        if at == ancestor:
            return True
        seen.add(at)
        at = world.nodes[at].split_from if at in world.nodes else None
    return False


def outstanding(world: World) -> Iterator[Captured]:
    """What batches hold captured that are neither done nor launched before what the acting host thread knows of, and
    whose request was not over at some time since the capture."""
    for batch in world.batches.values():
        if batch.launches and all(world.order.reaches(n, world.order.host) for n in batch.launches):
            continue
        for captured in batch.captured:
            owner = captured.owner
            if owner is not None and (owner in world.over or world.over_since.get(owner, -1) > captured.at):
                continue
            yield captured


@dataclass(frozen=True, slots=True)
class Touch:
    """One slot, or cells of one row, that the present event reads or writes."""

    pool: str
    slot: int
    write: bool
    pos: int | None = None


def touches(world: World, event: Event) -> list[Touch]:
    op = event["op"]
    if op in ("read", "write"):
        return [Touch(event["pool"], s, op == "write") for s in dict.fromkeys(ids(event["slots"]))]
    if op == "xfer_begin":
        write = event["access"] == "write"
        return [Touch(event["pool"], s, write) for s in dict.fromkeys(ids(event["slots"]))]
    if op == "row_write":
        return [Touch(event["pool"], event["row"], True, pos) for pos, _ in written_cells(event)]
    if op == "capture":
        return [Touch(event["pool"], event["row"], False, pos) for pos in captured_range(event)]
    if op == "launch":
        batch = world.batches.get(event["batch"], Batch())
        return [Touch(p, s, False) for p, s in dict.fromkeys((c.cell.into, c.cell.slot) for c in batch.captured)]
    return []


def written_cells(event: Event) -> list[tuple[int, int]]:
    return [(event["pos"] + k, slot) for k, slot in enumerate(ids(event["slots"]))]


def captured_range(event: Event) -> range:
    return range(event.get("from") or 0, event["upto"])


def unit_of(touch: Touch) -> Key:
    return ("slot", touch.pool, touch.slot) if touch.pos is None else ("cell", touch.pool, touch.slot, touch.pos)


# --- The rules --------------------------------------------------------------------------------------------------------


def continues_page(world: World, event: Event, slot: Slot) -> bool:
    """Whether an alloc of this held slot only goes on with a page that the owner has already."""
    owner = event.get("owner")
    if not slot.held or slot.named:
        return False
    pool = world.pools[slot.pool]
    mates = pool.page_slots(pool.page_of(slot.id))
    return owner is None or slot.holder is None or any(m.held and m.holder == owner for m in mates)


def reserved_slot(world: World, event: Event) -> Iterator[Violation]:
    """Reserved slots are never handed out."""
    if event["op"] != "alloc":
        return
    for index in ids(event["slots"]):
        slot = world.slot(event["pool"], index)
        if slot is not None and slot.reserved:
            yield violation(world, "reserved_slot", event["pool"], index, owner=event.get("owner"))


def double_alloc(world: World, event: Event) -> Iterator[Violation]:
    """What is handed out exists and was free."""
    if event["op"] != "alloc":
        return
    seen: set[int] = set()
    for index in ids(event["slots"]):
        slot = world.slot(event["pool"], index)
        free = slot is not None and (slot.state == "free" or continues_page(world, event, slot))
        if index in seen or not free:
            yield violation(world, "double_alloc", event["pool"], index, owner=event.get("owner"))
        seen.add(index)


def invalid_free(world: World, event: Event) -> Iterator[Violation]:
    """What is freed exists, is not reserved, and was allocated at some time since the pool began."""
    if event["op"] not in ("free", "evict"):
        return
    for pool, index in named_slots(world, event):
        slot = world.slot(pool, index)
        if slot is None or slot.reserved or not slot.ever:
            yield violation(world, "invalid_free", pool, index, owner=event.get("owner"))


def second_frees(world: World, event: Event) -> Iterator[tuple[str, int, bool]]:
    """Slots that the event names although they are given back already: pool, slot, whether through the same name."""
    if event["op"] not in ("free", "evict"):
        return
    group = event.get("group")
    dedup = group is not None and bool(event.get("dedup"))
    seen: set[tuple[str, int]] = set()
    for pool, index in named_slots(world, event):
        slot = world.slot(pool, index)
        if slot is None or slot.reserved or not slot.ever:
            continue
        again = (pool, index) in seen
        seen.add((pool, index))
        if dedup and (slot.held or slot.group == group):
            continue
        if again:
            yield pool, index, True
        elif not slot.held:
            named = world.pools[pool].given_back_as[world.pools[pool].page_of(index)]
            yield pool, index, index in named


def double_free(world: World, event: Event) -> Iterator[Violation]:
    """One free for each allocation, also within one call."""
    for pool, index, same in second_frees(world, event):
        if same:
            yield violation(world, "double_free", pool, index, owner=event.get("owner"))


def page_double_free(world: World, event: Event) -> Iterator[Violation]:
    """A page is given back once, whichever of its slots are named."""
    for pool, index, same in second_frees(world, event):
        if not same:
            yield violation(world, "page_double_free", pool, index, owner=event.get("owner"))


def free_not_owner(world: World, event: Event) -> Iterator[Violation]:
    """Who gives slots away holds or shares them; a giver or holder that is not known is not judged."""
    op, giver = event["op"], event.get("owner")
    if op not in ("free", "insert", "give", "evict") or (op != "evict" and giver is None):
        return
    for pool, index in named_slots(world, event):
        slot = world.slot(pool, index)
        if slot is None or not slot.held:
            wrong = op == "give"
        elif slot.holder is None:
            wrong = False
        elif op == "evict":
            wrong = not is_cached(slot.holder)
        else:
            wrong = slot.holder != giver and giver not in slot.sharers
        if wrong:
            yield violation(world, "free_not_owner", pool, index, owner=giver)


def free_in_flight(world: World, event: Event) -> Iterator[Violation]:
    """Nothing is given back while a transfer uses it."""
    if event["op"] not in ("free", "evict"):
        return
    for slot in given_back(world, event):
        if any(t.pool == slot.pool and slot.id in t.slots for ts in world.transfers.values() for t in ts):
            yield violation(world, "free_in_flight", slot.pool, slot.id, owner=event.get("owner"))


def evict_locked(world: World, event: Event) -> Iterator[Violation]:
    """What a lock protects or an owner shares is not evicted."""
    if event["op"] != "evict":
        return
    for slot in given_back(world, event):
        node = slot.node
        if slot.sharers or (node is not None and protected_by_lock(world, node)):
            keys = () if node is None else (("node", node),)
            yield violation(world, "evict_locked", slot.pool, slot.id, node=node, keys=keys)
    node = event.get("node")
    if event.get("slots") is None and node is not None and protected_by_lock(world, node):
        yield Violation("evict_locked", ("node", node), (("node", node),), node=node)


def stale_capture(world: World, event: Event) -> Iterator[Violation]:
    """What an outstanding batch captured is not given back, nor its cell given another slot, before its request is
    over or retracted."""
    owner = event.get("owner")
    if event["op"] in ("free", "evict"):
        taken = {(c.cell.into, c.cell.slot, c.cell.tenancy) for c in outstanding(world)}
        for slot in given_back(world, event):
            if (slot.pool, slot.id, slot.tenancy) in taken:
                yield violation(world, "stale_capture", slot.pool, slot.id, owner=owner)
    if event["op"] == "row_write":
        row = world.slot(event["pool"], event["row"])
        new = dict(written_cells(event))
        for c in outstanding(world):
            same_row = row is not None and (c.pool, c.row, c.row_tenancy) == (row.pool, row.id, row.tenancy)
            changed = c.pos in new and (event["into"], new[c.pos]) != (c.cell.into, c.cell.slot)
            if same_row and changed and world.live(c.cell):
                unit = ("cell", c.pool, c.row, c.pos)
                yield violation(world, "stale_capture", c.cell.into, c.cell.slot, unit, owner=owner)


def live_rows_with(world: World, into: str, index: int) -> Iterator[tuple[Slot, int]]:
    """Every live cell that holds the slot in its present tenancy: row, position."""
    for row in world.all_slots():
        if row.held:
            for pos, cell in row.cells.items():
                if (cell.into, cell.slot) == (into, index) and world.live(cell):
                    yield row, pos


def alias(world: World, event: Event) -> Iterator[Violation]:
    """A slot stands under one node; and, unless a node holds it, in one owner's live rows only."""
    if event["op"] == "insert":
        for index in ids(event["slots"]):
            slot = world.slot(event["pool"], index)
            if slot is not None and slot.held and is_cached(slot.holder) and slot.holder != f"tree:{event['node']}":
                yield violation(world, "alias", event["pool"], index, owner=event.get("owner"), node=event["node"])
    if event["op"] == "row_write":
        row = world.slot(event["pool"], event["row"])
        if row is None or not row.held or row.holder is None:
            return
        for pos, index in written_cells(event):
            slot = world.slot(event["into"], index)
            if slot is None or not slot.held or is_cached(slot.holder):
                continue
            others = {r.holder for r, _ in live_rows_with(world, event["into"], index)} - {row.holder, None}
            if others:
                unit = ("cell", event["pool"], event["row"], pos)
                yield violation(world, "alias", event["into"], index, unit, owner=event.get("owner"))


def orphan(world: World, event: Event) -> Iterator[Violation]:
    """A row's cell is not overwritten while its old slot is held only through that cell."""
    if event["op"] != "row_write":
        return
    row = world.slot(event["pool"], event["row"])
    if row is None or not row.held:
        return
    new = dict(written_cells(event))
    kept = {(event["into"], slot) for slot in new.values()}
    for pos in new:
        old = row.cells.get(pos)
        if old is None or not world.live(old) or (old.into, old.slot) in kept:
            continue
        slot = world.slot(old.into, old.slot)
        if slot is None or is_cached(slot.holder):
            continue
        elsewhere = [p for r, p in live_rows_with(world, old.into, old.slot) if r is not row or p not in new]
        if not elsewhere:
            unit = ("cell", event["pool"], event["row"], pos)
            yield violation(world, "orphan", old.into, old.slot, unit, owner=event.get("owner"))


def stale_row(world: World, event: Event) -> Iterator[Violation]:
    """Who reuses a slot still holds it, with KV allocated if its record was seen; a captured cell was written in this
    tenancy of its row."""
    owner = event.get("owner")
    if event["op"] == "reuse":
        for index in ids(event["slots"]):
            slot = world.slot(event["pool"], index)
            if slot is not None and slot.reserved:
                continue
            holds = (
                slot is not None
                and slot.held
                and (owner is None or slot.holder in (None, owner) or owner in slot.sharers)
            )
            if not holds or (owner is not None and world.records.get(owner) == 0):
                yield violation(world, "stale_row", event["pool"], index, owner=owner)
    if event["op"] == "capture":
        row = world.slot(event["pool"], event["row"])
        if row is not None and row.reserved:
            return
        for pos in captured_range(event):
            if row is None or not row.held or pos not in row.cells:
                unit = ("cell", event["pool"], event["row"], pos)
                yield violation(world, "stale_row", event["pool"], event["row"], unit, owner=owner)


def use_after_free(world: World, event: Event) -> Iterator[Violation]:
    """What is read, written, captured or inserted is held by somebody; what is attached, by that node or one split
    from it. Reserved slots aside."""
    op, owner = event["op"], event.get("owner")
    if op in ("read", "write", "xfer_begin", "row_write"):
        for touch in touches(world, event):
            slot = world.slot(touch.pool, touch.slot)
            if slot is None or not (slot.held or slot.reserved):
                yield violation(world, "use_after_free", touch.pool, touch.slot, unit_of(touch), owner=owner)
    if op == "insert":
        for index in ids(event["slots"]):
            slot = world.slot(event["pool"], index)
            if slot is None or not (slot.held or slot.reserved):
                yield violation(world, "use_after_free", event["pool"], index, owner=owner, node=event["node"])
    if op == "attach":
        for index in ids(event["slots"]):
            slot = world.slot(event["pool"], index)
            if slot is not None and slot.reserved:
                continue
            holder = None if slot is None else slot.node
            if holder is None or not split_from(world, holder, event["node"]):
                yield violation(world, "use_after_free", event["pool"], index, owner=owner, node=event["node"])
    if op == "capture":
        row = world.slot(event["pool"], event["row"])
        for pos in captured_range(event):
            cell = row.cells.get(pos) if row is not None and (row.held or row.reserved) else None
            if cell is not None and not usable(world, cell):
                unit = ("cell", event["pool"], event["row"], pos)
                yield violation(world, "use_after_free", cell.into, cell.slot, unit, owner=owner)
    if op == "launch":
        for c in world.batches.get(event["batch"], Batch()).captured:
            if not usable(world, c.cell):
                yield violation(world, "use_after_free", c.cell.into, c.cell.slot, owner=owner)


def usable(world: World, cell: Cell) -> bool:
    """Whether a cell's slot is reserved, or is held in the tenancy that the cell means."""
    slot = world.slot(cell.into, cell.slot)
    return slot is not None and (slot.reserved or world.live(cell))


def unordered(world: World, touch: Touch) -> set[int]:
    """The earlier conflicting accesses that are not ordered before the present one."""
    slot = world.slot(touch.pool, touch.slot)
    if slot is None or slot.reserved:
        return set()
    earlier = list(slot.accesses)
    for pos, accesses in slot.cell_accesses.items():
        if touch.pos is None or touch.pos == pos:
            earlier += accesses
    now = world.order.access
    return {a.node for a in earlier if (a.write or touch.write) and not world.order.reaches(a.node, now)}


def race(world: World, event: Event) -> Iterator[Violation]:
    """Two accesses to a slot or row cell, at least one a write, are ordered."""
    for touch in touches(world, event):
        if unordered(world, touch):
            yield violation(world, "race", touch.pool, touch.slot, unit_of(touch), owner=event.get("owner"))


def uninit_read(world: World, event: Event) -> Iterator[Violation]:
    """A slot is read only after this tenancy wrote it."""
    for touch in touches(world, event):
        slot = world.slot(touch.pool, touch.slot)
        judged = world.pools[touch.pool].init and touch.pos is None and not touch.write
        if judged and slot is not None and not slot.reserved and not slot.written:
            yield violation(world, "uninit_read", touch.pool, touch.slot, owner=event.get("owner"))


def leak(world: World, event: Event) -> Iterator[Violation]:
    """At its end an owner holds nothing; at idle nobody does but sessions and the cache."""
    op, owner = event["op"], event.get("owner")
    if op not in ("req_end", "idle") or (op == "req_end" and owner is None):
        return
    for slot in world.all_slots():
        if op == "req_end":
            leaked, holder = slot.held and slot.holder == owner, owner
        else:
            leaked = slot.state == "pending" or (
                slot.held and not is_session(slot.holder) and not is_cached(slot.holder)
            )
            holder = slot.holder if slot.held else None
        if leaked:
            cause = ("owner", holder) if holder is not None else ("nobody", slot.pool, slot.state, slot.group)
            keys = (("owner", holder),) if holder is not None else ()
            yield violation(world, "leak", slot.pool, slot.id, owner=holder, cause=cause, keys=keys)


def lock_leak(world: World, event: Event) -> Iterator[Violation]:
    """Who locked has unlocked."""
    op = event["op"]
    if op not in ("req_end", "idle") or (op == "req_end" and event.get("owner") is None):
        return
    leaking = {v.owner for v in leak(world, event)}
    for node, owner in world.locks:
        if (owner == event.get("owner")) if op == "req_end" else not is_session(owner):
            cause = ("owner", owner) if owner is not None and owner in leaking else ("node", node)
            yield Violation("lock_leak", ("node", node), (("node", node),), node=node, owner=owner, cause=cause)


def lock_underflow(world: World, event: Event) -> Iterator[Violation]:
    """Unlocks do not outnumber locks."""
    if event["op"] == "unlock" and not any(node == event["node"] for node, _ in world.locks):
        node = event["node"]
        yield Violation("lock_underflow", ("node", node), (("node", node),), node=node, owner=event.get("owner"))


def count_differences(world: World, event: Event) -> Key:
    """The engine's totals less the shadow's; what the engine does not tell counts as right."""
    pool = world.pools[event["pool"]]
    usual = [s for s in pool.slots if not s.reserved]
    evictable, protected = event.get("evictable"), event.get("protected")
    told = (
        event.get("available"),
        None if evictable is None or protected is None else evictable + protected,
        event.get("session"),
        event.get("total"),
    )
    right = (
        sum(s.state == "free" for s in usual),
        sum(s.held and is_cached(s.holder) for s in usual),
        sum(s.held and is_session(s.holder) for s in usual),
        len(usual),
    )
    return tuple(0 if t is None else t - r for t, r in zip(told, right, strict=True))


def count_mismatch(world: World, event: Event) -> Iterator[Violation]:
    """The engine's totals agree with each other and with the shadow; a difference reported once is known."""
    if event["op"] == "count":
        differences = count_differences(world, event)
        if any(differences) and differences != world.last_count.get(event["pool"]):
            yield Violation("count_mismatch", ("pool", event["pool"]), pool=event["pool"])


def record_contract(world: World, event: Event) -> Iterator[Violation]:
    """committed <= allocated <= the cells that the row maps, rounded up to pages; protected <= allocated; a record
    without a row has allocated 0."""
    if event["op"] != "kv_record":
        return
    allocated, owner, row = event["allocated"], event.get("owner"), event.get("row")
    wrong = event["committed"] > allocated or event["protected"] > allocated
    keys: tuple[Key, ...] = () if owner is None else (("owner", owner),)
    if row is None:
        wrong = wrong or allocated != 0
        pool = None
    else:
        pool = row_pool(world, event)
        wrong = wrong or allocated > mapped_tokens(world, pool, row, event.get("evicted") or 0)
        keys = (world.key(pool, row), *keys)
    if wrong:
        yield Violation("record_contract", ("owner", owner), keys, pool, row, owner=owner)


def row_pool(world: World, event: Event) -> str:
    """The pool that a record's row is of: the one named, else the one where the owner holds it, else the first."""
    if event.get("pool") is not None and world.pools[event["pool"]].kind == "row":
        return str(event["pool"])
    rows = [p for p in world.pools.values() if p.kind == "row"]
    for pool in rows:
        slot = pool.slot(event["row"])
        if slot is not None and slot.held and slot.holder == event.get("owner"):
            return pool.name
    return rows[0].name


def mapped_tokens(world: World, pool: str, row: int, evicted: int) -> int:
    """The live cells of the row and the evicted ones, rounded up to pages of the pool that the row points into."""
    slot = world.slot(pool, row)
    cells = [] if slot is None or not slot.held else list(slot.cells.values())
    into = cells[-1].into if cells else next((p.name for p in world.pools.values() if p.kind == "kv"), None)
    page = 1 if into is None else world.pools[into].page
    mapped = sum(world.live(c) for c in cells) + evicted
    return -(-mapped // page) * page


def namespace_mixup(world: World, event: Event) -> Iterator[Violation]:
    """A match stays in the key domain that inserted the node."""
    if event["op"] != "match":
        return
    node = world.nodes.get(event["node"])
    if node is not None and node.inserted and node.ns != event.get("ns"):
        name = event["node"]
        yield Violation("namespace_mixup", ("node", name), (("node", name),), node=name, owner=event.get("owner"))


RULES: tuple[Callable[[World, Event], Iterator[Violation]], ...] = (
    reserved_slot, double_alloc, invalid_free, double_free, page_double_free, free_not_owner, free_in_flight,
    evict_locked, stale_capture, alias, orphan, stale_row, use_after_free, race, uninit_read, leak, lock_leak,
    lock_underflow, count_mismatch, record_contract, namespace_mixup,
)  # fmt: skip


# --- What an event changes --------------------------------------------------------------------------------------------


def begin_tenancy(world: World, slot: Slot, owner: str | None, at: int) -> None:
    slot.state, slot.holder, slot.group = "held", owner, None
    world.tenancies += 1
    slot.tenancy = world.tenancies
    slot.ever, slot.written, slot.named = True, False, False
    slot.sharers.clear()
    slot.cells.clear()
    world.began[world.key(slot.pool, slot.id)] = at


def end_tenancy(slot: Slot, group: str | None) -> None:
    slot.state = "free" if group is None else "pending"
    slot.holder, slot.group, slot.named = None, group, False
    slot.sharers.clear()
    slot.cells.clear()


def begin_node(world: World, name: str, at: int) -> Node:
    if name not in world.nodes or world.nodes[name].gone:
        world.nodes[name] = Node()
        world.began[("node", name)] = at
    return world.nodes[name]


def become_live(world: World, owner: str | None, at: int) -> None:
    """An owner gets slots: a retracted or ended one lives again, and its record is out of date."""
    if owner is None:
        return
    if world.over.get(owner) in ("retracted", "ended"):
        del world.over[owner]
    world.records.pop(owner, None)
    world.began[("owner", owner)] = at
    if is_cached(owner):
        begin_node(world, owner.removeprefix("tree:"), at)


def released(world: World, *owners: str | None) -> None:
    for owner in owners:
        if owner is not None:
            world.records.pop(owner, None)


def apply_pool(world: World, event: Event, at: int) -> None:
    name = event["pool"]
    world.pools[name] = Pool(event)
    world.last_count.pop(name, None)
    world.covered = {k: v for k, v in world.covered.items() if k[:2] != ("page", name)}
    for transfers in world.transfers.values():
        transfers[:] = [t for t in transfers if t.pool != name]


def apply_reset(world: World, event: Event, at: int) -> None:
    pool = world.pools[event["pool"]]
    world.last_count.pop(pool.name, None)
    for slot in pool.slots:
        if slot.state != "free":
            pool.given_back_as[pool.page_of(slot.id)] |= {s.id for s in pool.page_slots(pool.page_of(slot.id))}
        end_tenancy(slot, None)


def apply_alloc(world: World, event: Event, at: int) -> None:
    pool, owner = world.pools[event["pool"]], event.get("owner")
    named = [s for s in map(pool.slot, dict.fromkeys(ids(event["slots"]))) if s is not None]
    by_page: dict[int, list[Slot]] = defaultdict(list)
    for slot in named:
        if slot.reserved:
            begin_tenancy(world, slot, owner, at)
        else:
            by_page[pool.page_of(slot.id)].append(slot)
    for page, slots in by_page.items():
        if not all(continues_page(world, event, s) for s in slots):
            for mate in pool.page_slots(page):
                begin_tenancy(world, mate, owner, at)
            pool.given_back_as[page].clear()
        for slot in slots:
            slot.named = True
            slot.holder = owner if owner is not None else slot.holder
    become_live(world, owner, at)


def pass_on(world: World, slot: Slot, to: str) -> None:
    """Another holder takes the slot, and with it the rest of its page that no alloc has named."""
    pool, old = world.pools[slot.pool], slot.holder
    slot.holder = to
    for mate in pool.page_slots(pool.page_of(slot.id)):
        if mate.held and not mate.named and mate.holder == old:
            mate.holder = to


def apply_own(world: World, event: Event, at: int) -> None:
    for pool, index in named_slots(world, event):
        slot = world.slot(pool, index)
        if slot is not None and slot.held and slot.holder is None:
            pass_on(world, slot, event["owner"])
    become_live(world, event["owner"], at)


def apply_give(world: World, event: Event, at: int) -> None:
    giver, to = event.get("owner"), event["to"]
    released(world, giver, to)
    if is_cached(to):
        begin_node(world, to.removeprefix("tree:"), at)
    for pool, index in named_slots(world, event):
        slot = world.slot(pool, index)
        if slot is None or not slot.held:
            continue
        if giver is not None and giver in slot.sharers and slot.holder != giver:
            slot.sharers.discard(giver)
            slot.sharers.add(to)
        else:
            pass_on(world, slot, to)


def apply_free(world: World, event: Event, at: int) -> None:
    owner, group = event.get("owner"), event.get("group")
    released(world, owner)
    named = named_slots(world, event)
    back = given_back(world, event)
    world_forgets_transfers(world, back)
    shares = []
    for pool_name, index in named:
        slot = world.slot(pool_name, index)
        if slot is not None and slot.held and ends_a_share(event, slot):
            shares.append(slot)
    for slot in back:
        released(world, slot.holder)
        end_tenancy(slot, group)
    for slot in shares:
        if owner is not None:
            slot.sharers.discard(owner)
    note_given_back(world, [(p, i) for p, i in named if not any((s.pool, s.id) == (p, i) for s in shares)])


def note_given_back(world: World, named: list[tuple[str, int]]) -> None:
    for pool, index in named:
        world.pools[pool].given_back_as[world.pools[pool].page_of(index)].add(index)


def world_forgets_transfers(world: World, back: list[Slot]) -> None:
    """For an engine that gives slots back no transfer is left that uses them."""
    for transfers in world.transfers.values():
        for transfer in transfers:
            for slot in back:
                if transfer.pool == slot.pool and slot.id in transfer.slots:
                    transfer.slots.discard(slot.id)
                    forget_accesses(slot, {transfer.node})


def forget_accesses(slot: Slot, nodes: set[int]) -> None:
    slot.accesses = [a for a in slot.accesses if a.node not in nodes]
    for pos, accesses in slot.cell_accesses.items():
        slot.cell_accesses[pos] = [a for a in accesses if a.node not in nodes]


def apply_evict(world: World, event: Event, at: int) -> None:
    named = named_slots(world, event)
    back = given_back(world, event)
    world_forgets_transfers(world, back)
    for slot in back:
        released(world, slot.holder)
        end_tenancy(slot, None)
    note_given_back(world, named)
    node = world.nodes.get(event.get("node") or "")
    if event.get("slots") is None and node is not None:
        node.gone, node.inserted = True, False


def apply_flush(world: World, event: Event, at: int) -> None:
    for slot in world.all_slots():
        if slot.state == "pending" and slot.group == event["group"]:
            slot.state, slot.group = "free", None


def apply_insert(world: World, event: Event, at: int) -> None:
    name = event["node"]
    released(world, event.get("owner"))
    node = begin_node(world, name, at)
    if event.get("parent") is not None:
        node.parent = event["parent"]
    if not node.inserted:
        node.inserted, node.ns = True, event.get("ns")
    for pool, index in named_slots(world, event):
        slot = world.slot(pool, index)
        if slot is not None and slot.held and not slot.reserved:
            released(world, slot.holder)
            pass_on(world, slot, f"tree:{name}")


def apply_attach(world: World, event: Event, at: int) -> None:
    for pool, index in named_slots(world, event):
        slot = world.slot(pool, index)
        if slot is not None and slot.held and event.get("owner") is not None:
            slot.sharers.add(event["owner"])


def apply_split(world: World, event: Event, at: int) -> None:
    node, child = event["node"], event["child"]
    upper = begin_node(world, node, at)
    if child == node:
        return
    world.nodes[child] = Node(upper.parent, upper.inserted, upper.ns, node)
    world.began[("node", child)] = at
    upper.parent = child
    moved = set(ids(event["slots"]))
    for slot in world.all_slots():
        if slot.held and slot.holder == f"tree:{node}" and slot.id in moved and event.get("pool") in (None, slot.pool):
            slot.holder = f"tree:{child}"


def apply_lock(world: World, event: Event, at: int) -> None:
    world.locks.append((event["node"], event.get("owner")))


def apply_unlock(world: World, event: Event, at: int) -> None:
    """Takes back a lock of the same owner, else one that names none, else the oldest."""
    node, owner = event["node"], event.get("owner")
    for lock in ((node, owner), (node, None), *[held for held in world.locks if held[0] == node]):
        if lock in world.locks:
            world.locks.remove(lock)
            return


def apply_access(world: World, event: Event, at: int) -> None:
    for touch in touches(world, event):
        slot = world.slot(touch.pool, touch.slot)
        if slot is None or slot.reserved:
            continue
        forget_accesses(slot, unordered(world, touch))
    for touch in touches(world, event):
        slot = world.slot(touch.pool, touch.slot)
        if slot is None:
            continue
        access = Access(world.order.access, touch.write)
        (slot.accesses if touch.pos is None else slot.cell_accesses[touch.pos]).append(access)
        if touch.write:
            slot.written = True


def apply_row_write(world: World, event: Event, at: int) -> None:
    apply_access(world, event, at)
    row = world.slot(event["pool"], event["row"])
    if row is None or not (row.held or row.reserved):
        return
    for pos, index in written_cells(event):
        slot = world.slot(event["into"], index)
        row.cells.pop(pos, None)
        row.cells[pos] = Cell(event["into"], index, 0 if slot is None else slot.tenancy)


def apply_capture(world: World, event: Event, at: int) -> None:
    apply_access(world, event, at)
    batch = world.batches.setdefault(event["batch"], Batch())
    row = world.slot(event["pool"], event["row"])
    if row is None or not (row.held or row.reserved):
        return
    owner = event.get("owner") or row.holder
    for pos in captured_range(event):
        cell = row.cells.get(pos)
        if cell is None:
            continue
        slot = world.slot(cell.into, cell.slot)
        now = Cell(cell.into, cell.slot, 0 if slot is None else slot.tenancy)
        batch.captured.append(Captured(row.pool, row.id, row.tenancy, pos, now, owner, at))


def apply_launch(world: World, event: Event, at: int) -> None:
    apply_access(world, event, at)
    world.batches.setdefault(event["batch"], Batch()).launches.append(world.order.access)


def apply_done(world: World, event: Event, at: int) -> None:
    world.batches.pop(event["batch"], None)


def apply_xfer_begin(world: World, event: Event, at: int) -> None:
    apply_access(world, event, at)
    world.transfers[event["xfer"]].append(Transfer(world.order.access, event["pool"], set(ids(event["slots"]))))


def apply_xfer_end(world: World, event: Event, at: int) -> None:
    world.transfers.pop(event["xfer"], None)


def apply_map_set(world: World, event: Event, at: int) -> None:
    world.maps[event["map"]].update(zip(ids(event["key"]), ids(event["val"]), strict=False))


def apply_map_clear(world: World, event: Event, at: int) -> None:
    for key in ids(event["key"]):
        world.maps[event["map"]].pop(key, None)


def apply_req_start(world: World, event: Event, at: int) -> None:
    world.over.pop(event.get("owner") or "", None)


def apply_req_over(world: World, event: Event, at: int) -> None:
    owner = event.get("owner")
    if owner is None:
        return
    world.over_since[owner] = at
    if event["op"] == "req_end":
        world.over[owner] = "ended"
        world.records.pop(owner, None)
        world.locks = [(node, who) for node, who in world.locks if who != owner]
        for slot in world.all_slots():
            slot.sharers.discard(owner)
    elif event["op"] == "req_retract":
        world.over.setdefault(owner, "retracted")
    else:
        world.over[owner] = "finished"


def apply_kv_record(world: World, event: Event, at: int) -> None:
    if event.get("owner") is not None:
        world.records[event["owner"]] = event["allocated"]


def apply_count(world: World, event: Event, at: int) -> None:
    world.last_count[event["pool"]] = count_differences(world, event)


def apply_idle(world: World, event: Event, at: int) -> None:
    world.locks = [(node, owner) for node, owner in world.locks if is_session(owner)]


def apply_nothing(world: World, event: Event, at: int) -> None:
    pass


APPLY: dict[str, Callable[[World, Event, int], None]] = {
    "pool": apply_pool, "reset": apply_reset, "alloc": apply_alloc, "own": apply_own, "give": apply_give,
    "reuse": apply_nothing, "free": apply_free, "flush": apply_flush, "insert": apply_insert,
    "attach": apply_attach, "evict": apply_evict, "split": apply_split, "match": apply_nothing, "lock": apply_lock,
    "unlock": apply_unlock, "row_write": apply_row_write, "capture": apply_capture, "launch": apply_launch,
    "done": apply_done, "read": apply_access, "write": apply_access, "xfer_begin": apply_xfer_begin,
    "xfer_end": apply_xfer_end, "record": apply_nothing, "wait": apply_nothing, "query": apply_nothing,
    "sync": apply_nothing, "map_set": apply_map_set, "map_clear": apply_map_clear, "req_start": apply_req_start,
    "req_finish": apply_req_over, "req_abort": apply_req_over, "req_retract": apply_req_over,
    "req_end": apply_req_over, "kv_record": apply_kv_record, "count": apply_count, "step": apply_nothing,
    "idle": apply_idle,
}  # fmt: skip


# --- From violations to findings --------------------------------------------------------------------------------------


def joins_earlier(world: World, broken: Violation) -> bool:
    """Whether the violation concerns what an earlier finding concerned, with no new tenancy of it begun since."""
    return any(key in world.covered and world.began.get(key, -1) <= world.covered[key] for key in broken.keys)


def settle(world: World, event: Event, violations: list[Violation]) -> list[Verdict]:
    """The findings of one event: for each unit the earliest rule counts, what joins an earlier finding is dropped,
    and the earliest rule that is left names the event, for each independent cause."""
    order = INSERT_KINDS if event["op"] == "insert" else KINDS
    first: dict[Key, Violation] = {}
    for broken in sorted(violations, key=lambda v: order.index(v.kind)):
        first.setdefault((broken.cause, broken.unit), broken)
    causes: dict[Key, list[Violation]] = defaultdict(list)
    for broken in first.values():
        if not joins_earlier(world, broken):
            causes[broken.cause].append(broken)
    verdicts = []
    for left in causes.values():
        head = min(left, key=lambda v: order.index(v.kind))
        same = [v for v in left if v.kind == head.kind and v.pool == head.pool]
        slots = tuple(dict.fromkeys(v.slot for v in same if v.slot is not None))
        verdicts.append(Verdict(head.kind, event["i"], head.pool, slots, head.node, head.owner))
    for broken in violations:
        if broken.cause in causes:
            for key in broken.keys:
                if key[0] != "owner" or broken.kind in ("leak", "record_contract"):
                    world.covered[key] = event["i"]
    return verdicts


def judge(events: list[Event]) -> list[Verdict]:
    """The findings of one trace, in the order of its events; the events are those of a text trace, without header."""
    world = World()
    verdicts: list[Verdict] = []
    for event in events:
        world.order.take(event)
        violations = [broken for rule in RULES for broken in rule(world, event)]
        verdicts += settle(world, event, violations)
        APPLY[event["op"]](world, event, event["i"])
    return verdicts


def ownership_events(events: list[Event]) -> dict[str, list[Event]]:
    """For each pool its ownership events; an eviction of a whole node is one of every pool it gives slots back to."""
    world = World()
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["op"] in OWNERSHIP_OPS:
            pools = dict.fromkeys(pool for pool, _ in named_slots(world, event))
            if event.get("pool") is not None:
                pools = {event["pool"]: None}
            for pool in pools:
                found[pool].append(event | {"slots": [s for p, s in named_slots(world, event) if p == pool]})
        world.order.take(event)
        APPLY[event["op"]](world, event, event["i"])
    return found


def same_ownership_event(one: Event, other: Event) -> bool:
    """Whether two ranks did the same: the operation and the slots in their order; owner and node where both say."""
    for name in ("owner", "node"):
        if None not in (one.get(name), other.get(name)) and one[name] != other[name]:
            return False
    return bool(one["op"] == other["op"] and one["slots"] == other["slots"])


def judge_group(traces: list[list[Event]]) -> list[list[Verdict]]:
    """The findings of every rank of a group, lowest rank first: its own, and where it parts from the lowest."""
    lowest = ownership_events(traces[0])
    results = [judge(traces[0])]
    for trace in traces[1:]:
        verdicts = judge(trace)
        for pool, events in ownership_events(trace).items():
            for mine, theirs in zip(events, lowest.get(pool, []), strict=False):
                if not same_ownership_event(mine, theirs):
                    if all(v.at != mine["i"] for v in verdicts):
                        verdicts.append(
                            Verdict("rank_divergence", mine["i"], pool, tuple(mine["slots"]), owner=mine.get("owner"))
                        )
                    break
        results.append(sorted(verdicts, key=lambda v: v.at))
    return results
