"""Recurrent states: tracking by turns, donation with a fresh slot in its place, matching up to a state, eviction."""

from __future__ import annotations

from kvsan.hooks import NullSanitizer
from kvsan.reference_engine.pools import KvPool, StatePool
from kvsan.reference_engine.radix_cache import Node, RadixCache
from kvsan.reference_engine.record import KvRecord
from kvsan.reference_engine.states import States

PROBE = NullSanitizer()


class Setup:
    """A cache with states, and a way to put tokens into it."""

    def __init__(self, states: int = 8) -> None:
        self.kv = KvPool(64, 1, PROBE)
        self.pool = StatePool(states, PROBE)
        self.cache = RadixCache(self.kv, PROBE, self.pool)
        self.states = States(self.pool, self.cache, 4, None)

    def begin(self) -> KvRecord:
        """A record with states."""
        record = KvRecord()
        assert self.states.start(record, self.cache.root, "a")
        return record

    def put(self, tokens: list[int]) -> Node:
        """Inserts the tokens in fresh slots."""
        return self.cache.insert(tokens, self.kv.extend([], len(tokens), "a"), "a")[0]


def test_states_are_tracked_by_turns_at_boundaries() -> None:
    setup = Setup()
    record = setup.begin()
    uses = [setup.states.use(record, start, upto) for start, upto in ((0, 9), (9, 11), (11, 12), (12, 16))]
    assert [use.source for use in uses] == [0, None, None, None]
    assert [use.track_at for use in uses] == [8, 0, 12, 16]
    assert uses[1].track is None
    assert uses[0].track == uses[3].track != uses[2].track
    assert [setup.states.tracked(record, upto) for upto in (11, 15)] == [None, record.tracking[1]]


def test_a_donated_state_is_replaced() -> None:
    setup = Setup()
    record = setup.begin()
    use = setup.states.use(record, 0, 4)
    tracking = setup.states.tracked(record, 4)
    assert tracking is not None
    node = setup.put([1, 2, 3, 4])
    setup.states.donate(record, tracking, node, "a", replace=True)
    assert node.state == use.track
    assert tracking.slot != use.track and tracking.position == 0
    setup.states.give_back(record, "a")
    assert (setup.pool.available, setup.cache.state_counts()) == (7, (1, 0))


def test_a_state_that_cannot_be_replaced_is_not_donated() -> None:
    setup = Setup(states=3)
    record = setup.begin()
    setup.states.use(record, 0, 4)
    tracking = setup.states.tracked(record, 4)
    assert tracking is not None
    node = setup.put([1, 2, 3, 4])
    setup.states.donate(record, tracking, node, "a", replace=True)
    assert node.state is None and tracking.position == 4


def test_a_prefix_is_used_up_to_a_state_only() -> None:
    setup = Setup()
    upper = setup.put([1, 2, 3, 4])
    setup.put([1, 2, 3, 4, 5, 6])
    assert setup.cache.match([1, 2, 3, 4, 5, 6], "b") is setup.cache.root
    setup.cache.add_state(upper, *setup.pool.take(1, "a"), "a")
    assert setup.cache.match([1, 2, 3, 4, 5, 6], "b") is upper
    assert setup.cache.match([1, 2, 3], "b") is setup.cache.root


def test_states_of_locked_nodes_are_not_evicted_and_missing_states_refuse_a_request() -> None:
    setup = Setup(states=3)
    nodes = [setup.put([number]) for number in (1, 2)]
    for node in nodes:
        setup.cache.add_state(node, *setup.pool.take(1, "a"), "a")
    setup.cache.lock(nodes[0], "b")
    assert not setup.states.start(KvRecord(), setup.cache.root, "c")
    assert [node.state is None for node in nodes] == [False, True]
    setup.cache.unlock(nodes[0], "b")
    assert setup.states.start(KvRecord(), setup.cache.root, "c")


def test_an_evicted_node_gives_its_state_back() -> None:
    setup = Setup()
    setup.cache.add_state(setup.put([1, 2]), *setup.pool.take(1, "a"), "a")
    setup.cache.evict(64)
    assert (setup.kv.available, setup.pool.available, setup.cache.state_counts()) == (64, 8, (0, 0))
