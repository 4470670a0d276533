"""`kvsan COMMAND ...`."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from kvsan.commands import COMMANDS, load
from kvsan.errors import KvsanError

_DESCRIPTION = """\
The sanitizer for KV caches: leaks, stale rows and races in LLM serving engines,
named at the event that commits them."""

_EPILOG = """\
examples:
  kvsan run -- python -m your_server --port 8000
  kvsan run --help"""


class _Parser(argparse.ArgumentParser):
    """Errors in one line, and help that keeps its paragraphs, no wider than people read."""

    def __init__(self, **settings: object) -> None:
        settings.setdefault("formatter_class", _Formatter)
        super().__init__(allow_abbrev=False, **settings)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        columns = _columns()
        super().__init__(prog, max_help_position=26, width=min(columns, 100) - 2)


class UsageError(KvsanError):
    """A command line that says nothing that kvsan can do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # What stands behind -- is somebody else's command line, whatever it looks like.
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        wanted = arguments[:1] if arguments and arguments[0] in COMMANDS else list(COMMANDS)
        args, unknown = _parser(wanted).parse_known_args(arguments[:cut])
        if unknown:
            raise UsageError(f"unrecognized arguments: {' '.join(unknown)} (see kvsan {arguments[0]} --help)")
        args.rest = arguments[cut + 1 :]
        status: int = args.make().run(args)
        return status
    except KvsanError as error:
        print(f"kvsan: error: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed into the pipe
        return 141


def _parser(wanted: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kvsan", description=_DESCRIPTION, epilog=_EPILOG, usage="kvsan [--version] [--help] COMMAND ..."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the versions of kvsan and Python, and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, prog="kvsan")
    for name in wanted:
        command = load(name)
        text = inspect.cleandoc(command.__doc__ or "")
        summary = text.partition("\n")[0].rstrip(".")
        sub = commands.add_parser(name, help=summary[:1].lower() + summary[1:], description=text)
        sub.set_defaults(make=command)
        command().configure(sub)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"kvsan {version('kvsan')} (Python {sys.version.partition(' ')[0]})")
        parser.exit()


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns


if __name__ == "__main__":
    sys.exit(main())
