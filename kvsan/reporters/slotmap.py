"""The map of a slot's neighbourhood, with a legend of the letters that occur."""

from __future__ import annotations

from rich.cells import cell_len

from kvsan.findings import SlotMap
from kvsan.reporters.escape import visible
from kvsan.reporters.page import BODY, Page, Piece
from kvsan.reporters.phrases import unit
from kvsan.reporters.places import Places
from kvsan.reporters.text import grouped, pad, plural

# Letter: its word and its style; in the order of the legend.
LETTERS: dict[str, tuple[str, str]] = {
    ".": ("free", "dim"),
    "o": ("owned", "green"),
    "c": ("cached", "cyan"),
    "p": ("pending", "yellow"),
    "r": ("being read", "blue"),
    "x": ("in transfer", "magenta"),
    "!": ("this {noun}", "bold red"),
    "#": ("reserved", "dim"),
}

_RULED_MOST = 16
_GROUP = 8
_LINE = 32
_LINES_MOST = 12


def draw(page: Page, slot_map: SlotMap, places: Places) -> None:
    """Few slots under a ruler of their numbers; many as lines of letters behind the number of their first slot."""
    if not slot_map.letters:
        return
    noun, several = unit(places.kinds.get(slot_map.pool, slot_map.pool))
    label = several if noun == "row" else places.pool(slot_map.pool)
    if cell_len(label) > BODY - 2:
        page.line((f" {label}", "bold"))
        label = ""
    legend = _legend(slot_map.letters, noun)
    width = len(str(slot_map.first + len(slot_map.letters) - 1)) + 2
    if len(slot_map.letters) <= _RULED_MOST and BODY + width * len(slot_map.letters) <= page.width:
        _ruled(page, slot_map, label, legend, width)
    else:
        _lines(page, slot_map, label)
        page.paragraph(legend)


def _legend(letters: str, noun: str) -> str:
    known = [f"{letter} {word.format(noun=noun)}" for letter, (word, _) in LETTERS.items() if letter in letters]
    strange = [f"{visible(letter)} unknown" for letter in dict.fromkeys(letters) if letter not in LETTERS]
    return "  ".join(entry.replace(" ", "\u00a0") + "\u00a0" for entry in known + strange).rstrip("\u00a0")


def _ruled(page: Page, slot_map: SlotMap, label: str, legend: str, width: int) -> None:
    numbers = "".join(f"{slot_map.first + i:<{width}}" for i in range(len(slot_map.letters)))
    head = pad(f" {label}", BODY)
    beside = "  ".join(("", "", legend))
    if BODY + cell_len(numbers.rstrip()) + cell_len(beside) <= page.width:
        page.line((head, "bold"), (numbers.rstrip() + beside, "dim"))
        legend = ""
    else:
        page.line((head, "bold"), (numbers.rstrip(), "dim"))
    page.line(" " * BODY, *((pad(visible(letter), width), _style(letter)) for letter in slot_map.letters))
    if legend:
        page.paragraph(legend, style="dim")


def _lines(page: Page, slot_map: SlotMap, label: str) -> None:
    per_line = _LINE if page.width >= 64 else _LINE // 2
    starts = range(0, len(slot_map.letters), per_line)
    shown = _shown(slot_map.letters, per_line, len(starts))
    width = max(6, len(grouped(slot_map.first + len(slot_map.letters))))
    previous = -1
    for number in shown:
        if number != previous + 1:
            page.line(" " * BODY, (f"… {plural((number - previous - 1) * per_line, 'slot')} not shown", "dim"))
        start = starts[number]
        letters = slot_map.letters[start : start + per_line]
        mark = "=> " if "!" in letters else "   "
        groups: list[Piece] = []
        for at, letter in enumerate(letters):
            groups.append((visible(letter), _style(letter)))
            if at % _GROUP == _GROUP - 1:
                groups.append((" ", ""))
        head = pad(f" {label}" if number == shown[0] else "", BODY) + mark
        page.line((head, "bold"), (f"{grouped(slot_map.first + start):>{width}}  ", "dim"), *groups)
        previous = number
    left = len(slot_map.letters) - (shown[-1] + 1) * per_line
    if left > 0:
        page.line(" " * BODY, (f"… {plural(left, 'slot')} not shown", "dim"))


def _shown(letters: str, per_line: int, lines: int) -> list[int]:
    """The lines to show, at most `_LINES_MOST`: those with the finding's slots, and the ones beside the first."""
    if lines <= _LINES_MOST:
        return list(range(lines))
    marked = [n for n in range(lines) if "!" in letters[n * per_line : (n + 1) * per_line]] or [0]
    near = {marked[0] - 1, marked[0] + 1, *marked[:_LINES_MOST]}
    return sorted(n for n in near if 0 <= n < lines)[:_LINES_MOST]


def _style(letter: str) -> str:
    return LETTERS[letter][1] if letter in LETTERS else ""
