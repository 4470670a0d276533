"""A page of styled lines, laid out by width before anything is printed, so that no terminal has to break a path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from kvsan.reporters.text import GLUE, pad, wrap

BODY = 8
"""The column where the body of a line starts, behind its label."""

NARROWEST = 40
_GAP = 2

# For outputs that cannot show the characters of the layout.
_PLAIN = {"━": "=", "✕": "x", "·": "|", "→": "->", "…": "...", "←": "<-", "—": "--", "“": '"', "”": '"'}

Piece = tuple[str, str]
"""A text and its style; "" for none."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers stand at the right. `name` says what a cell is where its column has no room."""

    title: str
    right: bool = False
    name: str = ""


class Page:
    """Lines to print. `width` is in columns; only a word that is wider by itself stands out.

    On a `terminal` the lines that people search for (summaries) are wrapped too; elsewhere each stays one line.
    """

    def __init__(self, width: int, *, terminal: bool = True) -> None:
        self.width = max(width, NARROWEST)
        self.terminal = terminal
        self.lines: list[list[Piece]] = []

    def line(self, *pieces: Piece | str) -> None:
        """One line, as it is."""
        self.lines.append([(piece, "") if isinstance(piece, str) else piece for piece in pieces])

    def blank(self) -> None:
        """An empty line, unless there is one already."""
        if self.lines and self.lines[-1]:
            self.lines.append([])

    def paragraph(
        self, text: str, *, label: str = "", indent: int = BODY, style: str = "", label_style: str = ""
    ) -> None:
        """Words in lines that hang at `indent`; the label stands before the first."""
        head = pad(f" {label}", indent - 1) + " " if label else " " * indent
        if cell_len(head) > indent:
            self.line((head.rstrip(), label_style))
            head = " " * indent
        for row in wrap(text, self.width - indent):
            self.line((head, label_style), (row, style))
            head = " " * indent

    def sentence(self, text: str, *, style: str = "") -> None:
        """A line to search for: wrapped on a terminal, one line elsewhere."""
        rows = wrap(text, self.width - BODY) if self.terminal and cell_len(text) > self.width else [text]
        for number, row in enumerate(rows):
            self.line(" " * BODY if number else "", (row, style))

    def sides(self, head: Piece, body: Piece, right: str, *, column: int) -> None:
        """Head and body from the start, right from `column` or before it; below each other where they do not fit."""
        used = cell_len(head[0]) + cell_len(body[0])
        start = max(used + _GAP + 1, min(column, self.width - cell_len(right)))
        if right and start + cell_len(right) <= self.width:
            self.line(head, body, " " * (start - used), (right, "dim"))
            return
        rows = wrap(body[0], self.width - max(BODY, cell_len(head[0])))
        self.line(head, (rows[0] if rows else "", body[1]))
        for row in rows[1:]:
            self.line(" " * BODY, (row, body[1]))
        self.paragraph(right, style="dim")

    def table(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[str]],
        *,
        indent: int = BODY,
        heads: bool = True,
        tight: bool = False,
    ) -> None:
        """Cells in columns; the last ones move to a second line of their row where the width does not hold them all.

        `tight` columns stand one space apart before any of them moves.
        """
        titled = [[column.title for column in columns], *rows] if heads else [*rows]
        widths = [max((cell_len(row[i]) for row in titled), default=0) for i in range(len(columns))]
        room = self.width - indent - sum(widths)
        gap = 1 if tight and room < _GAP * (len(columns) - 1) else _GAP
        kept = len(columns)
        while kept > 1 and indent + sum(widths[:kept]) + gap * (kept - 1) > self.width:
            kept -= 1
        for number, row in enumerate(titled):
            head = heads and number == 0
            cells = [pad(cell, widths[i], columns[i].right) for i, cell in enumerate(row)]
            self.line(" " * indent, ((" " * gap).join(cells[:kept]).rstrip(), "dim" if head else ""))
            rest = [] if head else [_named(columns[i], row[i]) for i in range(kept, len(columns))]
            self.paragraph(f" ·{GLUE}".join(part for part in rest if part), indent=indent + 4)

    def text(self) -> str:
        """The lines without their styles, a newline at the end of each."""
        return "".join("".join(text for text, _ in pieces).rstrip() + "\n" for pieces in self.lines).replace(GLUE, " ")

    def print(self, console: Console) -> None:
        """Prints the lines; the console neither wraps nor crops them nor reads markup."""
        for pieces in self.lines:
            text = Text(end="")
            for content, style in pieces:
                text.append(_encodable(content.replace(GLUE, " "), console.encoding), style or None)
            text.rstrip()
            console.print(text, soft_wrap=True, highlight=False)


def _named(column: Column, cell: str) -> str:
    return f"{column.name} {cell}".lstrip() if cell not in ("", "-") else ""


def _encodable(text: str, encoding: str) -> str:
    """The text in characters that the output knows."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        for char, plain in _PLAIN.items():
            text = text.replace(char, plain)
        return text.encode("ascii", "backslashreplace").decode("ascii")
    return text
