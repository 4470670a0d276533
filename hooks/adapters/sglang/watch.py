"""What the adapter knows of one scheduler: its pools, who owns which row, and what the engine is doing right now."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsan.findings import Failure

from ...late import Reading
from ...sanitizer import Sanitizer
from .. import readback
from ..probes import Resolved, missing

Slots = npt.NDArray[np.int64]

ROWS, KV, WINDOW, STATES, HOST = "rows", "kv", "swa", "states", "host"

NONE: Slots = np.empty(0, np.int64)


@dataclass(slots=True)
class Doing:
    """A call of the engine that says what the calls inside it are for.

    `what`: extend, decode, ahead, run, publish, evict, replace, release, session, row, admit, consider, slide, beam,
    backup, load, idle; `owner` on whose behalf; `batch` the engine's batch (decode, run); `prefix` prefix lengths by
    row (extend); `runs` the cells that are written (ahead); `values` and `domain` what is inserted in which key domain
    (publish, load).
    """

    what: str
    owner: str | None = None
    batch: Any = None
    prefix: dict[int, int] = field(default_factory=dict)
    runs: Any = ()
    values: Slots | Reading | None = None
    domain: str | None = None


@dataclass(slots=True)
class Group:
    """A free group that is open: what was given back in it, and by whom (None: the cache). `pending`: was anything, in
    any pool? Mostly nothing is: one is open around every batch's results."""

    name: str
    given: list[tuple[Slots, str | None]] = field(default_factory=list)
    pending: bool = False


class Within:
    """A context in which something is done; a generator for it would cost three times as much in every call."""

    __slots__ = ("_doing", "_stack")

    def __init__(self, stack: list[Doing], doing: Doing) -> None:
        self._stack, self._doing = stack, doing

    def __enter__(self) -> Doing:
        self._stack.append(self._doing)
        return self._doing

    def __exit__(self, *error: object) -> None:
        self._stack.pop()


def counts(numbers: Slots) -> list[tuple[int, int]]:
    """The numbers and how often each occurs, ascending; mostly all are one."""
    if not numbers.size:
        return []
    first = int(numbers[0])
    if not np.count_nonzero(numbers != first):
        return [(first, numbers.size)]
    found, often = np.unique(numbers, return_counts=True)
    return list(zip(found.tolist(), often.tolist(), strict=True))


def all_inside(slots: Slots, size: int) -> bool:
    """Are these ids of a pool of that size, and is there one? Negative ones are huge as unsigned ones."""
    return bool(slots.size) and int(np.maximum.reduce(slots.view(np.uint64))) < size


class Watch:
    """The adapter's own state. Everything here is about one scheduler, and only its main thread gets here.

    Slot ids on a device come later than the call that they are about (`take`, `then`). So there are two times: what the
    engine does, whose rows and records there are, is known at the call; the slots of nodes, groups and sharers, and who
    lives in the shadow, only where the ids are there, in what is given to `then`.
    """

    caches: tuple[str, ...] = ("UnifiedRadixCache", "ChunkCache")
    """The prefix caches whose slots are followed; the latter, of releases up to 0.5.21, keeps nothing."""
    sessions = True
    """Whether what a streaming session keeps is followed."""

    def __init__(self, sanitizer: Sanitizer) -> None:
        self.blind = True
        self.san = sanitizer
        self.slots = False
        """Whether slot ids are followed; else only rows are watched."""
        self.readback: readback.Copies | None = None
        """What copies slot ids from a device; None where they are on the host."""
        self.scheduler: Any = None
        self.rows: Any = None
        self.kv: Any = None
        self.tree: Any = None
        self.window: Any = None
        """The sliding window (`window.Window`), where there is one."""
        self.host: Any = None
        """The host tier (`host.Host`), where there is one."""
        self.states: Any = None
        """The recurrent states (`states.States`), where there are any."""
        self.page = 1
        self.doing: list[Doing] = []
        self.owner_of_row: dict[int, str] = {}
        self.owner_of_record: dict[int, str] = {}
        """By the id of the engine's record (`ReqKvInfo`) of what a request or session holds."""
        self.live: set[str] = set()
        """Owners that have begun and not ended."""
        self.living: set[str] = set()
        """The same, as far as the shadow is."""
        self.arriving: set[str] = set()
        """Transfers from other servers that are under way."""
        self.sending: dict[int, tuple[Any, Any]] = {}
        """Transfers to other servers that are under way, by the id of the engine's sender: that, and what is sent
        (`disaggregation.Sent`)."""
        self.beaming: set[str] = set()
        """Requests with several rows, whose cells are not told."""
        self.aborted: set[str] = set()
        """Requests that were aborted outside of a batch and have yet to give back what they hold."""
        self.shared: dict[str, list[Slots]] = {}
        """Slots of the tree that an owner uses, by owner, as they were attached."""
        self.node_of: npt.NDArray[np.int64] = NONE
        """For every token slot the number in `nodes` of the tree node that holds it; 0 is none."""
        self.nodes: list[str] = [""]
        self.node_numbers: dict[str, int] = {}
        self.node_spare: list[int] = []
        self.node_slots: dict[str, int] = {}
        self.node_locks: dict[str, int] = {}
        self.streams: dict[int, str] = {}
        self.thread = threading.get_ident()
        self.ahead = False
        """Whether the cells that drafts stand in are told when they are taken; who judges them then captures them."""
        self.freeing = 0
        self.rowing = 0
        self.group: Group | None = None
        self.groups = 0
        self.told_at_step = -1
        self.told_at_idle = -1
        self.claimed: dict[str, tuple[int, ...]] = {}
        self.batch: str | None = None
        self.launched = True
        self.found: list[Resolved] = []
        self._told: set[str] = set()
        self._marks: Slots = NONE
        self._mark = 0

    # -- telling

    def failed(self, where: str, error: Exception) -> None:
        """A reader failed: nothing is watched any more."""
        self._stop(where, f"{type(error).__name__}: {error}")

    def give_up(self, why: str) -> None:
        """Something begins that is not followed: the shadow would be wrong from here on, so nothing is judged."""
        self._stop("SGLang adapter", why)

    def _stop(self, where: str, why: str) -> None:
        self.blind = True
        self.san.stop_judging_ends()
        self.complain(where, why, "nothing of SGLang is watched any more in this process")

    def complain(self, where: str, error: str, cost: str) -> None:
        """Tells a failure of the adapter, once."""
        self.san.fail(Failure(where, error, cost, os.getpid()))

    def note(self, text: str) -> None:
        """Tells a sentence that a person must read, once."""
        if text not in self._told:
            self._told.add(text)
            self.san.note(text)

    def watch_rows_only(self, why: str) -> None:
        """Token slots cannot be followed, and why; before the first pool is declared."""
        self.san.watch_rows_only(f"SGLang: only rows are watched, not token slots: {why}.")

    def check(self) -> None:
        """Are the probes still where they were put? SGLang swallows its plugins' errors, and plugins replace things."""
        for each in missing(self.found):
            self.complain("SGLang adapter", f"{each.probe.where} was replaced", f"not seen: {each.probe.lost}")

    # -- what is being done

    def within(self, doing: Doing) -> Within:
        """For the duration, this is what the engine does."""
        return Within(self.doing, doing)

    def current(self, *what: str) -> Doing | None:
        """The innermost of these that the engine is doing."""
        for doing in reversed(self.doing):
            if doing.what in what:
                return doing
        return None

    def actor(self) -> str | None:
        """On whose behalf the engine acts; None if that is nobody known, or the cache itself."""
        for doing in reversed(self.doing):
            if doing.what in ("evict", "backup", "load"):
                return None
            if doing.owner is not None:
                return doing.owner
        return None

    def record(self, holder: Any) -> Any:
        """The engine's record of what a request or session holds."""
        return holder.kv

    def bind(self, req: Any, owner: str) -> None:
        """The request's record is from here on the owner's."""
        self.owner_of_record[id(req.kv)] = owner

    def unbind(self, holder: Any) -> None:
        """The record of a request or session is nobody's."""
        self.owner_of_record.pop(id(holder.kv), None)

    def holder(self, holder: Any) -> str | None:
        """Whose the record of a request or session is, if that is known."""
        return self.owner_of_record.get(id(holder.kv))

    def owner_of(self, req: Any) -> str:
        """Who holds what the request runs on: its session, where it runs on a session's record, else itself."""
        return self.holder(req) or str(req.rid)

    def pool_of(self, allocator: Any) -> str | None:
        """The pool whose slots this allocator hands out; None where they are not followed."""
        if not self.slots:
            return None
        if allocator is self.kv:
            return KV
        return WINDOW if self.window is not None and allocator is self.window.inner else None

    def read_late(self, device: str) -> None:
        """Slot ids are on this device, if it is none that the host reads: then they are copied from there."""
        self.readback = readback.readback_from(device)
        if self.readback is not None:
            self.note(
                f"Slot ids are on the device ({device}) and are read when they have arrived: what is found about token "
                "slots comes an iteration or two late."
            )

    # -- who lives

    def begin(self, owner: str) -> None:
        """The owner holds something, or will."""
        self.live.add(owner)
        self.then(partial(self.living.add, owner))

    def end(self, owner: str) -> None:
        """It holds nothing more."""
        self.live.discard(owner)
        self.then(partial(self._forget_owner, owner))

    def _forget_owner(self, owner: str) -> None:
        self.living.discard(owner)
        self.shared.pop(owner, None)

    # -- reading tensors

    def take(self, tensor: Any) -> Any:
        """The integers of a tensor as they are now, for `then`: on the CPU a view, which must be copied if it is to
        outlast the engine's next step."""
        return self.ids(tensor) if self.readback is None else self.readback.copy(tensor)

    def keep(self, tensor: Any) -> Any:
        """As `take`, but the engine may go on."""
        return self.ids(tensor).copy() if self.readback is None else self.readback.copy(tensor)

    def then(self, do: Callable[..., None], *taken: Any) -> None:
        """Does `do(*numbers)`, now or when they are there; events are taken in the order in which they were told, but
        for those that `do` tells after it has called this itself."""
        if self.readback is None:
            do(*taken)
        else:
            self.san.later(do, *taken, failed=self.missed)

    def missed(self, error: Exception) -> None:
        """Slot ids did not come, or what they mean could not be told."""
        self.failed("slot ids from the device", error)

    def ids(self, tensor: Any) -> Slots:
        """The slot ids of a tensor on the CPU, int64, shape [n]; a view where it can be one."""
        array: Slots = tensor.detach().reshape(-1).numpy()
        return array if array.dtype == np.int64 else array.astype(np.int64)

    def stream(self) -> str:
        """The agent that work issued now goes to: the current stream."""
        return self.stream_name(self.scheduler.device_module.current_stream())

    def stream_name(self, stream: Any) -> str:
        """What a stream is called; the scheduler's own have names, others are numbered as they come."""
        key = getattr(stream, "cuda_stream", None)
        key = id(stream) if key is None else key
        name = self.streams.get(key)
        if name is None:
            name = self.streams[key] = f"stream{len(self.streams)}" if len(self.streams) < 64 else "streams"
        return name

    def name_streams(self) -> None:
        """Gives the scheduler's streams their names; the loop may draw another one before it starts."""
        for attribute, name in (("copy_stream", "copy"), ("forward_stream", "fwd"), ("schedule_stream", "sched")):
            stream = getattr(self.scheduler, attribute, None)
            if stream is not None:
                key = getattr(stream, "cuda_stream", None)
                self.streams[id(stream) if key is None else key] = name

    # -- the tree's nodes

    def nodes_at(self, slots: Slots) -> Slots:
        """The numbers of the nodes that hold these slots; 0 for none, and for ids that no slot has."""
        if all_inside(slots, self.node_of.size):
            return self.node_of[slots]
        inside = (slots >= 0) & (slots < self.node_of.size)
        return np.where(inside, self.node_of[np.where(inside, slots, 0)], 0)

    def hold(self, slots: Slots, number: int) -> None:
        """From here on the node of that number (0: none) holds these slots."""
        inside = slots if all_inside(slots, self.node_of.size) else slots[(slots >= 0) & (slots < self.node_of.size)]
        self.node_of[inside] = number

    def add_to_node(self, slots: Slots, name: str) -> None:
        """From here on the node of that name holds these slots, too."""
        self.hold(slots, self.node_number(name))
        self.node_slots[name] = self.node_slots.get(name, 0) + int(slots.size)

    def used_by(self, owner: str) -> Slots:
        """The slots of the tree that the owner uses."""
        return np.concatenate(self.shared.get(owner) or [NONE])

    def among(self, slots: Slots, these: Slots) -> npt.NDArray[np.bool_]:
        """Which of `slots` are in `these`: `np.isin`, whose own searches cost more than to mark a few hundred slots."""
        if not these.size:
            return np.zeros(slots.size, np.bool_)
        if not (all_inside(slots, self.node_of.size) and all_inside(these, self.node_of.size)):
            return np.isin(slots, these)
        if self._marks.size != self.node_of.size:
            self._marks, self._mark = np.zeros(self.node_of.size, np.int64), 0
        self._mark += 1
        self._marks[these] = self._mark
        found: npt.NDArray[np.bool_] = self._marks[slots] == self._mark
        return found

    def node_number(self, name: str) -> int:
        """The number of a node in `nodes`; numbers of nodes that are gone are given out again."""
        number = self.node_numbers.get(name)
        if number is None:
            if self.node_spare:
                number = self.node_spare.pop()
                self.nodes[number] = name
            else:
                number = len(self.nodes)
                self.nodes.append(name)
            self.node_numbers[name] = number
        return number

    def forget_node(self, name: str) -> None:
        """The node holds nothing more."""
        number = self.node_numbers.pop(name, None)
        self.node_slots.pop(name, None)
        if number is not None:
            self.nodes[number] = ""
            self.node_spare.append(number)

    def forget_nodes(self) -> None:
        """The tree is empty."""
        self.node_of[:] = 0
        self.nodes, self.node_spare = [""], []
        self.node_numbers.clear()
        self.node_slots.clear()
        self.node_locks.clear()
        self.shared.clear()
