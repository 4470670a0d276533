"""What the engine does to order its streams: record, wait, query, sync."""

from __future__ import annotations

from ..events import Query, Record, Sync, Wait
from ..state import State


def record(state: State, event: Record) -> None:
    """The agent records the event."""
    state.clocks.record(event.event)


def wait(state: State, event: Wait) -> None:
    """What came before the latest record comes before what the agent does next."""
    state.clocks.wait(event.event)


def query(state: State, event: Query) -> None:
    """An event seen complete orders its past before what the host thread does next."""
    if event.ready:
        state.clocks.complete(event.event)


def sync(state: State, event: Sync) -> None:
    """The host thread waited for an agent, or for an event."""
    if event.on.startswith("event:"):
        state.clocks.complete(event.on.removeprefix("event:"))
    else:
        state.clocks.sync(event.on)
