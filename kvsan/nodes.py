"""The prefix cache as far as it is seen: nodes, what they hold, how they hang together, and their locks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .errors import EventError
from .events import Slots
from .holders import Holder


@dataclass(slots=True, eq=False)
class Node:
    """A cache node. `slots` lists by pool number the arrays that came in (some may have left since); `locks` counts by
    the owner named, None for locks without one; `spare` are unlocks that could not be laid to one owner."""

    name: str
    holder: Holder
    ns: str | None = None
    parent: Node | None = None
    children: set[Node] = field(default_factory=set)
    split_from: Node | None = None
    slots: dict[int, list[Slots]] = field(default_factory=dict)
    noted: dict[int, int] = field(default_factory=dict)  # by pool: how many slots inserts put on these lists
    inserted: set[int] = field(default_factory=set)  # pools that an insert named
    inserted_at: int = -1  # the event of the latest insert
    locks: dict[str | None, int] = field(default_factory=dict)
    locked_at: dict[str | None, int] = field(default_factory=dict)
    spare: int = 0

    @property
    def lock_count(self) -> int:
        """Locks taken and not given back."""
        return sum(self.locks.values()) - self.spare

    @property
    def protected(self) -> bool:
        """Does a lock on this node or on one below it keep it from eviction?"""
        return any(node.lock_count > 0 for node in self.subtree())

    def subtree(self) -> Iterator[Node]:
        """This node and all below it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children)

    def hang_under(self, parent: Node | None) -> None:
        """Moves the node under another one (None: the root); not under itself or what hangs below it."""
        above = parent
        while above is not None:
            if above is self:
                return
            above = above.parent
        if self.parent is not None:
            self.parent.children.discard(self)
        self.parent = parent
        if parent is not None:
            parent.children.add(self)

    def lock(self, owner: str | None, at: int) -> None:
        """Takes one lock."""
        self.locks[owner] = self.locks.get(owner, 0) + 1
        self.locked_at[owner] = at

    def unlock(self, owner: str | None) -> bool:
        """Gives one lock back; False if there is none. An owner's own lock goes first, then one without an owner; what
        can be laid to nobody is spare and pays for whichever owner turns out not to have unlocked."""
        if self.lock_count <= 0:
            return False
        for who in (owner, None):
            if self.locks.get(who, 0) > 0:
                self._drop(who)
                return True
        if len(self.locks) == 1:
            self._drop(next(iter(self.locks)))
        else:
            self.spare += 1
        return True

    def _drop(self, owner: str | None) -> None:
        self.locks[owner] -= 1
        if not self.locks[owner]:
            del self.locks[owner]
            self.locked_at.pop(owner, None)

    def unpaid(self, owner: str | None) -> int:
        """Locks in the owner's name that nobody has given back."""
        return max(0, self.locks.get(owner, 0) - self.spare)

    def forgive(self, owner: str | None) -> None:
        """The owner's locks are settled (reported or paid by spare unlocks): they are not judged again."""
        count = self.locks.pop(owner, 0)
        self.locked_at.pop(owner, None)
        self.spare -= min(self.spare, count)


class Nodes:
    """All nodes by name."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._locked_by: dict[str, set[Node]] = {}

    def find(self, name: str) -> Node | None:
        """The node of that name, if it is known."""
        return self._nodes.get(name)

    def get(self, name: str, holder: Holder) -> Node:
        """The node of that name, made if need be."""
        node = self._nodes.get(name)
        if node is None:
            if not isinstance(name, str):
                raise EventError(f"a node's name must be a string, not {name!r}")
            node = self._nodes[name] = Node(name, holder)
        return node

    def all(self) -> list[Node]:
        """Every node known."""
        return list(self._nodes.values())

    def drop(self, node: Node) -> None:
        """Forgets a node that is gone from the cache; its children move up."""
        for child in list(node.children):
            child.hang_under(node.parent)
        node.hang_under(None)
        if not node.locks:
            self._nodes.pop(node.name, None)

    def lock(self, node: Node, owner: str | None, at: int) -> None:
        """Takes one lock of the node."""
        node.lock(owner, at)
        if owner is not None:
            self._locked_by.setdefault(owner, set()).add(node)

    def locked_by(self, owner: str) -> list[Node]:
        """The nodes on which the owner still has locks; those that spare unlocks pay for are settled."""
        nodes = self._locked_by.pop(owner, set())
        unpaid = {node for node in nodes if node.unpaid(owner)}
        for node in nodes - unpaid:
            node.forgive(owner)
        return sorted(unpaid, key=lambda node: node.name)

    def lockers(self) -> dict[str, int]:
        """By owner, on how many nodes it has locks that nobody has given back."""
        counts = {owner: sum(node.unpaid(owner) > 0 for node in nodes) for owner, nodes in self._locked_by.items()}
        return {owner: count for owner, count in counts.items() if count}

    def unlock(self, node: Node, owner: str | None) -> bool:
        """Gives one lock of the node back; False if there is none."""
        unlocked = node.unlock(owner)
        if owner is not None and owner not in node.locks:
            nodes = self._locked_by.get(owner)
            if nodes is not None:
                nodes.discard(node)
                if not nodes:
                    del self._locked_by[owner]
        return unlocked

    def forget_bare(self, node: Node) -> bool:
        """Forgets a node of which nothing is known but its name."""
        known = node.slots or node.locks or node.children or node.inserted or node.parent or node.split_from
        if known or self._nodes.get(node.name) is not node:
            return False
        del self._nodes[node.name]
        return True
