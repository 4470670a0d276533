"""Numbers, slot lists and lines of words as a report writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len

GLUE = "\u00a0"
"""Holds two words on one line while lines are wrapped; printed as a plain space."""

MAX_RUNS = 4


def grouped(number: int) -> str:
    """3412 as `3 412`."""
    return f"{number:,}".replace(",", GLUE)


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 slot`, `5 slots`."""
    return f"{grouped(count)}{GLUE}{noun if count == 1 else nouns or noun + 's'}"


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The numbers as sorted runs (first, last)."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def ranges(numbers: Sequence[int], noun: str = "slot", limit: int = MAX_RUNS) -> str:
    """`5-7, 9`; of more than `limit` runs the first few and how many numbers there are in all."""
    pieces = [_run(first, last) for first, last in runs(numbers)]
    if len(pieces) <= limit:
        return ", ".join(pieces)
    return f"{', '.join(pieces[: limit - 1])} … ({plural(len(numbers), noun)})"


def _run(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}, {last}" if last == first + 1 else f"{first}-{last}"


def percent(part: int, whole: int) -> str:
    """`12.5 %`; a part that is not nothing never reads as 0.0 %."""
    if whole <= 0:
        return "-"
    share = 100 * part / whole
    return f"<0.1{GLUE}%" if part and share < 0.05 else f"{share:.1f}{GLUE}%"


def age(nanoseconds: int) -> str:
    """A span of time in the unit that fits it."""
    seconds = nanoseconds / 1e9
    if seconds < 0.001:
        return f"<1{GLUE}ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f}{GLUE}ms"
    if seconds < 120:
        return f"{seconds:.1f}{GLUE}s"
    return f"{seconds / 60:.1f}{GLUE}min" if seconds < 7200 else f"{seconds / 3600:.1f}{GLUE}h"


def sentence(text: str) -> str:
    """The text with a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` columns, broken at plain spaces only; a longer word stays whole."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        if not word:
            continue
        if line and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


def pad(text: str, width: int, right: bool = False) -> str:
    """The text filled with spaces to `width` columns."""
    fill = " " * max(0, width - cell_len(text))
    return fill + text if right else text + fill
