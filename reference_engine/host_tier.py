"""The host tier: a second prefix cache in host memory, filled from the device's and read back on a hit.

A copy's target slots belong to the copy until its end is acknowledged, and only then to a node that others can find;
meanwhile the nodes it reads from and hangs under are locked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import count

from . import bugs
from .config import EngineConfig
from .memory import KvMemory
from .pools import KvPool
from .probe import Probe
from .radix_cache import Node, RadixCache
from .request import Request
from .storage import Prefetcher
from .transfers import Carrier, Lease, Transfer

HOST = "host"


@dataclass(slots=True, eq=False)
class _Move:
    """Copies the slots of the tokens from position `begin` on into `slots` of the target's pool."""

    name: str
    tokens: list[int]
    begin: int
    slots: list[int]
    source: RadixCache
    source_node: Node
    target: RadixCache
    target_node: Node
    transfer: Transfer
    published: bool = False


class HostTier:
    """Backs up cached nodes, when they are inserted (write-through) or evicted (write-back), and loads them back."""

    def __init__(self, config: EngineConfig, cache: RadixCache, copies: Carrier, io: Carrier, probe: Probe) -> None:
        self.pool = KvPool(config.host_tokens, config.page_size, probe, name=HOST, kind="host")
        self.pool.memory = KvMemory(config.host_tokens + config.page_size)
        self.tree = RadixCache(self.pool, probe, prefix="h")
        self.prefetcher = Prefetcher(config, self.tree, io, probe) if config.storage else None
        self._config = config
        self._cache = cache
        self._carrier = copies
        self._probe = probe
        self._numbers = count(1)
        self._moves: deque[_Move] = deque()
        if config.host_write == "through":
            cache.inserted = self._back_up
        else:
            cache.evicting = self._save

    @property
    def busy(self) -> bool:
        """Whether any copy is under way."""
        return bool(self._moves) or (self.prefetcher is not None and self.prefetcher.busy)

    def expect(self, request: Request) -> None:
        """Begins to prefetch for a request that has arrived."""
        if self.prefetcher is not None:
            self.prefetcher.begin(request)

    def prefix_ready(self, tokens: list[int]) -> bool:
        """Whether the device has all that there is of the tokens' prefix. If not, copies of it are under way."""
        if self.prefetcher is not None and self.prefetcher.covers(tokens):
            return False
        if any(move.target is self._cache and tokens[: len(move.tokens)] == move.tokens for move in self._moves):
            return self._config.bug == bugs.LOAD_NOT_AWAITED
        load = self._start("load", tokens, self.tree, self._cache)
        if load is not None and self._config.bug == bugs.LOAD_NOT_AWAITED:
            self._publish(load)
            return True
        return load is None

    def step(self, *, wait: bool) -> None:
        """Acknowledges the copies that have ended; `wait` waits for all of them."""
        if self.prefetcher is not None:
            self.prefetcher.step(wait=wait)
        while self._moves and self._carrier.ended(self._moves[0].transfer, wait=wait):
            move = self._moves.popleft()
            self._publish(move)
            if self._config.bug != bugs.NEVER_UNLOCKS:
                self._unlock(move)

    def tell_totals(self) -> None:
        """Tells kvsan the totals of the host's pool."""
        pool, tree = self.pool, self.tree
        self._probe.count(
            HOST, available=pool.available, evictable=tree.evictable, protected=tree.protected, total=pool.size
        )

    def _back_up(self, node: Node) -> _Move | None:
        """Begins to copy to the host what it lacks of the node's path."""
        return self._start("backup", node.path_tokens(), self._cache, self.tree)

    def _save(self, leaf: Node) -> None:
        """Backs up a leaf that is about to be evicted, and waits for it: its slots are in use until then."""
        if self._back_up(leaf) is not None and self._config.bug != bugs.EVICT_UNDER_WRITE_BACK:
            self.step(wait=True)

    def _start(self, kind: str, tokens: list[int], source: RadixCache, target: RadixCache) -> _Move | None:
        """Begins to copy what the source has of the tokens and the target lacks; None if that is nothing, or if the
        target has no room."""
        name = f"{kind}:{next(self._numbers)}"
        source_node, target_node = source.match(tokens, name), target.match(tokens, name)
        from_slots, held = source_node.path_slots(), target_node.path_slots()
        begin, end = len(held), len(from_slots)
        if end <= begin:
            return None
        source.lock(source_node, name)
        target.lock(target_node, name)
        target.evict(end - begin - target.kv.available)
        if target.kv.available < end - begin:
            source.unlock(source_node, name)
            target.unlock(target_node, name)
            return None
        slots, from_slots = target.kv.extend(held, end - begin, name), from_slots[begin:]
        transfer = self._carrier.begin(
            name,
            name,
            [Lease(source.kv.name, from_slots, "read"), Lease(target.kv.name, slots, "write")],
            lambda: _copy(source.kv.memory, from_slots, target.kv.memory, slots),
            fenced=self._config.bug != (bugs.BACKUP_NOT_ORDERED if kind == "backup" else bugs.LOAD_NOT_FENCED),
        )
        move = _Move(name, tokens[:end], begin, slots, source, source_node, target, target_node, transfer)
        self._moves.append(move)
        return move

    def _publish(self, move: _Move) -> None:
        """Puts the copy into the target's tree; what the tree got from elsewhere meanwhile is given back."""
        if not move.published:
            move.published = True
            slots = [0] * move.begin + move.slots
            _, cached = move.target.insert(move.tokens, slots, move.name)
            if self.prefetcher is not None and move.target is self.tree:
                self.prefetcher.keep(move.tokens, move.slots, move.begin, move.name)
            move.target.kv.give_back(slots[move.begin : cached], move.name)
            move.target.unlock(move.target_node, move.name)

    def _unlock(self, move: _Move) -> None:
        move.source.unlock(move.source_node, move.name)
        self._probe.req_end(owner=move.name)


def _copy(source: KvMemory, from_slots: list[int], target: KvMemory, to_slots: list[int]) -> None:
    for layer, (keys, values) in enumerate(zip(source.keys, source.values, strict=True)):
        target.keys[layer][to_slots] = keys[from_slots]
        target.values[layer][to_slots] = values[from_slots]
