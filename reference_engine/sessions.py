"""Sessions: a conversation keeps its row and its slots between turns, so that a turn computes its own tokens only.

A turn's prompt is added to the text so far. Between turns `session:ID` holds what the last turn's request held; the
next one takes it over. An idle session gives everything up when there is no room for others, and its next turn starts
anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .holdings import Holdings
from .pools import ROWS
from .probe import Probe
from .record import KvRecord
from .request import Request, SamplingParams


@dataclass(slots=True, eq=False)
class Session:
    """One conversation. `tokens` is its text without the turn in work.

    `kv` is what it holds while no turn is in work; token slots may reach beyond what is committed, where the last turn
    got more than it used.
    """

    owner: str
    tokens: list[int] = field(default_factory=list)
    in_work: bool = False
    closed: bool = False
    kv: KvRecord = field(default_factory=KvRecord)


class Sessions:
    """All sessions by id; those used longest ago come first.

    Where they do not `keep`, each turn computes the whole text anew: a recurrent state is already beyond the last
    token, and on the decode side another server computes every prompt.
    """

    def __init__(self, holdings: Holdings, probe: Probe, *, keep: bool) -> None:
        self._holdings = holdings
        self._probe = probe
        self._keep = keep
        self._sessions: dict[str, Session] = {}

    @property
    def held(self) -> int:
        """The token slots that sessions hold, in whole pages."""
        page = self._holdings.kv.page_size
        return page * sum(len({slot // page for slot in session.kv.own}) for session in self._sessions.values())

    def begin(self, request: Request) -> None:
        """Makes the request a turn of its session; it is rejected while another turn is in work."""
        if request.session is None:
            return
        session = self._sessions.pop(request.session, None) or Session(f"session:{request.session}")
        self._sessions[request.session] = session
        if session.in_work:
            request.rejected = f"the session {request.session!r} has a turn in work"
            request.session = None
            return
        session.in_work = True
        request.prompt = session.tokens + request.prompt

    def has_row(self, request: Request) -> bool:
        """Whether the request's session keeps a row for it."""
        session = self._of(request)
        return session is not None and not session.kv.released and request.rejected is None

    def resume(self, request: Request) -> bool:
        """Gives the request what its session holds; False if that is nothing."""
        session = self._of(request)
        if session is None or session.kv.released or request.rejected is not None:
            return False
        self._hand_over(session.kv, session.owner, request.rid)
        session.kv.slots = self._resumed(session)
        request.kv, session.kv = session.kv, KvRecord()
        self._holdings.register(request)
        self._holdings.tell_record(request)
        return True

    def keep(self, request: Request) -> None:
        """Puts what the request holds back into the session."""
        session = self._of(request)
        assert session is not None
        self._holdings.unregister(request)
        self._hand_over(request.kv, request.rid, session.owner)
        session.kv, request.kv = request.kv, KvRecord()
        self._holdings.tell_record(request)
        request.guess, request.refined = None, 0

    def end_turn(self, request: Request, *, finished: bool) -> None:
        """The turn is over. If it finished, its tokens are the session's, and so is what it holds; else it has been
        released."""
        session = self._of(request)
        if session is None:
            return
        if finished:
            session.tokens = request.tokens
            request.kv.committed = min(request.kv.committed, len(session.tokens) - 1)
            if self._keep and not session.closed:
                self.keep(request)
                request.epoch += 1
            else:
                self._holdings.release(request)
        session.in_work = False
        if session.closed and request.session is not None:
            self.close(request.session)

    def shed(self) -> bool:
        """Takes what one idle session holds, the one used longest ago; False if none holds anything."""
        for session in self._sessions.values():
            if not session.kv.released:
                self._release(session)
                return True
        return False

    def close(self, name: str) -> None:
        """Ends a session, after its turn in work; an unknown one is no error."""
        session = self._sessions.get(name)
        if session is None:
            return
        session.closed = True
        if not session.in_work:
            self._release(session)
            self._probe.req_end(owner=session.owner)
            del self._sessions[name]

    def _of(self, request: Request) -> Session | None:
        return None if request.session is None else self._sessions[request.session]

    def _resumed(self, session: Session) -> list[int]:
        """The slots with which a turn goes on: also those beyond what is computed."""
        return session.kv.slots

    def _hand_over(self, record: KvRecord, giver: str, taker: str) -> None:
        assert record.row is not None and record.node is not None
        self._probe.give(ROWS, record.row, owner=giver, to=taker)
        if record.slots:
            self._holdings.kv.tell_give(record.slots, record.own, giver, taker)
        self._holdings.cache.lock(record.node, taker)
        self._holdings.cache.unlock(record.node, giver)

    def _release(self, session: Session) -> None:
        if not session.kv.released:
            holder = Request(session.owner, [], SamplingParams(), kv=session.kv)
            self._holdings.release(holder)
            session.kv = holder.kv
