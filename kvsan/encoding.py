"""The bit layouts of shadow words, shared by every implementation of the shadow.

Tenancy word (int64, never negative), one a slot::

    62        40 39        10 9      0
    generation | holder id  | flags

*Generation* counts tenancies modulo 2**23. It is compared only for equality, between a slot's word and a copy that a
row cell or a share took earlier; two different tenancies look alike only when exactly a multiple of 8,388,608
tenancies of that slot lie between, and then a stale copy passes for a fresh one: a miss, never a false alarm.

*Holder id* numbers live owners and cache nodes; 0 is "not known". An id is given out again only after its holder is
gone and no word carries it (words of free slots carry 0), so two living holders never share one.

Epoch word (int64): event index in the upper 51 bits, agent in the lower 12, so that of one agent's epochs the larger
word is the later event. 2**51 events at one a microsecond are 71 years.

Reference word (int64): event index in the upper 43 bits, stack id of the depot in the lower 20.
"""

from __future__ import annotations

HELD = 1 << 0  # allocated: somebody, perhaps unknown, holds the slot
PENDING = 1 << 1  # freed inside a group that has not been flushed
NODE = 1 << 2  # the holder is a node of the prefix cache
NAMED = 1 << 3  # named by an alloc of this tenancy (else it came along with its page)
WRITTEN = 1 << 4  # written in this tenancy
FREED = 1 << 5  # named by the free that ended the last tenancy
EVER = 1 << 6  # was allocated at some time since the pool began
RESERVED = 1 << 7  # never handed out
LEASED = 1 << 8  # at least one open transfer uses it
SHARED = 1 << 9  # at least one owner shares it with the node that holds it

FLAGS = (1 << 10) - 1
HOLDER_SHIFT = 10
HOLDER_MASK = ((1 << 30) - 1) << HOLDER_SHIFT
MAX_HOLDER = (1 << 30) - 1
GENERATION_SHIFT = 40
GENERATION_ONE = 1 << GENERATION_SHIFT
GENERATION_MASK = ((1 << 23) - 1) << GENERATION_SHIFT
WORD_MASK = (1 << 63) - 1

CELL_KEY_MASK = GENERATION_MASK | HELD
"""What a row cell remembers of its slot's word: equal as long as the slot is held in the same tenancy."""

AGENT_BITS = 12
AGENT_MASK = (1 << AGENT_BITS) - 1

STACK_BITS = 20
STACK_MASK = (1 << STACK_BITS) - 1


def generation(word: int) -> int:
    """The tenancy number in a tenancy word."""
    return (word & GENERATION_MASK) >> GENERATION_SHIFT


def holder(word: int) -> int:
    """The holder id in a tenancy word; 0 is not known."""
    return (word & HOLDER_MASK) >> HOLDER_SHIFT
