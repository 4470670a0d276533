"""The storage tier: pages by their tokens, written behind backups, and prefetched when a request arrives."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import count

from . import bugs
from .arithmetic import Array
from .config import EngineConfig
from .memory import KvMemory
from .probe import Probe
from .radix_cache import Node, RadixCache
from .request import Request
from .transfers import Carrier, Lease, Transfer

CAPACITY_PAGES = 1024

Page = list[tuple[Array, Array]]
"""Keys and values of a page's tokens, for each layer."""


class Storage:
    """Pages under all the tokens up to their end; the least recently used go first."""

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[int, ...], Page] = OrderedDict()

    def put(self, tokens: list[int], page: Page) -> None:
        self._pages[tuple(tokens)] = page
        self._pages.move_to_end(tuple(tokens))
        if len(self._pages) > CAPACITY_PAGES:
            self._pages.popitem(last=False)

    def get(self, tokens: list[int]) -> Page | None:
        return self._pages.get(tuple(tokens))


@dataclass(slots=True, eq=False)
class _Prefetch:
    """Host slots for the tokens from position `begin` on; `found` counts those that storage had, once it is over."""

    owner: str
    tokens: list[int]
    begin: int
    slots: list[int]
    node: Node
    transfer: Transfer | None = None
    found: int = field(default=0)


class Prefetcher:
    """Reads into the host tier what storage has of a request's prompt, while the request waits.

    How much that is turns out only while reading: slots are taken for the whole prompt, and the unfinished tail is
    given back.
    """

    def __init__(self, config: EngineConfig, tree: RadixCache, io: Carrier, probe: Probe) -> None:
        self._config = config
        self._tree = tree
        self._host = tree.kv
        self._io = io
        self._probe = probe
        self._storage = Storage()
        self._numbers = count(1)
        self._under_way: deque[_Prefetch] = deque()

    @property
    def busy(self) -> bool:
        """Whether any prefetch is under way."""
        return bool(self._under_way)

    def keep(self, tokens: list[int], slots: list[int], begin: int, owner: str) -> None:
        """Writes the host slots of the tokens from position `begin` on to storage."""
        page = self._host.page_size
        if self._probe.data:
            self._probe.read(self._host.name, slots, owner=owner)
        for start in range(0, len(slots), page):
            self._storage.put(tokens[: begin + start + page], _read(self._host.memory, slots[start : start + page]))

    def begin(self, request: Request) -> None:
        """Starts to read the request's prompt; does nothing where the host tier has it, or has no room for it."""
        page = self._host.page_size
        tokens = request.prompt[: (len(request.prompt) - 1) // page * page]
        owner = f"prefetch:{next(self._numbers)}"
        node = self._tree.match(tokens, owner)
        held = node.path_slots()
        missing = len(tokens) - len(held)
        if missing <= 0:
            return
        self._tree.lock(node, owner)
        self._tree.evict(missing - self._host.available)
        if self._host.available < missing:
            self._tree.unlock(node, owner)
            return
        prefetch = _Prefetch(owner, tokens, len(held), self._host.extend(held, missing, owner), node)
        lease = Lease(self._host.name, prefetch.slots, "write")
        prefetch.transfer = self._io.begin(owner, owner, [lease], lambda: self._read(prefetch), fenced=False)
        self._under_way.append(prefetch)

    def covers(self, tokens: list[int]) -> bool:
        """Whether a prefetch of the beginning of these tokens is under way."""
        return any(tokens[: len(prefetch.tokens)] == prefetch.tokens for prefetch in self._under_way)

    def step(self, *, wait: bool) -> None:
        """Puts what has been read into the host tier's tree and gives the rest back; `wait` waits for all of it."""
        while self._under_way and (first := self._under_way[0]).transfer is not None:
            if not self._io.ended(first.transfer, wait=wait):
                break
            self._under_way.popleft()
            self._finish(first)

    def _read(self, prefetch: _Prefetch) -> None:
        page = self._host.page_size
        for start in range(0, len(prefetch.slots), page):
            stored = self._storage.get(prefetch.tokens[: prefetch.begin + start + page])
            if stored is None:
                return
            _write(self._host.memory, prefetch.slots[start : start + page], stored)
            prefetch.found += page

    def _finish(self, prefetch: _Prefetch) -> None:
        owner, end = prefetch.owner, prefetch.begin + prefetch.found
        slots = [0] * prefetch.begin + prefetch.slots
        if prefetch.found:
            _, cached = self._tree.insert(prefetch.tokens[:end], slots[:end], owner)
            self._host.give_back(slots[prefetch.begin : cached], owner)
        self._host.give_back(slots[end:], owner)
        if self._config.bug == bugs.PREFETCH_TAIL:
            self._host.give_back(slots[end:], owner)
        self._tree.unlock(prefetch.node, owner)
        self._probe.req_end(owner=owner)


def _read(memory: KvMemory, slots: list[int]) -> Page:
    return [(keys[slots], values[slots]) for keys, values in zip(memory.keys, memory.values, strict=True)]


def _write(memory: KvMemory, slots: list[int], page: Page) -> None:
    for layer, (keys, values) in enumerate(page):
        memory.keys[layer][slots] = keys
        memory.values[layer][slots] = values
