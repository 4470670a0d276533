"""What one living process answers: its pools, who holds what of them, and on request where its threads are."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from kvsan.asking import Answer
from kvsan.holdings import OwnerCounts
from kvsan.reporters.escape import NAME_LIMIT, PROSE_LIMIT, visible
from kvsan.reporters.page import Column, Page
from kvsan.reporters.places import Places
from kvsan.reporters.text import GLUE, age, grouped, plural
from kvsan.reporters.totals import kinds_found


def draw(page: Page, answer: Answer, name: str, *, most: int | None, threads: bool, root: str = "") -> None:
    """The whole answer; `most` owners (None: all), `threads` with their stacks. Paths below `root` start there."""
    title = f"━━━ kvsan: pid {answer.pid} {visible(name, page.width - 40)} ".replace("  ", " ")
    page.line((title + "━" * max(3, page.width - cell_len(title)), "bold"))
    page.paragraph(_standing(answer), indent=1)
    page.blank()
    if answer.error:
        page.paragraph(visible(answer.error, PROSE_LIMIT), label="FAILED", label_style="bold magenta")
    if answer.holdings.pools:
        _pools(page, answer)
        page.blank()
        _owners(page, answer, most)
    elif not answer.error:
        page.paragraph("No pool was declared so far.", indent=1)
    if threads:
        places = Places(root=root)
        for thread in answer.threads:
            page.blank()
            page.line((f" thread {visible(thread.name, NAME_LIMIT)}", "bold cyan"))
            rows = [(places.frame(frame), visible(frame.function)) for frame in thread.stack]
            page.table((Column("site"), Column("function")), rows, heads=False)
    page.blank()


def _standing(answer: Answer) -> str:
    said = [f"level {answer.level}", plural(answer.events, "event").replace(GLUE, " ")]
    if answer.events:
        said[-1] += f", the last {age(max(0, answer.quiet_ns))} ago"
    if answer.holdings.batches:
        said.append(f"{plural(answer.holdings.batches, 'batch', 'batches')} in flight")
    if answer.waiting:
        said.append(f"{plural(answer.waiting, 'event')} wait for slot ids from the device")
    if not answer.watching:
        said.append("no longer watched: kvsan's report says why")
    if answer.holdings.findings:
        said.append(f"found so far: {kinds_found(answer.holdings.findings)}")
    return " · ".join(said)


def _pools(page: Page, answer: Answer) -> None:
    columns = [
        Column("pool"),
        *(Column(name, right=True) for name in ("size", "reserved", "free", "pending", "owned", "cached")),
    ]
    rows = [
        [
            visible(pool.pool, NAME_LIMIT),
            *map(grouped, (pool.size, pool.reserved, pool.free, pool.pending, pool.owned, pool.cached)),
        ]
        for pool in answer.holdings.pools
    ]
    page.table(columns, rows, indent=1, tight=True)


def _owners(page: Page, answer: Answer, most: int | None) -> None:
    owners, pools = answer.holdings.owners, [pool.pool for pool in answer.holdings.pools]
    shown = [[visible(each.name, NAME_LIMIT), *_counts(pools, [each]), each.state] for each in owners[:most]]
    if rest := owners[len(shown) :]:
        shown.append([f"{grouped(len(rest))} more owners", *_counts(pools, rest), ""])
    if any(pool.unknown for pool in answer.holdings.pools):
        unknown = [_some(pool.unknown) for pool in answer.holdings.pools]
        shown.append(["nobody known", *unknown, "-", ""])
    if not shown:
        page.paragraph("Nobody holds anything.", indent=1)
        return
    columns = [
        Column("owner"),
        *(Column(visible(pool, NAME_LIMIT), right=True, name=visible(pool, NAME_LIMIT)) for pool in pools),
        Column("locked nodes", right=True, name="locked nodes"),
        Column("state"),
    ]
    page.table(columns, shown, indent=1)


def _counts(pools: Sequence[str], owners: Sequence[OwnerCounts]) -> list[str]:
    held = [_some(sum(owner.slots.get(pool, 0) for owner in owners)) for pool in pools]
    return [*held, _some(sum(owner.locked for owner in owners))]


def _some(count: int) -> str:
    return grouped(count) if count else "-"
