"""Prefix caches with a historical bug, each beside the method of `RadixCache` that it gets wrong."""

from __future__ import annotations

from . import bugs
from .radix_cache import Node, RadixCache


class EvictsWhatIsLocked(RadixCache):
    """Takes every leaf for evictable."""

    def _may_go(self, node: Node) -> bool:
        return not node.children

    def _remove(self, leaf: Node) -> None:
        if leaf.locks:
            self.protected -= len(leaf.slots)
            self.evictable += len(leaf.slots)
        super()._remove(leaf)


class CountsSplitsTwice(RadixCache):
    """Adds the upper part of a node that is split to the evictable slots, where it was counted already."""

    def _split(self, node: Node, length: int) -> Node:
        upper = super()._split(node, length)
        self.evictable += length
        return upper


class KeysWithoutAdapter(RadixCache):
    """Looks up and keeps every request's tokens in one tree, whatever the adapter."""

    def _root(self, ns: str | None) -> Node:
        return self.root


class BreaksTiesByAddress(RadixCache):
    """Takes a clock so coarse that all leaves tie, and then goes by an order that each process has for itself."""

    def _victim(self, leaves: list[Node]) -> Node:
        return leaves[0] if self.rank % 2 == 0 else leaves[-1]


CACHES: dict[str, type[RadixCache]] = {
    bugs.EVICTS_LOCKED: EvictsWhatIsLocked,
    bugs.ADAPTER_NOT_IN_KEY: KeysWithoutAdapter,
    bugs.RANK_ORDER: BreaksTiesByAddress,
    bugs.EVICTABLE_DRIFTS: CountsSplitsTwice,
}
