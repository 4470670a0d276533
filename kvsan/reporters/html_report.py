"""The report as one page for a browser, without scripts and without anything from elsewhere.

What stands in it are the pages that a terminal gets, each finding behind a line that names it.
"""

from __future__ import annotations

from html import escape

from kvsan.findings import Finding, Report
from kvsan.reporters import finding, totals
from kvsan.reporters.escape import PROSE_LIMIT, visible
from kvsan.reporters.page import Page
from kvsan.reporters.places import Places
from kvsan.reporters.text import GLUE, plural

WIDTH = 110

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --paper: #fbfbf9; --line: #d9d9d2; --dim: #6b7076;
  --red: #b3261e; --yellow: #8a6100; --cyan: #00657a; --magenta: #8b2c8f; --green: #23702f; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe2e6; --paper: #16191d; --line: #363b42; --dim: #979da5;
  --red: #ff8a80; --yellow: #e3b341; --cyan: #62cfe4; --magenta: #dd94e0; --green: #7fce8a; } }
body { margin: 0 auto; padding: 1.5rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.25rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
pre { font: 13px/1.35 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; overflow-x: auto; margin: 0;
  padding: .9rem 0; }
details { border-top: 1px solid var(--line); } details:last-of-type { border-bottom: 1px solid var(--line); }
summary { cursor: pointer; padding: .55rem 0; overflow-wrap: anywhere; }
summary b { color: var(--red); } summary span { color: var(--dim); }
p { margin: .5rem 0; overflow-wrap: anywhere; }
.bold { font-weight: 600; } .dim { color: var(--dim); } .red { color: var(--red); } .yellow { color: var(--yellow); }
.cyan { color: var(--cyan); } .magenta { color: var(--magenta); } .green { color: var(--green); }
""".strip()


def render(report: Report, *, root: str = "", exit_status: int | None = None) -> str:
    """The document, in UTF-8 to be. The first finding is open."""
    places = Places.of(report, root)
    verdict = Page(WIDTH, terminal=False)
    totals.closing(verdict, report, exit_status)
    parts = [f"<h1>{_lines(verdict)}</h1>"]
    if report.findings:
        parts.append("<h2>Findings</h2>")
        parts += [
            _finding(each, places, number, len(report.findings)) for number, each in enumerate(report.findings, 1)
        ]
    if report.totals:
        pools = Page(WIDTH, terminal=False)
        totals.totals(pools, report)
        parts.append(f"<h2>Pools</h2>\n<pre>{_lines(pools)}</pre>")
    if report.failures or report.notes:
        parts.append("<h2>To be known</h2>")
        parts += [
            f'<p><b class="magenta">kvsan failed</b> in {_prose(failure.where)}: {_prose(failure.error)}; '
            f"{_prose(failure.cost)}</p>"
            for failure in report.failures
        ]
        parts += [f"<p>{_prose(note)}</p>" for note in report.notes]
    title = f"kvsan: {plural(len(report.findings), 'finding')}".replace(GLUE, " ")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{title}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>",
            *parts,
            "</body>\n</html>\n",
        ]
    )


def _finding(each: Finding, places: Places, number: int, of: int) -> str:
    page = Page(WIDTH, terminal=False)
    finding.draw(page, each, places, number, of)
    kind, _, rest = finding.summary(each, places).partition(" ")
    seen = f" <span>seen {plural(each.count, 'time')}</span>" if each.count > 1 else ""
    return (
        f'<details id="finding-{number}"{" open" if number == 1 else ""}>'
        f"<summary><b>{escape(kind)}</b> {escape(rest)}{seen}</summary>\n<pre>{_lines(page)}</pre></details>"
    )


def _lines(page: Page) -> str:
    """The page's lines, its styles as classes."""
    return "\n".join(
        "".join(
            f'<span class="{style}">{escape(text)}</span>' if style else escape(text) for text, style in pieces
        ).rstrip()
        for pieces in page.lines
    ).replace(GLUE, " ")


def _prose(text: str) -> str:
    return escape(visible(text, PROSE_LIMIT))
