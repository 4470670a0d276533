"""Sessions with a historical bug."""

from __future__ import annotations

from . import bugs
from .sessions import Session, Sessions


class ForgetsTheTail(Sessions):
    """A turn goes on behind what is computed, as if nothing had been allocated beyond."""

    def _resumed(self, session: Session) -> list[int]:
        return session.kv.slots[: session.kv.committed]


SESSIONS: dict[str, type[Sessions]] = {bugs.SESSION_TAIL: ForgetsTheTail}
