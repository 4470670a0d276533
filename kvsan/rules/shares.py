"""Shares: an owner uses slots that a cache node holds. Ending a share gives nothing back."""

from __future__ import annotations

import numpy as np

from ..encoding import CELL_KEY_MASK, SHARED
from ..events import Slots
from ..holders import Holder, Share
from ..shadow import Mask, PoolShadow


def _lasting(pool: PoolShadow, share: Share) -> Mask:
    """Which of the share's slots are still held in the tenancy they had when it began."""
    lasting: Mask = (pool.tenancy[share.slots] & CELL_KEY_MASK) == share.keys
    return lasting


def shares(holder: Holder | None, pool: PoolShadow, slots: Slots) -> Mask:
    """Which of the slots the holder shares with the node that holds them: shape [len(slots)]."""
    result = np.zeros(slots.size, np.bool_)
    if holder is not None:
        for share in holder.shares.get(pool.number, ()):
            result |= pool.among(slots, share.slots[_lasting(pool, share)])
    return result


def add_shares(pool: PoolShadow, holder: Holder, slots: Slots) -> None:
    """The holder becomes a sharer of distinct slots that it does not share yet."""
    if slots.size:
        words = pool.tenancy[slots]
        pool.share_words()[slots] += 1
        pool.tenancy[slots] = words | SHARED
        holder.shares.setdefault(pool.number, []).append(Share(slots, words & CELL_KEY_MASK))


def end_shares(holder: Holder, pool: PoolShadow, slots: Slots | None = None) -> None:
    """The holder's shares of these slots (None: of all of the pool's) end."""
    sharers = pool.share_words()
    kept = []
    for share in holder.shares.pop(pool.number, []):
        lasting = _lasting(pool, share)
        ends = lasting if slots is None else lasting & pool.among(share.slots, slots)
        gone = share.slots[ends]
        sharers[gone] -= 1
        pool.tenancy[gone[sharers[gone] <= 0]] &= ~SHARED
        if slots is None:
            continue
        stays = lasting & ~ends
        if stays.any():
            kept.append(Share(share.slots[stays], share.keys[stays]))
    if kept:
        holder.shares[pool.number] = kept
