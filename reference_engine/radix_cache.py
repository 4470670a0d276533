"""The prefix cache: a radix tree over pages of tokens, whose nodes hold token slots and recurrent states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from .pools import STATES, KvPool, StatePool
from .probe import Probe


@dataclass(slots=True, eq=False)
class Node:
    """Some pages of tokens below their parent's. `locks` counts the locks of the node and of everything below it;
    `state` is the slot of the recurrent state after the node's last token, None where it is not cached."""

    name: str
    parent: Node | None
    tokens: list[int]
    slots: list[int]
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    state: int | None = None
    locks: int = 0
    last_used: int = 0

    def path(self) -> list[Node]:
        """The nodes from below the root to this one; the root's path is empty."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def path_tokens(self) -> list[int]:
        """The tokens from the root down to this node's last."""
        return [token for step in self.path() for token in step.tokens]

    def path_slots(self) -> list[int]:
        """The slots that hold them."""
        return [slot for step in self.path() for slot in step.slots]


class RadixCache:
    """Token sequences and the slots that hold their keys and values, in whole pages.

    For a model with recurrent layers a prefix can be used only up to a position whose state is cached too. A slot in
    the tree, and a state, belongs to its node. Who uses a node's slots locks the node, which protects its ancestors
    too. `evictable` and `protected` count the slots of nodes without and with locks. Each key domain `ns` (an adapter)
    has a tree of its own, since its keys and values are its own. `inserted` is called with each new node, `evicting`
    with each leaf that is about to be given back.
    """

    def __init__(self, kv: KvPool, probe: Probe, states: StatePool | None = None, *, prefix: str = "n") -> None:
        self.root = Node("root", None, [], [])
        self._roots: dict[str | None, Node] = {None: self.root}
        self.rank = 0
        """Which tensor rank this is: for whoever looks. Nothing that is decided here may depend on it."""
        self.evictable = 0
        self.protected = 0
        self.kv = kv
        self.inserted: Callable[[Node], object] = lambda node: None
        self.evicting: Callable[[Node], object] = lambda leaf: None
        self._page = kv.page_size
        self._states = states
        self._with_state: list[Node] = []
        self._probe = probe
        self._names = (f"{prefix}{number}" for number in count(1))
        self._clock = count(1)

    def match(self, tokens: list[int], owner: str, ns: str | None = None) -> Node:
        """The node down to which whole pages of the tokens can be used; splits a node that is matched in part."""
        node, cached = self._walk(tokens, ns)
        usable = self.kv.usable(node.path_slots())
        if usable < cached:
            node, _ = self._walk(tokens[:usable], ns)
        while self._states is not None and node.parent is not None and node.state is None:
            node = node.parent
        if node.parent is not None:
            self._probe.match(node=node.name, owner=owner, ns=ns)
        return node

    def insert(
        self, tokens: list[int], slots: list[int], owner: str, ns: str | None = None, *, recover: bool = True
    ) -> tuple[Node, int]:
        """Makes the tokens a path of the tree; returns its last node and how many tokens were cached before.

        The owner's slots from there on pass to a new node. Those before remain the owner's: they are duplicates.
        """
        node, cached = self._walk(tokens, ns)
        if recover:
            position = 0
            for step in node.path():
                self.kv.recover(step.slots, slots[position : position + len(step.slots)], owner, step.name)
                position += len(step.slots)
        if cached == len(tokens):
            return node, cached
        parent = None if node.parent is None else node.name
        child = Node(next(self._names), node, tokens[cached:], slots[cached:], last_used=next(self._clock))
        node.children[self._key(child.tokens)] = child
        self.evictable += len(child.slots)
        self.kv.tell_insert(child.slots, owner, child.name, parent, ns)
        self.inserted(child)
        return child, cached

    def add_state(self, node: Node, slot: int, owner: str) -> None:
        """The owner's state slot passes to the node, which has none yet."""
        node.state = slot
        self._with_state.append(node)
        self._probe.insert(STATES, slot, owner=owner, node=node.name)

    def attach(self, node: Node, begin: int, owner: str) -> None:
        """Tells kvsan that the owner shares the path's slots for positions from `begin` on."""
        position = 0
        for step in node.path():
            if position >= begin:
                self._probe.attach(self.kv.name, step.slots, owner=owner, node=step.name)
            position += len(step.slots)

    def detach(self, slots: list[int], owner: str) -> None:
        """Ends the owner's share of the slots; the nodes keep them."""
        if slots:
            self._probe.free(self.kv.name, slots, owner=owner)

    def lock(self, node: Node, owner: str) -> None:
        """Protects the node and its ancestors from eviction."""
        if node.parent is not None:
            self._probe.lock(node=node.name, owner=owner)
        for step in node.path():
            if step.locks == 0:
                self.evictable -= len(step.slots)
                self.protected += len(step.slots)
            step.locks += 1

    def unlock(self, node: Node, owner: str) -> None:
        """Takes one lock back."""
        if node.parent is not None:
            self._probe.unlock(node=node.name, owner=owner)
        for step in node.path():
            step.locks -= 1
            if step.locks == 0:
                self.protected -= len(step.slots)
                self.evictable += len(step.slots)

    def evict(self, slots: int) -> None:
        """Gives back leaves without locks, least recently used first, until that many slots are free again."""
        while slots > 0 and (leaves := self._leaves()):
            leaf = self._victim(leaves)
            slots -= len(leaf.slots)
            self._remove(leaf)

    def evict_states(self, states: int) -> None:
        """Gives back states of nodes without locks, least recently used first, until that many are free again."""
        while states > 0 and (nodes := [node for node in self._with_state if node.locks == 0]):
            node = min(nodes, key=lambda node: node.last_used)
            self._probe.evict(STATES, node.state)
            self._drop_state(node)
            states -= 1

    def state_counts(self) -> tuple[int, int]:
        """How many states nodes without locks hold, and how many those with locks."""
        protected = sum(node.locks > 0 for node in self._with_state)
        return len(self._with_state) - protected, protected

    def _remove(self, leaf: Node) -> None:
        assert leaf.parent is not None
        self.evicting(leaf)
        del leaf.parent.children[self._key(leaf.tokens)]
        self.evictable -= len(leaf.slots)
        self._probe.evict(node=leaf.name)
        self.kv.reclaim(leaf.slots)
        self._drop_state(leaf)

    def _drop_state(self, node: Node) -> None:
        if self._states is not None and node.state is not None:
            self._states.reclaim([node.state])
            self._with_state.remove(node)
            node.state = None

    def _victim(self, leaves: list[Node]) -> Node:
        """The leaf that goes first; on every tensor rank the same."""
        return min(leaves, key=lambda node: node.last_used)

    def _may_go(self, node: Node) -> bool:
        """Whether the node can be evicted now."""
        return not node.children and node.locks == 0

    def _leaves(self) -> list[Node]:
        leaves: list[Node] = []
        open_nodes = list(self._roots.values())
        while open_nodes:
            node = open_nodes.pop()
            open_nodes.extend(node.children.values())
            if node.parent is not None and self._may_go(node):
                leaves.append(node)
        return leaves

    def _root(self, ns: str | None) -> Node:
        """Where the key domain's tree begins."""
        return self._roots.setdefault(ns, Node("root", None, [], []))

    def _walk(self, tokens: list[int], ns: str | None) -> tuple[Node, int]:
        """The last node of the longest cached path, and the path's length in tokens."""
        now = next(self._clock)
        node, position = self._root(ns), 0
        while len(tokens) - position >= self._page:
            child = node.children.get(self._key(tokens[position:]))
            if child is None:
                break
            length = self._common(child.tokens, tokens[position:])
            node = child if length == len(child.tokens) else self._split(child, length)
            node.last_used = now
            position += length
        return node, position

    def _split(self, node: Node, length: int) -> Node:
        """Puts the node's first `length` tokens into a node of their own above it, and returns that."""
        assert node.parent is not None
        upper = Node(next(self._names), node.parent, node.tokens[:length], node.slots[:length], locks=node.locks)
        node.parent.children[self._key(node.tokens)] = upper
        node.tokens, node.slots, node.parent = node.tokens[length:], node.slots[length:], upper
        upper.children[self._key(node.tokens)] = node
        self.kv.tell_split(node.name, upper.name, upper.slots)
        return upper

    def _common(self, a: list[int], b: list[int]) -> int:
        """How many tokens agree, in whole pages."""
        limit = min(len(a), len(b)) // self._page * self._page
        for begin in range(0, limit, self._page):
            if a[begin : begin + self._page] != b[begin : begin + self._page]:
                return begin
        return limit

    def _key(self, tokens: list[int]) -> tuple[int, ...]:
        return tuple(tokens[: self._page])
