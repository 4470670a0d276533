"""Who holds what, now, as text: for a console, a test, or a person in front of a living server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .holders import Holder

if TYPE_CHECKING:
    from .tracker import Tracker

SHOWN = 20


def check_memory() -> str:
    """The totals line that people know for each pool of this process, then who holds what is neither free nor
    cached."""
    from .hooks import NullSanitizer, current

    sanitizer = current()
    if isinstance(sanitizer, NullSanitizer):
        return "kvsan is off in this process: start it with `kvsan run -- COMMAND`"
    return sanitizer.check_memory()


def describe(tracker: Tracker) -> str:
    """The text of `check_memory` for one tracker."""
    from .reporters.escape import visible

    state = tracker.state
    lines = []
    holders = [holder for holder in state.holders.all() if holder.held and not holder.is_node]
    for pool, totals in zip(state.by_number, tracker.totals(), strict=True):
        total = pool.size - pool.reserved
        lines.append(
            f"{pool.name}: available_size={totals.free}, cached={totals.cached}, owned={totals.owned + totals.leaked}, "
            f"pending={totals.pending}, total_size={total}"
        )
        mine = sorted((h for h in holders if h.held.get(pool.number)), key=lambda h: -h.held[pool.number])
        lines += [
            f"    {holder.held[pool.number]:>8}  {visible(holder.name, 60)}{_life(holder)}" for holder in mine[:SHOWN]
        ]
        if len(mine) > SHOWN:
            rest = sum(holder.held[pool.number] for holder in mine[SHOWN:])
            lines.append(f"    {rest:>8}  {len(mine) - SHOWN} more owners")
        unknown = totals.owned + totals.leaked - sum(holder.held[pool.number] for holder in mine)
        if unknown:
            lines.append(f"    {unknown:>8}  nobody known")
    return "\n".join(lines) if lines else "no pool was declared in this process"


def _life(holder: Holder) -> str:
    return f" ({holder.state})" if holder.state != "live" else ""
