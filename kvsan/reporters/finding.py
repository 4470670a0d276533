"""One finding on the terminal, always in the same order.

title -> the two sites and the process -> present access -> earlier access -> holdings (leaks) -> where the slot comes
from -> its neighbourhood -> WHY and ADD -> what follows from it -> SUMMARY -> DEDUP -> REPLAY
"""

from __future__ import annotations

import re
from collections import Counter

from rich.cells import cell_len

from kvsan.explain import hint_text, references, why_text
from kvsan.findings import KINDS, Finding
from kvsan.reporters import accesses, leaks, slotmap
from kvsan.reporters.escape import PROSE_LIMIT, quoted, shell_word, visible
from kvsan.reporters.page import BODY, Page
from kvsan.reporters.phrases import owner_short, phrase
from kvsan.reporters.places import Places
from kvsan.reporters.text import GLUE, grouped, plural, sentence

_EVENT = re.compile(r"\bevent (\d{1,18})\b")
_JOINED_MOST = 8
_EXTRA_MOST = 20
# Details that other lines of the report say.
_SAID = frozenset({"earlier", "ended"})


def draw(page: Page, finding: Finding, places: Places, number: int, of: int) -> None:
    """The whole finding, with its number among all of them."""
    _title(page, finding, places, f"{grouped(number)} of {grouped(of)}")
    _process(page, finding, places)
    page.blank()
    if finding.present is not None:
        accesses.access(page, finding.present, finding, places)
    if finding.earlier is not None:
        page.blank()
        page.line((f" {phrase(finding.kind).relation}", "bold yellow"))
        page.blank()
        accesses.access(page, finding.earlier, finding, places)
    if finding.held:
        page.blank()
        page.paragraph(leaks.sentence(finding), indent=1)
        page.blank()
        leaks.holdings(page, finding, places)
    page.blank()
    accesses.history(page, finding, places)
    if finding.slot_map is not None:
        page.blank()
        slotmap.draw(page, finding.slot_map, places)
    page.blank()
    _reasons(page, finding)
    _joined(page, finding, places)
    page.blank()
    _end(page, finding, places)


def summary(finding: Finding, places: Places) -> str:
    """`race on req_to_token row 1 (row_writer.py:52 write vs forward.py:48 launch)`: one line about the finding."""
    by = f" by {owner_short(finding.owner)}" if finding.held and finding.owner is not None else ""
    return f"{visible(finding.kind)} {_headline(finding, places)}{by}{_two_sites(finding, places)}"


def _headline(finding: Finding, places: Places) -> str:
    of = phrase(finding.kind).of
    return f"{of} {leaks.lost(finding.held, places) if finding.held else places.object(finding)}"


def _title(page: Page, finding: Finding, places: Places, number: str) -> None:
    label = visible(phrase(finding.kind).label)
    if finding.severity != "error":
        label += f" ({visible(finding.severity)})"
    headline = f"kvsan: {label} {_headline(finding, places)}"
    fill = page.width - cell_len(headline) - cell_len(number) - 10
    if fill > 0:
        page.line(("━━━ ", "red"), (headline, "bold red"), (f" {'━' * fill} ", "red"), number, (" ━━━", "red"))
        return
    page.line(("━" * (page.width - cell_len(number) - 5) + " ", "red"), number, (" ━━━", "red"))
    page.paragraph(headline, indent=1, style="bold red")


def _process(page: Page, finding: Finding, places: Places) -> None:
    """The two sites, and which process, step and rank it happened in."""
    present, earlier = places.short_site(finding.present), places.short_site(finding.earlier)
    between = phrase(finding.kind).between
    # Two spaces on either side, which do not fall away where the line is wrapped.
    left = f"{present}{GLUE} {between}{GLUE} {earlier}" if present and earlier else present or earlier
    if present and present == earlier:
        left = f"{present}, both times"
    parts = []
    if finding.pid is not None:
        name = f" {quoted(finding.process)}" if finding.process else ""
        parts.append(f"pid {finding.pid}{name}")
    elif finding.process:
        parts.append(f"process {quoted(finding.process)}")
    elif finding.file:
        parts.append(f"trace {places.path(finding.file)}")
    if finding.present is not None and finding.present.step is not None:
        parts.append(f"step {grouped(finding.present.step)}")
    if finding.rank is not None:
        parts.append(f"rank {finding.rank}")
    right = accesses.facts(parts)
    if present or earlier:
        page.sides((" ", ""), (left, "bold"), right, column=accesses.SECOND_COLUMN)
    elif right:
        page.paragraph(right, indent=1, style="dim")


def _glued(site: str) -> str:
    """A site whose line and function stay together when the summary is wrapped."""
    return site.replace(" ", GLUE) if len(site) < 60 else site


def _reasons(page: Page, finding: Finding) -> None:
    page.paragraph(_prose(finding.why or why_text(finding.kind)), label="WHY", label_style="bold cyan")
    if finding.missing:
        page.paragraph(_prose(sentence(finding.missing)))
    page.paragraph(_prose(finding.hint or hint_text(finding.kind)), label="ADD", label_style="bold cyan")
    see = [f"kvsan explain {finding.kind}"] if finding.kind in KINDS else []
    see += references(finding.kind)[:1]
    if see:
        page.paragraph(f"See: {accesses.facts(see)}", style="dim")
    extra = [(key, value) for key, value in finding.extra.items() if key not in _SAID]
    for number, (key, value) in enumerate(extra[:_EXTRA_MOST]):
        label = "" if number else "ALSO"
        page.paragraph(
            f"{visible(key.replace('_', ' '), 60)}: {visible(value, PROSE_LIMIT)}", label=label, label_style="bold cyan"
        )
    if len(extra) > _EXTRA_MOST:
        page.paragraph(f"… {len(extra) - _EXTRA_MOST} more (the JSON report has them)")


def _prose(text: str) -> str:
    """A detector's sentences, event indexes written as everywhere in the report."""
    return _EVENT.sub(lambda found: f"event{GLUE}{grouped(int(found[1]))}", visible(text, PROSE_LIMIT))


def _joined(page: Page, finding: Finding, places: Places) -> None:
    """Later violations of the same cause, briefly."""
    if not finding.joined:
        return
    said = []
    for later in finding.joined[:_JOINED_MOST]:
        where = f" on {places.slots(later.pool, later.slots)}" if later.pool is not None else ""
        who = f" by {owner_short(later.owner)}" if later.owner is not None else ""
        said.append(f"{visible(later.kind)} at event {grouped(later.at)}{where}{who}")
    rest = Counter(visible(later.kind) for later in finding.joined[_JOINED_MOST:])
    if rest:
        kinds = ", ".join(f"{grouped(count)} {kind}" for kind, count in rest.items())
        said.append(f"… and {grouped(sum(rest.values()))} more ({kinds}; the JSON report has them)")
    verb = "follows" if len(finding.joined) == 1 else "follow"
    page.paragraph(f"{verb} from this: {'; '.join(said)}", label="THEN", label_style="bold cyan")


def _end(page: Page, finding: Finding, places: Places) -> None:
    page.sentence(f"SUMMARY: kvsan: {summary(finding, places)}", style="bold")
    token = visible(finding.token, PROSE_LIMIT) or f"{visible(finding.kind)}:{visible(finding.object, 120)}"
    seen = "seen once" if finding.count == 1 else f"seen {plural(finding.count, 'time')}"
    if page.terminal and cell_len(f"DEDUP: {token}   {seen}") > page.width:
        page.line(("DEDUP: ", "bold"), token)
        page.line(" " * BODY + seen)
    else:
        page.line(("DEDUP: ", "bold"), f"{token}   {seen}")
    if finding.file:
        at = f" --at {finding.at}" if finding.at >= 0 else ""
        page.line(("REPLAY: ", "bold"), f"kvsan check {shell_word(finding.file)}{at}")
    else:
        page.paragraph("REPLAY: no trace was kept; kvsan run --record TRACE keeps one", indent=0, style="dim")


def _two_sites(finding: Finding, places: Places) -> str:
    if finding.held:
        site = places.site(leaks.direct_first(finding.held)[0].allocated)
        return f" ({_glued(site)})" if site else ""
    between = phrase(finding.kind).between.replace("✕", "vs")
    sides = []
    for access in (finding.present, finding.earlier):
        if access is not None:
            said = _glued(places.site(access)) or (f"event {grouped(access.at)}" if access.at >= 0 else "")
            sides += [said] if said else []
    if len(sides) == 2 and sides[0] == sides[1]:
        return f" ({sides[0]}, both times)"
    return f" ({f' {between} '.join(sides)})" if sides else ""
