"""The commands of `kvsan`: a class for each, whose docstring is its help."""

from __future__ import annotations

import argparse
from typing import Protocol

from kvsan.commands.check import Check
from kvsan.commands.explain import Explain
from kvsan.commands.run import Run


class Command(Protocol):
    """One command. Its docstring is its help: the first line in the list, all of it in its own."""

    name: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Carries it out and returns the exit status; raises KvsanError for what the user must put right."""


COMMANDS: tuple[type[Command], ...] = (Run, Check, Explain)
