"""Readers of streaming sessions from 0.5.19 to 0.5.21: a session takes over what its first turn has when that turn
ends, not when it begins."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..requests import hand_over, session_name
from ..watch import Watch

Reading = Generator[None, Any, None]


def keep(watch: Watch, sessions: Any, req: Any, *args: Any, **kwargs: Any) -> Reading:
    """`try_cache_finished_req`: the first turn's record, row, slots and lock go over; later turns have them lent."""
    session, kv, node = req.session, req.kv, req.last_node
    first = session is not None and session.session_id not in sessions.slots
    kept = yield
    slot = sessions.slots.get(session.session_id) if first and kept else None
    if slot is not None and slot.kv is kv and sessions is watch.tree.session:
        hand_over(watch, str(req.rid), session_name(session.session_id), kv, node)
