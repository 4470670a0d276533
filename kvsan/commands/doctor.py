"""`kvsan doctor ENGINE`."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvsan.errors import KvsanError

if TYPE_CHECKING:
    from kvsan.hooks.adapters.probes import Resolved

TABLES = {"sglang": ("sglang", "kvsan.hooks.adapters.sglang.tables")}
"""By engine: the distribution that it is installed as, and the module with its tables of probes."""

LOST = 1


class Doctor:
    """Say which of kvsan's probes find their place in the installed engine.

    Imports the engine's modules, but starts nothing. A probe that finds nothing
    costs what its line says; without one that is NEEDED kvsan watches nothing,
    rather than accuse a sound engine; places of other releases may be missing
    without any loss. A release that kvsan's tests do not run is told as one.
    Exit status: 0 nothing is lost, 1 something is.
    """

    name = "doctor"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument(
            "engine", nargs="?", choices=sorted(TABLES), help="the engine (default: all that are installed)"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Prints one line a probe."""
        chosen = [args.engine] if args.engine else [name for name in TABLES if _version(name) is not None]
        if not chosen:
            raise KvsanError(f"none of {', '.join(TABLES)} is installed for {sys.executable}")
        return max(_examine(engine) for engine in chosen)


def _version(engine: str) -> str | None:
    try:
        return importlib.metadata.version(TABLES[engine][0])
    except importlib.metadata.PackageNotFoundError:
        return None


def _examine(engine: str) -> int:
    from kvsan.hooks.adapters.probes import resolve

    version = _version(engine)
    if version is None:
        raise KvsanError(f"{engine} is not installed for {sys.executable}; run kvsan doctor with the engine's Python")
    tables: Any = import_module(TABLES[engine][1])
    table = tables.table_for(version)
    found = [resolve(probe) for probe in (*table.probes, *tables.stream_probes(_device()))]
    lost = [each for each in found if not each.found and not each.probe.older]
    print(
        f"{engine} {version}, Python {sys.version.split()[0]}: {len(found)} probes (those for {table.since} and later)"
    )
    if said := tables.standing(version):
        print(f"  {said}")
    for each in found:
        print(f"  {_word(each):<8} {each.probe.where}  [{each.probe.events}]")
        if not each.found:
            print(f"           {each.error}; not seen: {each.probe.lost}")
    print(f"{sum(each.found for each in found)} of {len(found)} found their place; {len(lost)} lost")
    return LOST if lost else 0


def _word(each: Resolved) -> str:
    if each.found or each.probe.older:
        return "ok" if each.found else "older"
    return "NEEDED" if each.probe.needed else "lost"


def _device() -> str:
    try:
        torch: Any = import_module("torch")
        return "cuda" if torch.cuda.is_available() else "cpu"
    except Exception:  # an engine without torch has no streams of it
        return "cpu"
