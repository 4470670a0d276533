"""Where things are: pools and their slots, files and their lines, as words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsan.findings import Access, Finding, Frame, Report
from kvsan.reporters.escape import named, quoted, visible
from kvsan.reporters.phrases import nouns, owner_phrase, unit
from kvsan.reporters.text import plural, ranges

# What a pool's name carries where several processes have a pool of that name.
_LABEL = re.compile(r" \([^()]*\)$")
_INSTALLED = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]")


@dataclass(frozen=True, slots=True)
class Places:
    """What a report knows of pools (their kinds by name) and paths (files below `root` are written from there)."""

    kinds: dict[str, str] = field(default_factory=dict)
    root: str = ""

    @classmethod
    def of(cls, report: Report, root: str = "") -> Places:
        """The places of one report; without totals, a pool with a race on cells is known to have rows."""
        kinds = {_LABEL.sub("", total.pool): total.kind for total in report.totals}
        for finding in report.findings:
            for access in (finding.present, finding.earlier):
                if finding.kind == "race" and access is not None and access.cells is not None:
                    kinds.setdefault(access.pool or finding.pool or "", "row")
        return cls(kinds, root.rstrip("/\\"))

    def has_rows(self, pool: str) -> bool:
        """Whether the pool's slots are rows, as far as is known."""
        return self.kinds.get(pool, "row") == "row"

    def path(self, file: str) -> str:
        """A file as people look for it: from the root, or from the folder of installed packages, or in full."""
        if self.root and file.startswith(self.root) and file[len(self.root) : len(self.root) + 1] in ("/", "\\"):
            file = file[len(self.root) + 1 :]
        return visible(_INSTALLED.sub("", file))

    def frame(self, frame: Frame) -> str:
        """`reference_engine/batch.py:141`."""
        return f"{self.path(frame.file)}:{frame.line}"

    def slots(self, pool: str, slots: Sequence[int], *, page: str = "") -> str:
        """`kv slots 5-7`, `req_to_token row 1`; a pool that is called like its slots is named once."""
        name = "" if pool in unit(self.kinds.get(pool, pool)) else f"{self.pool(pool)} "
        if page:
            return f"{name}page {page}"
        return f"{name}{self.bare_slots(pool, slots)}" if slots else f"pool {self.pool(pool)}"

    def bare_slots(self, pool: str, slots: Sequence[int]) -> str:
        """`slots 5-7`, `row 1`: without the pool's name."""
        one, several = unit(self.kinds.get(pool, pool))
        return f"{one if len(set(slots)) == 1 else several} {ranges(slots, one)}"

    def counted(self, pool: str, count: int) -> str:
        """`5 token slots`; of a pool whose kind is not known `5 kv slots`."""
        if pool in self.kinds:
            return plural(count, *nouns(self.kinds[pool]))
        one, several = unit(pool)
        name = "" if pool in (one, several) else f"{self.pool(pool)} "
        return plural(count, name + one, name + several)

    def pool(self, pool: str) -> str:
        """A pool's name, without quotes where it needs none."""
        return named(pool)

    def object(self, finding: Finding) -> str:
        """What the finding is about, for its title and summary."""
        name, colon, rest = finding.object.partition(":")
        if finding.object.startswith("node:"):
            return f"node {quoted(rest)}"
        if finding.object.startswith("owner:"):
            return owner_phrase(rest)
        if colon and rest.startswith("page") and rest[4:].isdigit():
            return self.slots(name, finding.slots, page=rest[4:])
        if colon and rest.isdigit():
            return self.slots(name, finding.slots or (int(rest),))
        return f"pool {self.pool(finding.object)}" if finding.object else "the engine"

    def heading(self, finding: Finding) -> str:
        """`ROW 1`, `SLOT kv:5`, `NODE "n4"`: whose history follows."""
        name, colon, rest = finding.object.partition(":")
        if name in ("node", "owner") and colon:
            return f"{name.upper()} {quoted(rest)}"
        if not colon:
            return f"POOL {self.pool(name)}"
        if rest.startswith("page"):
            return f"PAGE {self.pool(name)}:{visible(rest[4:])}"
        noun = unit(self.kinds.get(name, name))[0].upper()
        return f"ROW {visible(rest)}" if noun == "ROW" else f"{noun} {self.pool(name)}:{visible(rest)}"

    def site(self, access: Access | None) -> str:
        """`scheduler.py:203 next_batch`: the innermost frame, else the site as the trace gives it."""
        if access is None:
            return ""
        if access.stack:
            frame = access.stack[0]
            return f"{_base(frame.file)}:{frame.line} {visible(frame.function)}"
        return visible(access.site) if access.site else ""

    def short_site(self, access: Access | None) -> str:
        """`allocation.write_cache_indices`: the module and the function of the innermost frame."""
        if access is None or not access.stack:
            return self.site(access)
        frame = access.stack[0]
        return f"{_base(frame.file).removesuffix('.py')}.{visible(frame.function)}"


def _base(file: str) -> str:
    return visible(re.split(r"[/\\]", file)[-1] or file)
