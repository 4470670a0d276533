"""Kinds of findings in words: short ones for a report, long ones for `kvsan explain`."""

from __future__ import annotations

import difflib

from kvsan.errors import OptionError
from kvsan.explanations import EXPLANATIONS, Explanation
from kvsan.findings import KINDS


def why_text(kind: str) -> str:
    """Why a finding of this kind is a fault, for findings that bring no words of their own."""
    known = EXPLANATIONS.get(kind)
    return known.why if known else "The rule is a plugin's own; its documentation says why."


def hint_text(kind: str) -> str:
    """What mends a fault of this kind, for findings that bring no hint of their own."""
    known = EXPLANATIONS.get(kind)
    return known.fix if known else "see the plugin that brought this detector."


def references(kind: str) -> list[str]:
    """Public reports of faults of this kind, the plainest first, as OWNER/REPOSITORY#NUMBER."""
    known = EXPLANATIONS.get(kind)
    return list(known.references) if known else []


def find(kind: str) -> tuple[str, Explanation]:
    """The kind and its explanation, however it is spelled (`use-after-free`, `RACE`, a whole dedup token).

    Raises OptionError, which names the nearest kind, where there is none.
    """
    name = kind.partition(":")[0].strip().lower().replace("-", "_").replace(" ", "_")
    if name in EXPLANATIONS:
        return name, EXPLANATIONS[name]
    near = difflib.get_close_matches(name, KINDS, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]}?" if near else f"known are {', '.join(KINDS)}"
    raise OptionError(f"no kind of finding is called {kind[:80]!a}; {advice}")
