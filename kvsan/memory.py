"""Who holds what, now, as text: for a console or a test."""

from __future__ import annotations

from .holdings import Holdings

SHOWN = 20


def check_memory() -> str:
    """The totals line that people know for each pool of this process, then who holds what is neither free nor
    cached."""
    from .hooks import NullSanitizer, current

    sanitizer = current()
    if isinstance(sanitizer, NullSanitizer):
        return "kvsan is off in this process: start it with `kvsan run -- COMMAND`"
    return sanitizer.check_memory()


def describe(holdings: Holdings) -> str:
    """The text of `check_memory`."""
    from .reporters.escape import visible

    lines = []
    for pool in holdings.pools:
        lines.append(
            f"{pool.pool}: available_size={pool.free}, cached={pool.cached}, owned={pool.owned}, "
            f"pending={pool.pending}, total_size={pool.size - pool.reserved}"
        )
        mine = sorted(
            ((owner.slots[pool.pool], owner) for owner in holdings.owners if pool.pool in owner.slots),
            key=lambda each: -each[0],
        )
        for count, owner in mine[:SHOWN]:
            state = f" ({owner.state})" if owner.state != "live" else ""
            lines.append(f"    {count:>8}  {visible(owner.name, 60)}{state}")
        if len(mine) > SHOWN:
            rest = sum(count for count, _ in mine[SHOWN:])
            lines.append(f"    {rest:>8}  {len(mine) - SHOWN} more owners")
        if pool.unknown:
            lines.append(f"    {pool.unknown:>8}  nobody known")
    return "\n".join(lines) if lines else "no pool was declared in this process"
