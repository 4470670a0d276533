"""What an engine or a client controls, made safe to print: no control characters, no hidden ones, no endless names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

NAME_LIMIT = 48
LINE_LIMIT = 240
PROSE_LIMIT = 4000

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\x1b", "\0": "\\0"}
# Letters by their category, and yet nothing shows where they stand.
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
_WORD = re.compile(r"[A-Za-z0-9_.:@#/+-]+")
_MARKS_IN_A_ROW = 2


def visible(text: str, limit: int | None = LINE_LIMIT) -> str:
    """The text with everything that could move, hide or recolour a terminal's text written as an escape.

    Escaped are control and format characters (bidirectional controls and ANSI escapes among them), line and paragraph
    separators, spaces other than the plain one, surrogates, unassigned and private characters, and stacked marks. More
    than `limit` characters of result are shortened in the middle, and the text's length is given.
    """
    return _join(_bounded(text, "", limit), len(text), limit)


def quoted(text: str, limit: int | None = NAME_LIMIT) -> str:
    """The text as `visible`, in double quotes, its quotes and backslashes escaped, so that its end cannot be forged."""
    return _quote(_bounded(text, '"\\', limit), len(text), limit)


def named(text: str, limit: int | None = NAME_LIMIT) -> str:
    """A name as it is where it is one plain word, else as `quoted`."""
    plain = _WORD.fullmatch(text) is not None and (limit is None or len(text) <= limit)
    return text if plain else quoted(text, limit)


def shell_word(text: str) -> str:
    """The text as one word of a POSIX shell (of bash, where it holds characters that must be escaped)."""
    shown = visible(text, None)
    if _WORD.fullmatch(text) and not text.startswith("#"):
        return text
    if shown == text:
        return "'" + text.replace("'", "'\\''") + "'"
    return "$'" + "".join(_units(text, "'\\")) + "'"


def _bounded(text: str, also: str, limit: int | None) -> list[str]:
    """The pieces of the text, or of enough of both its ends where it is longer than two times the limit."""
    if limit is not None and len(text) > 2 * limit:
        return [*_units(text[:limit], also), *_units(text[-limit:], also)]
    return list(_units(text, also))


def _units(text: str, also: str) -> Iterator[str]:
    """One printable piece for each character; those in `also` get a backslash."""
    marks = 0
    for char in text:
        if " " <= char <= "~":
            marks = 0
            yield "\\" + char if char in also else char
            continue
        category = unicodedata.category(char)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if category[0] in "CZ" or char in _BLANK or marks > _MARKS_IN_A_ROW:
            yield _SHORT.get(char) or _code(char)
        else:
            yield char


def _code(char: str) -> str:
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _fits(units: list[str], limit: int | None) -> bool:
    return limit is None or sum(map(len, units)) <= limit


def _ends(units: list[str], limit: int) -> str:
    """The first two thirds and the last third of what fits, whole pieces only."""
    head = _taken(units, (limit - 1) * 2 // 3)
    tail = _taken(units[::-1], (limit - 1) // 3)
    return "".join(units[:head]) + "…" + "".join(units[len(units) - tail :])


def _taken(units: list[str], room: int) -> int:
    """How many units, from the first, fit in `room` characters."""
    for count, unit in enumerate(units):
        room -= len(unit)
        if room < 0:
            return count
    return len(units)


def _join(units: list[str], length: int, limit: int | None) -> str:
    if limit is None or _fits(units, limit):
        return "".join(units)
    return f"{_ends(units, limit)} ({_characters(length)})"


def _quote(units: list[str], length: int, limit: int | None) -> str:
    if limit is None or _fits(units, limit):
        return '"' + "".join(units) + '"'
    return f'"{_ends(units, limit)}" ({_characters(length)})'


def _characters(length: int) -> str:
    return f"{length:,} characters".replace(",", "\u00a0")
