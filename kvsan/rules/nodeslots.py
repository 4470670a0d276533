"""What a cache node holds: lists of what came in, from which what has left since is sorted out."""

from __future__ import annotations

import numpy as np

from ..encoding import HELD, HOLDER_MASK, NODE
from ..events import Slots
from ..nodes import Node
from ..shadow import PoolShadow
from ..verdicts import NO_SLOTS

NOTED_BEYOND = 4096  # slots that a node's lists may name more than twice what it holds


def note(pool: PoolShadow, node: Node, slots: Slots) -> None:
    """The node is about to hold these slots too. Lists that name much more than it holds are made anew."""
    noted = node.noted.get(pool.number, 0)
    if noted > 2 * node.holder.held.get(pool.number, 0) + NOTED_BEYOND:
        refresh(pool, node)
        noted = node.noted[pool.number]
    node.slots.setdefault(pool.number, []).append(slots)
    node.noted[pool.number] = noted + int(slots.size)


def refresh(pool: PoolShadow, node: Node) -> None:
    """The node's lists name what it holds, and nothing else."""
    held = held_by(pool, node)
    node.slots[pool.number] = [held]
    node.noted[pool.number] = int(held.size)


def held_by(pool: PoolShadow, node: Node) -> Slots:
    """The slots of the pool that the node holds, ascending."""
    arrays = node.slots.get(pool.number)
    if not arrays:
        return NO_SLOTS
    slots = pool.existing(np.unique(np.concatenate(arrays)))
    wanted = HELD | NODE | node.holder.bits
    held: Slots = slots[(pool.tenancy[slots] & (HELD | NODE | HOLDER_MASK)) == wanted]
    return held
