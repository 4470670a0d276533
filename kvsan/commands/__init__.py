"""The commands of `kvsan`: a class for each, whose docstring is its help."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Protocol, cast


class Command(Protocol):
    """One command. Its docstring is its help: the first line in the list, all of it in its own."""

    name: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Carries it out and returns the exit status; raises KvsanError for what the user must put right."""


# Loaded one by one: `run` must not come to know NumPy, whose threads would take the signals that it passes on.
COMMANDS: dict[str, str] = {
    "run": "kvsan.commands.run:Run",
    "status": "kvsan.commands.status:Status",
    "check": "kvsan.commands.check:Check",
    "explain": "kvsan.commands.explain:Explain",
    "doctor": "kvsan.commands.doctor:Doctor",
}
"""Every command by its name, in the order of the help, and where its class is."""


def load(name: str) -> type[Command]:
    """The class of the command."""
    module, _, attribute = COMMANDS[name].partition(":")
    return cast("type[Command]", getattr(import_module(module), attribute))
