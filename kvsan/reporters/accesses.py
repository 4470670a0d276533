"""Events as a finding cites them: the two accesses with their stacks, and a slot's history."""

from __future__ import annotations

from kvsan.findings import Access, Finding
from kvsan.reporters.escape import named, quoted, visible
from kvsan.reporters.page import Column, Page
from kvsan.reporters.phrases import agent_phrase, joiner, owner_phrase, past, plain, verb
from kvsan.reporters.places import Places
from kvsan.reporters.text import GLUE, grouped, plural

SECOND_COLUMN = 50
"""Where what stands at the right of a line starts, if the width allows."""

_HISTORY_HEAD, _HISTORY_TAIL = 3, 12


def access(page: Page, event: Access, finding: Finding, places: Places) -> None:
    """` WRITE  cells [0, 128) by request "b7"   stream schedule · batch 12 · event 3 412`, then its stack."""
    where = _where(event, finding, places)
    who = owner_phrase(event.owner) if event.owner is not None else ""
    if where and who:
        who = f" {joiner(event.what)} {who}".replace("  ", " ")
    node = f"node {quoted(event.node)}" if event.node is not None else ""
    if node and not where:
        where, node = f"{node} " if who and not joiner(event.what) else node, ""
        who = f" {joiner(event.what)} {who}" if who else ""
    batch = f"batch {named(event.batch)}" if event.batch is not None else ""
    note = visible(event.note)
    if batch and note:
        batch, note = f"{batch} ({note})", ""
    step = ""
    if event is finding.earlier and event.step is not None:
        step = f"step {grouped(event.step)}"
    index = f"event {grouped(event.at)}" if event.at >= 0 else ""
    parts = [agent_phrase(event.agent), node, batch, step, index, note]
    page.sides((f" {verb(event.what):<6} ", "bold"), (f"{where}{who}", ""), facts(parts), column=SECOND_COLUMN)
    _stack(page, event, places)


def _where(access: Access, finding: Finding, places: Places) -> str:
    pool = access.pool or finding.pool
    if pool is None or not joiner(access.what):
        return f"cells [{access.cells[0]}, {access.cells[1]})" if access.cells is not None else ""
    slots = places.slots(pool, access.slots) if access.slots or access.pool else ""
    if access.cells is None:
        return slots
    cells = f"cells [{access.cells[0]}, {access.cells[1]})"
    if not places.has_rows(pool):
        return f"{slots} (row {cells})" if slots else f"row {cells}"
    same = pool == finding.pool and (not access.slots or access.slots[:1] == finding.slots[:1])
    return cells if same else f"{slots} {cells}"


def facts(parts: list[str]) -> str:
    """`host · batch 12 · event 3 412`; a short part stays together when the line is wrapped."""
    held = [part.replace(" ", GLUE) if len(part) < 40 else part for part in parts if part]
    return f" ·{GLUE}".join(held)


def _stack(page: Page, access: Access, places: Places) -> None:
    """Innermost frame first: file and line, function; the function below where the width does not hold both."""
    if not access.stack:
        if access.site:
            page.paragraph(f"at {places.site(access)}", style="dim")
        return
    frames = [(places.frame(frame), visible(frame.function)) for frame in access.stack]
    page.table((Column("site"), Column("function")), frames, heads=False)


def history(page: Page, finding: Finding, places: Places) -> None:
    """Where the slot comes from: its generation, who holds it, and one line for each of its transitions."""
    if not finding.provenance and finding.generation is None and finding.holder is None:
        return
    said = []
    if finding.generation is not None:
        begun = sum(plain(step.what) == "alloc" for step in finding.provenance)
        first = max(finding.generation - begun + 1, 0)
        said.append(f"generation {f'{first} → ' if begun > 1 and first else ''}{finding.generation}")
    if finding.holder is not None:
        said.append(f"held by {owner_phrase(finding.holder)}")
    page.line((f" {places.heading(finding)}", "bold"), "  ", ", ".join(said))
    steps = finding.provenance
    left_out = len(steps) - _HISTORY_HEAD - _HISTORY_TAIL
    rows = [_transition(step, places) for step in steps]
    if left_out > 1:
        more = f"… {plural(left_out, 'transition')} not shown (the JSON report has them)"
        rows[_HISTORY_HEAD:-_HISTORY_TAIL] = [("", more, "")]
    page.table((Column("event"), Column("what"), Column("site")), rows, heads=False)


def _transition(step: Access, places: Places) -> tuple[str, str, str]:
    words = [past(visible(step.what), step.owner)]
    if step.node is not None:
        words.append(f"node {quoted(step.node)}")
    if step.batch is not None:
        words.append(f"batch {named(step.batch)}")
    if step.agent != "host":
        words.append(agent_phrase(step.agent))
    if step.note:
        words.append(visible(step.note))
    return f"event {grouped(step.at)}" if step.at >= 0 else "", ", ".join(words), places.site(step)
