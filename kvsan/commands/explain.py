"""`kvsan explain KIND`."""

from __future__ import annotations

import argparse
import sys

from kvsan.explain import find
from kvsan.explanations import EXPLANATIONS, Explanation
from kvsan.findings import KINDS
from kvsan.reporters.page import BODY, Column, Page
from kvsan.reporters.terminal import console_for
from kvsan.reporters.text import GLUE, sentence


class Explain:
    """Say what a kind of finding means.

    The rule, why it is a fault, how engines came to it and how to mend it.
    Without KIND, list all kinds.
    """

    name = "explain"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("kind", nargs="?", metavar="KIND", help="a kind as reports name it, such as race or leak")

    def run(self, args: argparse.Namespace) -> int:
        """Prints to standard output. Raises OptionError for an unknown kind."""
        console = console_for(sys.stdout)
        page = explain_page(*find(args.kind), console.width) if args.kind else list_page(console.width)
        page.print(console)
        return 0


def explain_page(kind: str, explanation: Explanation, width: int) -> Page:
    """Everything about one kind."""
    page = Page(min(width, 100))
    page.line((kind, "bold red"), f"  {explanation.title}")
    page.blank()
    said = {
        "RULE": explanation.rule,
        "WHY": explanation.why,
        "SEEN": explanation.seen,
        "ADD": sentence(explanation.fix),
        "NEXT": explanation.look,
    }
    for label, text in said.items():
        page.paragraph(text, label=label, label_style="bold cyan")
        if label == "SEEN":
            page.paragraph(f"Public reports: {', '.join(explanation.references)}", style="dim", indent=BODY)
    return page


def list_page(width: int) -> Page:
    """All kinds in the order in which they name an event that breaks several rules."""
    page = Page(width)
    rows = [(kind, EXPLANATIONS[kind].title.replace(" ", GLUE)) for kind in KINDS]
    page.table((Column("kind"), Column("what it is")), rows, indent=1)
    page.blank()
    page.paragraph("kvsan explain KIND says more.", indent=1)
    return page
