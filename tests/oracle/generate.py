"""Seeded traces for comparing judges: of a small engine that makes no mistakes, mutations of those, and pure noise."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from random import Random
from typing import Any

Event = dict[str, Any]

ROWS, KV_PAGES, STATES, HOST_PAGES, WINDOW_SLOTS = 6, 14, 6, 6, 24


@dataclass(slots=True)
class Request:
    name: str
    ns: str | None = None
    row: int = -1
    state: int = -1
    tokens: list[int] = field(default_factory=list)
    """The slot of each position, the shared prefix first."""
    shared: int = 0
    node: str | None = None
    """The node that it has locked, and whose slots, with those of its ancestors, it shares."""
    written: int = 0
    """Positions that the row holds."""
    computed: int = 0
    evicted: int = 0
    """Own positions at whose slots of the window pool the window has passed."""
    windowed: dict[int, int] = field(default_factory=dict)
    state_written: bool = False
    steps_left: int = 3
    outstanding: list[str] = field(default_factory=list)


@dataclass(slots=True)
class CacheNode:
    name: str
    parent: str | None
    ns: str | None
    slots: list[int] = field(default_factory=list)
    host: list[int] = field(default_factory=list)
    state: int = -1
    locks: int = 0
    sharers: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Pages:
    """A free list of whole pages."""

    page: int
    free: list[int]

    def take(self, rng: Random) -> int:
        return self.free.pop(rng.randrange(len(self.free)))

    def give(self, slots: list[int]) -> None:
        self.free += sorted({s // self.page for s in slots})

    def slots(self) -> int:
        return len(self.free) * self.page


class Engine:
    """An engine of rows, paged slots, states, a window pool and a host tier that orders and releases all correctly."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.events: list[Event] = []
        self.page = rng.choice((1, 4))
        self.row_agent = rng.choice(("sched", "sched", "host"))
        self.window = rng.random() < 0.4
        page = self.page
        self.free = {
            "row": Pages(1, list(range(1, ROWS))),
            "kv": Pages(page, list(range(1, KV_PAGES if page == 4 else KV_PAGES * 3))),
            "state": Pages(1, list(range(1, STATES))),
            "host": Pages(page, list(range(HOST_PAGES if page == 4 else HOST_PAGES * 3))),
            "swa": Pages(1, list(range(1, WINDOW_SLOTS))),
        }
        self.sizes = {
            "row": ROWS, "kv": (max(self.free["kv"].free) + 1) * page, "state": STATES,
            "host": (max(self.free["host"].free) + 1) * page, "swa": WINDOW_SLOTS, "stage": 2,
        }  # fmt: skip
        self.requests: dict[str, Request] = {}
        self.retracted: list[Request] = []
        self.sessions: dict[str, Request] = {}
        self.nodes: dict[str, CacheNode] = {}
        self.batches: list[tuple[str, list[str]]] = []
        self.moves: list[tuple[str, str]] = []
        """Copies of nodes to the host tier and back that are under way: transfer, node."""
        self.prefetches: dict[str, tuple[list[int], bool]] = {}
        self.groups: dict[str, list[int]] = {}
        self.staged = False
        self.number = 0
        self.declare()

    # --- events

    def emit(self, op: str, agent: str = "host", **fields: Any) -> None:
        told = {k.rstrip("_"): v for k, v in fields.items() if v is not None or k == "row"}
        event = {"op": op, **{k: list(v) if isinstance(v, list) else v for k, v in told.items()}}
        if agent != "host" or self.rng.random() < 0.5:
            event["agent"] = agent
        self.events.append({"i": len(self.events), **event})

    def fresh(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}{self.number}"

    def declare(self) -> None:
        page = self.page
        self.emit("pool", pool="row", kind="row", size=self.sizes["row"], page=1, reserved=[0])
        self.emit("pool", pool="kv", kind="kv", size=self.sizes["kv"], page=page, reserved=list(range(page)))
        self.emit("pool", pool="state", kind="state", size=self.sizes["state"], page=1, reserved=[0])
        self.emit("pool", pool="host", kind="host", size=self.sizes["host"], page=page, reserved=[])
        self.emit("pool", pool="stage", kind="staging", size=2, page=1, reserved=[])
        self.emit("pool", pool="swa", kind="kv", size=self.sizes["swa"], page=1, reserved=[0], init=True)
        self.emit("alloc", pool="stage", slots=[0, 1], owner="session:engine")

    def order(self, before: str, after: str) -> None:
        """What `after` does next comes after what `before` did so far."""
        if before == after:
            return
        if after == "host" and self.rng.random() < 0.3:
            self.emit("sync", on=before)
            return
        event = self.fresh("e")
        self.emit("record", before, event=event)
        if after == "host":
            how = self.rng.choice(("query", "sync", "wait"))
            if how == "query":
                if self.rng.random() < 0.3:
                    self.emit("query", event=event, ready=False)
                self.emit("query", event=event, ready=True)
            elif how == "sync":
                self.emit("sync", on=f"event:{event}")
            else:
                self.emit("wait", event=event)
        else:
            self.emit("wait", after, event=event)

    # --- slots

    def take(self, pool: str, count: int, owner: str | None) -> list[int]:
        """Allocates whole fresh pages for `count` slots; the slots named are the first ones."""
        pages = self.free[pool]
        page = pages.page
        taken = [pages.take(self.rng) for _ in range(-(-count // page))]
        slots = [p * page + k for p in taken for k in range(page)][:count]
        if owner is not None and not owner.startswith("tree:") and self.rng.random() < 0.15:
            self.emit("alloc", pool=pool, slots=slots)
            self.emit("own", pool=pool, slots=slots, owner=owner)
        else:
            self.emit("alloc", pool=pool, slots=slots, owner=owner)
        return slots

    def room(self, pool: str, count: int) -> bool:
        return len(self.free[pool].free) * self.free[pool].page >= count + self.free[pool].page

    def extend(self, r: Request, count: int) -> None:
        """More token slots: first the rest of the last page, then new pages."""
        fresh: list[int] = []
        while count and len(r.tokens) > r.shared and (r.tokens[-1] + 1) % self.page:
            r.tokens.append(r.tokens[-1] + 1)
            fresh.append(r.tokens[-1])
            count -= 1
        if fresh:
            named = None if self.rng.random() < 0.2 else r.name
            self.emit("alloc", pool="kv", slots=fresh, owner=named)
        if count:
            r.tokens += self.take("kv", count, r.name)

    def give_back(self, owner: str, pool: str, slots: list[int]) -> None:
        """Frees in one of the ways that a correct engine may choose."""
        if not slots:
            return
        pages = self.free[pool]
        choice = self.rng.random()
        if choice < 0.25 and len(slots) > 1:
            group, cut = self.fresh("g"), self.rng.randrange(1, len(slots))
            self.emit("free", pool=pool, slots=slots[:cut], owner=owner, group=group, dedup=True)
            second = slots[cut:] if pages.page == 1 or self.rng.random() < 0.5 else slots[cut - 1 :]
            self.emit("free", pool=pool, slots=second, owner=owner, group=group, dedup=True)
            if self.rng.random() < 0.5:
                self.emit("count", pool=pool, available=pages.slots())
            self.emit("flush", group=group)
        elif choice < 0.35:
            group = self.fresh("g")
            self.emit("free", pool=pool, slots=slots, owner=owner, group=group)
            self.emit("flush", group=group)
        else:
            self.emit("free", pool=pool, slots=slots, owner=owner if self.rng.random() < 0.9 else None)
        pages.give(slots)

    # --- requests

    def chain(self, name: str | None) -> list[CacheNode]:
        """The node and its ancestors, the root's side first."""
        found: list[CacheNode] = []
        while name is not None:
            found.insert(0, self.nodes[name])
            name = self.nodes[name].parent
        return found

    def admit(self) -> None:
        if not (self.room("row", 1) and self.room("state", 1) and self.room("kv", 12)):
            return
        if len(self.requests) > 3:
            return
        if self.retracted and self.rng.random() < 0.6:
            r = self.retracted.pop(0)
        else:
            r = Request(self.fresh("r"), ns=self.rng.choice((None, None, "lora:x")))
            self.emit("req_start", owner=r.name)
        r.steps_left = self.rng.randrange(1, 6)
        usable = [n for n in self.nodes.values() if n.ns == r.ns and all(c.slots for c in self.chain(n.name))]
        if usable and self.rng.random() < 0.8:
            self.share(r, self.rng.choice(usable).name)
        self.requests[r.name] = r
        r.row = self.take("row", 1, r.name)[0]
        r.state = self.take("state", 1, r.name)[0]
        self.extend(r, self.rng.randrange(1, 7))

    def share(self, r: Request, name: str) -> None:
        self.emit("match", owner=r.name, node=name, ns=r.ns)
        self.emit("lock", node=name, owner=r.name)
        self.nodes[name].locks += 1
        r.node = name
        for node in self.chain(name):
            self.emit("attach", pool="kv", slots=node.slots, owner=r.name, node=node.name)
            node.sharers.add(r.name)
            r.tokens += node.slots
        r.shared = r.computed = len(r.tokens)

    def unlock(self, r: Request) -> None:
        if r.node is not None:
            self.emit("unlock", node=r.node, owner=r.name)
            self.nodes[r.node].locks -= 1

    def unshare(self, r: Request, explicitly: bool) -> None:
        for node in self.chain(r.node):
            if explicitly:
                self.emit("free", pool="kv", slots=node.slots, owner=r.name)
            node.sharers.discard(r.name)

    def write_row(self, r: Request, upto: int) -> None:
        """Brings the row up to date, after every capture of it."""
        self.order("fwd", self.row_agent)
        slots = r.tokens[r.written : upto]
        if self.rng.random() < 0.2 and r.written:
            r.written -= 1
            slots = r.tokens[r.written : upto]
        if slots:
            self.emit("row_write", self.row_agent, pool="row", row=r.row, pos=r.written, into="kv", slots=slots,
                      owner=r.name)  # fmt: skip
        r.written = upto

    def step(self) -> None:
        """One batch: rows are written, captured and launched, the new tokens and states are written."""
        chosen = [r for r in self.requests.values() if r.steps_left > 0 and self.room("kv", 3) and self.room("swa", 6)]
        if not chosen:
            return
        chosen = self.rng.sample(chosen, self.rng.randrange(1, len(chosen) + 1))
        batch = self.fresh("b")
        for r in chosen:
            r.steps_left -= 1
            if r.computed >= len(r.tokens):
                self.extend(r, 1)
            elif r.computed > r.shared:
                self.emit("reuse", pool="row", slots=[r.row], owner=r.name)
            upto = len(r.tokens) if self.rng.random() < 0.7 else min(len(r.tokens), r.computed + 2)
            self.write_row(r, upto)
        self.order(self.row_agent, "fwd")
        for r in chosen:
            self.emit("capture", "fwd", batch=batch, pool="row", row=r.row, upto=r.written, owner=r.name)
            r.outstanding.append(batch)
        if self.rng.random() < 0.3:
            self.emit("capture", "fwd", batch=batch, pool="row", row=0, from_=0, upto=1)
            self.emit("read", "fwd", pool="state", slots=[0], batch=batch)
            self.emit("write", "fwd", pool="state", slots=[0], batch=batch)
        if self.window:
            self.take_window(chosen)
        self.emit("launch", "fwd", batch=batch, owner=chosen[0].name)
        for r in chosen:
            self.compute(r, batch)
        self.batches.append((batch, [r.name for r in chosen]))

    def take_window(self, chosen: list[Request]) -> None:
        for r in chosen:
            new = [t for t in r.tokens[r.shared : r.written] if t not in r.windowed][:4]
            if new and self.room("swa", len(new)):
                slots = self.take("swa", len(new), r.name)
                self.emit("map_set", map="f2s", key=new, val=slots)
                r.windowed.update(zip(new, slots, strict=True))
                self.emit("write", "fwd", pool="swa", slots=slots, owner=r.name)

    def compute(self, r: Request, batch: str) -> None:
        new = r.tokens[max(r.computed, r.shared) : r.written]
        if new:
            self.emit("write", "fwd", pool="kv", slots=new, owner=r.name, batch=batch)
        r.computed = max(r.computed, r.written)
        if r.windowed:
            self.emit("read", "fwd", pool="swa", slots=list(r.windowed.values()), owner=r.name, batch=batch)
        if r.state_written:
            self.emit("read", "fwd", pool="state", slots=[r.state], owner=r.name, batch=batch)
        self.emit("write", "fwd", pool="state", slots=[r.state], owner=r.name, batch=batch)
        r.state_written = True

    def pass_window(self, r: Request) -> None:
        """The window moves on: the oldest window slots are freed through the map."""
        if len(r.windowed) > 2:
            keys = list(r.windowed)[:2]
            self.emit("free", pool="swa", map="f2s", keys=keys, owner=r.name)
            self.emit("map_clear", map="f2s", key=keys)
            self.free["swa"].give([r.windowed.pop(k) for k in keys])

    def collect(self) -> None:
        """The host sees the oldest batch finish."""
        if not self.batches:
            return
        batch, names = self.batches.pop(0)
        self.emit("done", batch=batch)
        for name in names:
            if name in self.requests and batch in self.requests[name].outstanding:
                self.requests[name].outstanding.remove(batch)

    def release(self, r: Request, keep: int) -> None:
        """Gives back what the request holds, but its first `keep` positions, which are not its own any more."""
        self.give_back(r.name, "kv", r.tokens[max(keep, r.shared) :])
        if r.windowed:
            self.emit("free", pool="swa", map="f2s", keys=list(r.windowed), owner=r.name)
            self.emit("map_clear", map="f2s", key=list(r.windowed))
            self.free["swa"].give(list(r.windowed.values()))
        if r.state >= 0:
            self.give_back(r.name, "state", [r.state])
        self.give_back(r.name, "row", [r.row])
        self.unlock(r)
        self.unshare(r, self.rng.random() < 0.5)

    def end(self, r: Request) -> None:
        del self.requests[r.name]
        self.emit("req_end", owner=r.name)

    def donate(self, r: Request) -> int:
        """Inserts the computed whole pages under the request's node; returns how many positions are the cache's."""
        upto = r.computed // self.page * self.page
        # The last page is inserted as a whole only if all of its slots are tokens.
        if upto <= r.shared:
            return r.shared
        name = self.fresh("n")
        node = CacheNode(name, r.node, r.ns, r.tokens[r.shared : upto])
        self.nodes[name] = node
        self.emit("insert", pool="kv", slots=node.slots, owner=r.name, node=name, parent=r.node, ns=r.ns, key=name)
        if r.state >= 0 and r.state_written and self.rng.random() < 0.3:
            self.emit("insert", pool="state", slots=[r.state], owner=r.name, node=name, ns=r.ns)
            node.state, r.state = r.state, -1
        return upto

    def finish(self, r: Request) -> None:
        self.emit("req_finish", owner=r.name)
        keep = self.donate(r) if self.rng.random() < 0.6 else r.shared
        self.release(r, keep)
        self.end(r)

    def abort(self, r: Request) -> None:
        self.emit("req_abort", owner=r.name)
        self.release(r, r.shared)
        self.end(r)

    def retract(self, r: Request) -> None:
        self.emit("req_retract", owner=r.name)
        self.release(r, r.shared)
        if self.rng.random() < 0.5:
            self.emit("kv_record", owner=r.name, row=None, allocated=0, committed=0, protected=0)
        # The shares must be over before it runs again: what is shared twice would be freed once.
        for node in self.chain(r.node):
            node.sharers.discard(r.name)
        del self.requests[r.name]
        if r.node is None:
            self.retracted.append(Request(r.name, ns=r.ns))
        else:
            self.emit("req_end", owner=r.name)

    def cache_chunk(self, r: Request) -> None:
        """A running request inserts what it has computed, and goes on as a sharer."""
        if r.state < 0 or r.windowed:
            return
        state, r.state_written = r.state_written, False
        before, upto = r.shared, self.donate(r)
        r.state_written = state
        if upto == before:
            return
        name = next(reversed(self.nodes))
        node = self.nodes[name]
        self.emit("attach", pool="kv", slots=node.slots, owner=r.name, node=name)
        node.sharers.add(r.name)
        self.emit("lock", node=name, owner=r.name)
        node.locks += 1
        self.unlock(r)
        r.node, r.shared = name, upto

    def trim(self, r: Request) -> None:
        """Gives back slots that were allocated ahead; nothing has captured them."""
        keep = -(-max(r.written, r.computed) // self.page) * self.page
        if keep < len(r.tokens) and keep >= r.shared:
            self.give_back(r.name, "kv", r.tokens[keep:])
            del r.tokens[keep:]

    def record(self, r: Request) -> None:
        if not r.written:
            return
        self.emit("kv_record", owner=r.name, row=r.row, allocated=-(-r.written // self.page) * self.page,
                  committed=min(r.computed, r.written), protected=min(r.shared, r.written))  # fmt: skip

    # --- sessions, the cache, the host tier

    def to_session(self, r: Request) -> None:
        if r.node is not None or r.windowed or r.outstanding or r.state < 0 or not r.state_written:
            return
        name = self.fresh("session:")
        self.emit("req_finish", owner=r.name)
        for pool, slots in (("row", [r.row]), ("kv", r.tokens), ("state", [r.state])):
            self.emit("give", pool=pool, slots=slots, owner=r.name, to=name)
        self.end(r)
        self.sessions[name] = r

    def from_session(self) -> None:
        name = self.rng.choice(list(self.sessions))
        s = self.sessions.pop(name)
        if self.rng.random() < 0.5:
            self.give_back(name, "kv", s.tokens)
            self.give_back(name, "row", [s.row])
            self.give_back(name, "state", [s.state])
            self.emit("req_end", owner=name)
            return
        r = Request(self.fresh("r"), s.ns, s.row, s.state, s.tokens, written=s.written, computed=s.computed,
                    state_written=True, steps_left=2)  # fmt: skip
        self.emit("req_start", owner=r.name)
        for pool, slots in (("row", [r.row]), ("kv", r.tokens), ("state", [r.state])):
            self.emit("give", pool=pool, slots=slots, owner=name, to=r.name)
        self.emit("req_end", owner=name)
        self.requests[r.name] = r

    def busy(self, node: CacheNode) -> bool:
        moving = any(name == node.name for _, name in self.moves)
        return moving or bool(node.sharers) or node.locks > 0 or any(n.parent == node.name for n in self.nodes.values())

    def evict(self) -> None:
        idle = [n for n in self.nodes.values() if not self.busy(n)]
        if not idle:
            return
        node = self.rng.choice(idle)
        if node.host and node.slots and self.rng.random() < 0.5:
            self.emit("evict", pool="kv", slots=node.slots)
            self.free["kv"].give(node.slots)
            node.slots = []
            return
        self.emit("evict", node=node.name)
        self.free["kv"].give(node.slots)
        self.free["host"].give(node.host)
        if node.state >= 0:
            self.free["state"].give([node.state])
        del self.nodes[node.name]

    def split(self) -> None:
        able = [
            n for n in self.nodes.values()
            if len(n.slots) >= 2 * self.page and not n.host and n.state < 0 and all(m[1] != n.name for m in self.moves)
        ]  # fmt: skip
        if not able:
            return
        node = self.rng.choice(able)
        cut = self.rng.randrange(1, len(node.slots) // self.page) * self.page
        child = CacheNode(self.fresh("n"), node.parent, node.ns, node.slots[:cut], sharers=set(node.sharers))
        self.emit("split", node=node.name, child=child.name, slots=child.slots)
        node.slots, node.parent = node.slots[cut:], child.name
        self.nodes[child.name] = child

    def offload(self) -> None:
        able = [n for n in self.nodes.values() if n.slots and not n.host and self.room("host", len(n.slots))]
        if not able:
            return
        node, xfer = self.rng.choice(able), self.fresh("x")
        self.emit("lock", node=node.name)
        node.locks += 1
        node.host = self.take("host", len(node.slots), f"tree:{node.name}")
        self.order("fwd", "copy")
        self.emit(
            "xfer_begin", "copy", xfer=xfer, pool="kv", slots=node.slots, owner=f"tree:{node.name}", access="read"
        )
        self.emit("xfer_begin", "copy", xfer=xfer, pool="host", slots=node.host, owner=f"tree:{node.name}",
                  access="write")  # fmt: skip
        self.moves.append((xfer, node.name))

    def load_back(self) -> None:
        able = [n for n in self.nodes.values() if n.host and not n.slots and self.room("kv", len(n.host))]
        if not able:
            return
        node, xfer = self.rng.choice(able), self.fresh("x")
        self.emit("lock", node=node.name)
        node.locks += 1
        node.slots = self.take("kv", len(node.host), f"tree:{node.name}")
        self.order("fwd", "copy")
        self.emit("xfer_begin", "copy", xfer=xfer, pool="host", slots=node.host, owner=f"tree:{node.name}",
                  access="read")  # fmt: skip
        self.emit(
            "xfer_begin", "copy", xfer=xfer, pool="kv", slots=node.slots, owner=f"tree:{node.name}", access="write"
        )
        # Until the copy is over nobody may match it, so it is over at once.
        self.end_move(xfer, node)

    def end_move(self, xfer: str, node: CacheNode) -> None:
        self.emit("xfer_end", xfer=xfer)
        self.emit("unlock", node=node.name)
        node.locks -= 1

    def finish_move(self) -> None:
        if self.moves:
            xfer, name = self.moves.pop(0)
            self.end_move(xfer, self.nodes[name])

    def prefetch(self) -> None:
        """A second host thread reads from storage into host slots and hands them over through a queue."""
        done = [name for name, (_, ended) in self.prefetches.items() if ended]
        if done:
            name = done[0]
            slots, _ = self.prefetches.pop(name)
            self.order("host:io", "host")
            if self.rng.random() < 0.5:
                node = CacheNode(self.fresh("n"), None, None, host=slots)
                self.nodes[node.name] = node
                self.emit("insert", pool="host", slots=slots, owner=name, node=node.name)
            else:
                self.give_back(name, "host", slots)
            self.emit("req_end", owner=name)
        elif self.room("host", 4):
            name = self.fresh("prefetch:")
            slots = self.take("host", self.page * self.rng.randrange(1, 3), name)
            self.order("copy", "host")
            self.order("host", "host:io")
            xfer = self.fresh("x")
            self.emit(
                "xfer_begin", "io", xfer=xfer, pool="host", slots=slots, owner=name, access="write", via="host:io"
            )
            self.emit("xfer_end", "host:io", xfer=xfer)
            self.prefetches[name] = (slots, True)

    def send(self, r: Request) -> None:
        """The NIC sends what a request has computed; its slots stay until the transfer is over."""
        own = r.tokens[r.shared : r.computed]
        if own:
            xfer = self.fresh("x")
            self.order("fwd", "nic")
            self.emit("xfer_begin", "nic", xfer=xfer, pool="kv", slots=own, owner=r.name, access="read")
            self.emit("xfer_end", xfer=xfer)

    def refill_staging(self) -> None:
        """The host fills a buffer that a stream has finished reading."""
        if self.staged:
            self.order("fwd", "host")
        self.emit("write", pool="stage", slots=[self.rng.randrange(2)])
        self.emit("read", "fwd", pool="stage", slots=[0, 1])
        self.staged = True

    def count(self) -> None:
        kv = self.free["kv"].slots()
        cached = sum(len(n.slots) for n in self.nodes.values())
        protected = sum(len(n.slots) for n in self.nodes.values() if n.locks)
        whole = {s // self.page for r in self.sessions.values() for s in r.tokens}
        self.emit("count", pool="kv", available=kv, evictable=cached - protected, protected=protected,
                  total=self.sizes["kv"] - self.page, session=len(whole) * self.page)  # fmt: skip
        if self.rng.random() < 0.3:
            held = sum(len(n.host) for n in self.nodes.values())
            self.emit("count", pool="host", available=self.free["host"].slots(), evictable=held, protected=0,
                      total=self.sizes["host"])  # fmt: skip

    def drain(self) -> None:
        """Everything ends; what is left is cached or a session's."""
        while self.batches:
            self.collect()
        while self.moves:
            self.finish_move()
        while self.prefetches:
            self.prefetch()
        for r in list(self.requests.values()):
            self.finish(r)
        for r in self.retracted:
            self.emit("req_abort", owner=r.name)
            self.emit("req_end", owner=r.name)
        self.retracted.clear()
        self.emit("idle")

    def reset(self) -> None:
        self.drain()
        while self.sessions:
            self.from_session()
        for r in list(self.requests.values()):
            self.abort(r)
        self.emit("idle")
        while self.nodes and any(not self.busy(n) for n in self.nodes.values()) and self.rng.random() < 0.8:
            self.evict()
        for pool in ("kv", "host", "state"):
            self.emit("reset", pool=pool)
            page = self.free[pool].page
            first = 0 if pool == "host" else 1
            self.free[pool].free = list(range(first, self.sizes[pool] // page))
        self.nodes.clear()

    def act(self) -> None:
        rng, live = self.rng, list(self.requests.values())
        simple = [
            self.admit, self.admit, self.step, self.step, self.step, self.collect, self.collect, self.evict, self.split,
            self.split, self.offload, self.finish_move, self.load_back, self.prefetch, self.refill_staging, self.count,
        ]  # fmt: skip
        if self.sessions:
            simple.append(self.from_session)
        if live and rng.random() < 0.5:
            r = rng.choice(live)
            ending = [self.finish, self.abort, self.retract, self.to_session]
            running = [self.cache_chunk, self.trim, self.record, self.send, self.pass_window, self.trim]
            if r.steps_left <= 0 or rng.random() < 0.1:
                rng.choice(ending)(r)
            else:
                rng.choice(running)(r)
        else:
            rng.choice(simple)()
        if rng.random() < 0.1:
            self.emit("step")
        if rng.random() < 0.005:
            self.drain()
        if rng.random() < 0.002:
            self.reset()


def random_trace(seed: int, size: int) -> list[Event]:
    """The events of an engine's life, about `size` of them, that no rule is broken by; it ends idle."""
    engine = Engine(seed)
    while len(engine.events) < size:
        engine.act()
    engine.drain()
    return engine.events


# --- Mutations --------------------------------------------------------------------------------------------------------


def pools_of(trace: list[Event]) -> dict[str, Event]:
    return {e["pool"]: e for e in trace if e["op"] == "pool"}


def reindexed(trace: list[Event]) -> list[Event]:
    return [{**e, "i": i} for i, e in enumerate(trace)]


def change_field(rng: Random, event: Event, pools: dict[str, Event], owners: list[str]) -> None:
    """Puts another owner, slot, row, agent or answer into one event."""
    able = [
        name for name in ("owner", "slots", "row", "agent", "ready", "upto", "dedup", "ns", "node") if name in event
    ]
    if not able:
        event["agent"] = "copy" if event["op"] in ("read", "write", "record", "wait") else "host"
        return
    name = rng.choice(able)
    if name == "owner":
        event["owner"] = rng.choice(owners)
    elif name == "slots" and event["slots"]:
        pool = event.get("into") or event.get("pool") or "kv"
        slots = list(event["slots"])
        slots[rng.randrange(len(slots))] = rng.randrange(pools[pool]["size"])
        event["slots"] = slots
    elif name == "row" and event["row"] is not None:
        event["row"] = rng.randrange(pools["row"]["size"])
    elif name == "agent":
        event["agent"] = rng.choice(("host", "host:io", "fwd", "copy"))
    elif name == "ready":
        event["ready"] = not event["ready"]
    elif name == "upto":
        event["upto"] = max(0, event["upto"] + rng.choice((-1, 1)))
    elif name == "ns":
        event["ns"] = rng.choice(("lora:x", "lora:y"))
    elif name == "dedup":
        event["dedup"] = not event["dedup"]
    elif name == "node":
        event["node"] = f"n{rng.randrange(1, 60)}"


def mutate(trace: list[Event], seed: int) -> list[Event]:
    """The trace with one to three things done wrong; the declarations of pools stay, so that it can still be judged."""
    rng = Random(seed)
    pools = pools_of(trace)
    first = next(k for k, e in enumerate(trace) if e["op"] != "pool")
    events = copy.deepcopy(trace)
    owners = sorted({e["owner"] for e in events if e.get("owner")}) or ["r1"]

    def pick(*ops: str) -> int:
        able = [k for k in range(first, len(events)) if not ops or events[k]["op"] in ops]
        return rng.choice(able) if able else rng.randrange(first, len(events))

    for _ in range(rng.randrange(1, 4)):
        if len(events) - first < 4:
            break
        kind = rng.randrange(10)
        if kind == 0:
            del events[pick()]
        elif kind == 1:
            at = pick()
            events.insert(at + 1, copy.deepcopy(events[at]))
        elif kind == 2:
            at = rng.randrange(first, len(events) - 1)
            events[at], events[at + 1] = events[at + 1], events[at]
        elif kind == 3:
            del events[pick("wait", "sync", "query", "done", "xfer_end", "record")]
        elif kind == 4:
            at = pick("free", "evict", "req_end", "insert")
            events.insert(max(first, at - rng.randrange(1, 12)), events.pop(at))
        elif kind == 5:
            del events[pick("free", "evict", "unlock", "flush", "req_finish", "map_clear", "row_write")]
        elif kind == 6:
            at = pick("free", "unlock", "evict", "insert", "alloc")
            events.insert(min(len(events), at + rng.randrange(1, 12)), copy.deepcopy(events[at]))
        elif kind == 7:
            at = pick("record", "wait", "launch", "capture", "done")
            events.insert(min(len(events) - 1, at + rng.randrange(1, 6)), events.pop(at))
        else:
            change_field(rng, events[pick()], pools, owners)
    return reindexed(events)


# --- Noise ------------------------------------------------------------------------------------------------------------

SOUP_POOLS: tuple[Event, ...] = (
    {"op": "pool", "pool": "row", "kind": "row", "size": 3, "page": 1, "reserved": [0]},
    {"op": "pool", "pool": "kv", "kind": "kv", "size": 6, "page": 1, "reserved": [0]},
    {"op": "pool", "pool": "paged", "kind": "kv", "size": 8, "page": 2, "reserved": [0, 1]},
    {"op": "pool", "pool": "state", "kind": "state", "size": 4, "page": 1, "reserved": [0]},
)
SOUP_OPS = (
    "alloc", "alloc", "alloc", "alloc", "own", "give", "reuse", "free", "free", "free", "flush", "insert", "insert",
    "attach", "evict", "split", "match", "lock", "unlock", "row_write", "row_write", "capture", "capture", "launch",
    "launch", "done", "read", "write", "write", "xfer_begin", "xfer_end", "record", "wait", "query", "sync",
    "map_set", "map_clear", "req_finish", "req_end", "req_retract", "req_start", "kv_record", "count", "idle", "step",
    "reset", "req_abort",
)  # fmt: skip


def soup_event(rng: Random, op: str) -> Event:
    """One event of the operation with random small operands."""
    pool = rng.choice(SOUP_POOLS)
    owner = rng.choice(("A", "B", "session:S"))
    node, batch = rng.choice(("n1", "n2", "n3")), rng.choice(("b1", "b2"))
    agent = rng.choice(("host", "fwd", "copy"))

    def slots(of: Event, most: int = 3) -> list[int]:
        return [rng.randrange(of["size"]) for _ in range(rng.randrange(1, most + 1))]

    def usual(of: Event) -> list[int]:
        first = len(of["reserved"])
        return rng.sample(range(first, of["size"]), rng.randrange(1, min(3, of["size"] - first) + 1))

    event: Event = {"op": op}
    if op in ("read", "write", "record", "wait", "capture", "launch", "row_write", "xfer_begin"):
        event["agent"] = agent if rng.random() < 0.9 else "host:x"
    if op in ("alloc", "own", "give", "reuse", "free", "insert", "attach", "read", "write", "xfer_begin"):
        event |= {"pool": pool["pool"], "slots": usual(pool) if rng.random() < 0.85 else slots(pool), "owner": owner}
    if op in ("alloc", "free") and rng.random() < 0.15:
        del event["owner"]
    if op == "alloc" and rng.random() < 0.1:
        event["owner"] = f"tree:{node}"
    if op == "give":
        event["to"] = rng.choice(("A", "B", "session:S"))
    if op == "free":
        if rng.random() < 0.2:
            event |= {"group": rng.choice(("g1", "g2")), "dedup": rng.random() < 0.5}
        elif rng.random() < 0.1:
            del event["slots"]
            event |= {"map": "m", "keys": [rng.randrange(4)]}
    if op == "flush":
        event["group"] = rng.choice(("g1", "g2"))
    if op in ("insert", "attach", "lock", "unlock", "match"):
        event["node"] = node
    if op in ("lock", "unlock", "match") and rng.random() < 0.6:
        event["owner"] = owner
    if op == "match":
        event["owner"] = owner
    if op in ("match", "insert") and rng.random() < 0.3:
        event["ns"] = "x"
    if op == "insert" and rng.random() < 0.3:
        event["parent"] = rng.choice(("n1", "n2", "n3"))
    if op == "evict":
        event |= {"node": node} if rng.random() < 0.7 else {"pool": pool["pool"], "slots": slots(pool)}
    if op == "split":
        event |= {"node": node, "child": rng.choice(("c1", "c2")), "slots": slots(SOUP_POOLS[1])}
    if op == "row_write":
        event |= {"pool": "row", "row": rng.choice((1, 2, 2, 1, 0)), "pos": rng.randrange(3), "owner": owner}
        into = rng.choice(SOUP_POOLS[1:3])
        event |= {"into": into["pool"], "slots": usual(into)}
    if op == "capture":
        start = rng.randrange(2)
        event |= {"batch": batch, "pool": "row", "row": rng.choice((1, 2, 1, 2, 0)), "from": start}
        event |= {"upto": start + rng.randrange(1, 3), "owner": owner}
    if op in ("launch", "done"):
        event["batch"] = batch
    if op in ("read", "write") and rng.random() < 0.3:
        event["batch"] = batch
    if op in ("xfer_begin", "xfer_end"):
        event["xfer"] = rng.choice(("x1", "x2"))
    if op == "xfer_begin":
        event["access"] = rng.choice(("read", "write"))
    if op in ("record", "wait", "query"):
        event["event"] = rng.choice(("e1", "e2"))
    if op == "query":
        event["ready"] = rng.random() < 0.7
    if op == "sync":
        event["on"] = rng.choice(("fwd", "copy", "event:e1"))
    if op in ("map_set", "map_clear"):
        event |= {"map": "m", "key": rng.randrange(4)}
    if op == "map_set":
        event["val"] = rng.randrange(6)
    if op.startswith("req_"):
        event["owner"] = owner
    if op == "kv_record":
        row = rng.choice((None, 1, 2))
        event |= {"owner": owner, "row": row, "allocated": rng.randrange(4), "committed": rng.randrange(3)}
        event |= {"protected": rng.randrange(3)}
    if op == "reset":
        event["pool"] = pool["pool"]
    if op == "count":
        event |= {"pool": pool["pool"], "available": rng.randrange(6), "evictable": 0, "protected": rng.randrange(3)}
        event |= {"total": pool["size"] - len(pool["reserved"])}
    return event


class Guide:
    """A rough idea of who holds what, so that noise gets further than the first event that cannot be right."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.held: dict[tuple[str, int], str] = {}
        self.cells: dict[int, int] = {}
        self.locks: list[tuple[str, str | None]] = []

    def pages(self, pool: Event, owner: str | None) -> list[list[int]]:
        """The pages of the pool that the owner holds (None: that nobody does), reserved ones aside."""
        page = pool["page"]
        starts = range(len(pool["reserved"]), pool["size"], page)
        return [list(range(s, s + page)) for s in starts if self.held.get((pool["pool"], s)) == owner]

    def sensible(self, event: Event) -> Event | None:
        """The event with operands that may be right, or None where there are none."""
        op, rng = event["op"], self.rng
        pool = next((p for p in SOUP_POOLS if p["pool"] == event.get("into", event.get("pool"))), SOUP_POOLS[1])
        holders = sorted({h for (p, _), h in self.held.items() if p == pool["pool"]})
        owner = rng.choice(holders) if holders else None
        if op == "alloc":
            wanted = self.pages(pool, None)
        elif op in ("give", "reuse", "free", "insert", "attach", "read", "write", "xfer_begin", "row_write"):
            if owner is None or "keys" in event:
                return None
            if op == "attach" and not owner.startswith("tree:"):
                return None
            wanted = self.pages(pool, owner)
        elif op == "evict":
            nodes = sorted({h for h in self.held.values() if h.startswith("tree:")})
            return {"op": op, "node": rng.choice(nodes)[5:]} if nodes else None
        elif op == "capture":
            rows = [row for row in self.cells if self.held.get(("row", row)) is not None]
            if not rows:
                return None
            row = rng.choice(rows)
            upto = rng.randrange(1, self.cells[row] + 1)
            return event | {"row": row, "from": rng.randrange(upto), "upto": upto, "owner": self.held[("row", row)]}
        elif op == "unlock":
            if not self.locks:
                return None
            node, locker = rng.choice(self.locks)
            return {"op": op, "node": node} | ({"owner": locker} if locker else {})
        elif op in ("req_end", "idle"):
            return event if rng.random() < 0.3 else None
        elif op == "count":
            return {"op": op, "pool": pool["pool"], "total": pool["size"] - len(pool["reserved"])}
        else:
            return event
        if not wanted:
            return None
        slots = [s for page in rng.sample(wanted, rng.randrange(1, min(2, len(wanted)) + 1)) for s in page]
        if rng.random() < 0.3:
            slots = slots[: max(1, len(slots) - 1)]
        event = event | {"slots": slots}
        if op == "row_write":
            rows = [r for r in (1, 2) if self.held.get(("row", r)) is not None]
            if not rows:
                return None
            event |= {"row": rng.choice(rows), "pos": 0 if rng.random() < 0.5 else event["pos"]}
        elif op == "attach":
            event |= {"node": str(owner)[5:]}
        elif op != "alloc" and op not in ("read", "write", "xfer_begin"):
            event |= {"owner": owner}
        return event

    def learn(self, event: Event) -> None:
        """What the event makes of it, taken at its word."""
        op, pool = event["op"], event.get("pool", "")
        page = next((p["page"] for p in SOUP_POOLS if p["pool"] == pool), 1)
        touched = [s // page * page + k for s in event.get("slots", []) for k in range(page)]
        if op in ("alloc", "give", "insert", "own"):
            to = event.get("to") or (f"tree:{event['node']}" if op == "insert" else event.get("owner", "?"))
            self.held.update({(pool, s): to for s in touched})
        elif op == "free" and event.get("owner") in {self.held.get((pool, s)) for s in touched}:
            for s in touched:
                self.held.pop((pool, s), None)
        elif op == "evict":
            gone = f"tree:{event.get('node')}"
            self.held = {k: v for k, v in self.held.items() if v != gone and not (k[0] == pool and k[1] in touched)}
        elif op == "reset":
            self.held = {k: v for k, v in self.held.items() if k[0] != pool}
        elif op == "split":
            for key in [("kv", s) for s in event["slots"]]:
                if self.held.get(key) == f"tree:{event['node']}":
                    self.held[key] = f"tree:{event['child']}"
        elif op == "row_write":
            self.cells[event["row"]] = max(self.cells.get(event["row"], 0), event["pos"] + len(event["slots"]))
        elif op == "lock":
            self.locks.append((event["node"], event.get("owner")))
        elif op == "unlock" and (event["node"], event.get("owner")) in self.locks:
            self.locks.remove((event["node"], event.get("owner")))


def random_soup(seed: int, size: int) -> list[Event]:
    """`size` events without any plan over tiny pools, three owners and three agents.

    Some seeds are pure noise; in the others most events have operands that may be right.
    """
    rng = Random(seed)
    guide, sense = Guide(rng), rng.choice((0.0, 0.8, 0.95, 0.99))
    events: list[Event] = [dict(pool) for pool in SOUP_POOLS]
    # A run that has few kinds of operation goes deeper into those.
    ops = SOUP_OPS if rng.random() < 0.6 else (*rng.sample(SOUP_OPS, 14), "alloc", "alloc", "free", "row_write")
    while len(events) < size:
        op = rng.choice(ops)
        if op == "reset" and rng.random() < 0.8:
            continue
        event: Event | None = soup_event(rng, op)
        if event is not None and rng.random() < sense:
            event = guide.sensible(event)
        if event is not None:
            events.append(event)
            guide.learn(event)
    return reindexed(events)
