"""The table of options: defaults, environment, pyproject.toml, flags and help all come from the fields of `Options`."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from kvsan.errors import OptionError

VARIABLES = ("KVSAN", "KVSAN_OPTIONS", "KVSAN_SPOOL")
"""The environment variables by which a process is entered."""

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Spec:
    """How one option is read and explained.

    `kind`: word, flag, int, seconds, path or paths. Numbers lie in [low, high]. `none`: the word "none" gives None.
    An `internal` option has no flag and stands in no help.
    """

    kind: str
    help: str
    choices: tuple[str, ...] = ()
    metavar: str = ""
    low: int = 0
    high: int = 2**31
    none: bool = False
    internal: bool = False


def _option(default: Any, kind: str, help: str, **rest: Any) -> Any:
    return field(default=default, metadata={"spec": Spec(kind, help, **rest)})


@dataclass(frozen=True, slots=True)
class Options:
    """What a process was told; paths are absolute. Each field is one option."""

    level: str = _option(
        "slots",
        "word",
        "what is watched: rows (host bookkeeping of rows only), slots (adds the shadow of slots), "
        "full (adds data reads and writes)",
        choices=("rows", "slots", "full"),
    )
    on_error: str = _option(
        "log",
        "word",
        "what a finding does: log (report it, go on), raise (an exception in the engine's thread), "
        "halt (end the process)",
        choices=("log", "raise", "halt"),
    )
    report: tuple[str, ...] = _option(
        (),
        "paths",
        "also write the report to FILE; its ending decides: .json, .sarif, .xml (JUnit), .html, else text; may be "
        "repeated",
    )
    record: str | None = _option(
        None, "path", "record the events of every process to a trace; %p in the name stands for the process id, "
        "which else goes before the ending",
        metavar="TRACE", none=True,
    )  # fmt: skip
    error_exitcode: int = _option(
        88, "int", "exit status when anything was found, whatever the command's own is", metavar="N", high=255
    )
    keep_exitcode: bool = _option(False, "flag", "keep the command's own exit status, also when something was found")
    incomplete_exitcode: int | None = _option(
        None, "int",
        "exit status in place of the command's 0 when not everything was watched: a process that was not "
        "entered or was killed, no engine, a server that kvsan does not follow, a failure of its own",
        metavar="N", low=1, high=255, none=True,
    )  # fmt: skip
    stack_depth: int = _option(12, "int", "frames kept of each stack", metavar="N", low=1, high=1000)
    suppress: str | None = _option(
        None, "path", "findings not to report: lines kind:site-pattern:owner-pattern", none=True
    )
    idle_seconds: float | None = _option(
        None, "seconds", "treat an engine without events for so long as idle, and look for leaks then",
        metavar="S", none=True,
    )  # fmt: skip
    color: str = _option("auto", "word", "colour in the report", choices=("auto", "always", "never"))
    width: int | None = _option(
        None, "int", "columns of the report (default: the terminal's)", metavar="N", low=40, high=1000, none=True
    )
    max_findings: int = _option(
        1000, "int", "findings kept of each process; further ones are counted", metavar="N", low=1
    )
    spool: str | None = _option(None, "path", "folder where processes leave their findings", none=True, internal=True)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], cwd: str | os.PathLike[str]) -> Options:
        """The defaults, then `[tool.kvsan]` of the nearest pyproject.toml, then `KVSAN_OPTIONS`.

        In a process that a wrapper entered (`KVSAN_SPOOL` is set) the wrapper has already read pyproject.toml.
        Raises OptionError for an unknown key or a value that does not fit.
        """
        spool = environ.get("KVSAN_SPOOL")
        options = cls(spool=spool) if spool else cls().updated_from_pyproject(Path(cwd))
        return options.updated_from_text(environ.get("KVSAN_OPTIONS", ""), cwd)

    def updated_from_text(self, text: str, cwd: str | os.PathLike[str]) -> Options:
        """These options, changed by `a=1:b=2`; a backslash takes the meaning from a `:`; paths may be repeated."""
        values: dict[str, Any] = {}
        for part in _split(text):
            name, equals, value = part.partition("=")
            name = name.strip()
            spec = _spec(name, "KVSAN_OPTIONS")
            if not equals:
                raise OptionError(f"KVSAN_OPTIONS: {name!r} has no value; write {name}=VALUE")
            parsed = _parse(name, spec, value, Path(cwd), "KVSAN_OPTIONS")
            values[name] = values.get(name, ()) + parsed if spec.kind == "paths" else parsed
        return replace(self, **values)

    def updated_from_pyproject(self, folder: Path) -> Options:
        """These options, changed by `[tool.kvsan]` in the nearest pyproject.toml at or above the folder."""
        for place in (folder.absolute(), *folder.absolute().parents):
            file = place / "pyproject.toml"
            if file.is_file():
                break
        else:
            return self
        values: dict[str, Any] = {}
        where = f"{file}, [tool.kvsan]"
        for key, value in _read_table(file).items():
            name = key.replace("-", "_")
            spec = _spec(name, where)
            items = value if isinstance(value, list) and spec.kind == "paths" else [value]
            parsed = [_parse(name, spec, _as_text(item, key, where), place, where) for item in items]
            values[name] = sum(parsed, ()) if spec.kind == "paths" else parsed[0]
        return replace(self, **values)

    def updated_from_flags(self, arguments: argparse.Namespace, cwd: str | os.PathLike[str]) -> Options:
        """These options, changed by the flags that were given (see `add_flags`)."""
        values: dict[str, Any] = {}
        for name, spec in SPECS.items():
            given = getattr(arguments, name, None)
            if given is None or spec.internal:
                continue
            if spec.kind == "flag":
                values[name] = given
            elif spec.kind == "paths":
                values[name] = sum((_parse(name, spec, item, Path(cwd), "command line") for item in given), ())
            else:
                values[name] = _parse(name, spec, given, Path(cwd), "command line")
        return replace(self, **values)

    def to_environment(self) -> dict[str, str]:
        """The environment variables that give these options to a process; `from_environment` reads them back."""
        parts = []
        for name, spec in SPECS.items():
            value = getattr(self, name)
            if name == "spool" or value == FIELDS[name].default:
                continue
            for item in value if spec.kind == "paths" else (value,):
                text = "none" if item is None else str(int(item)) if spec.kind == "flag" else str(item)
                parts.append(f"{name}={text}".replace("\\", "\\\\").replace(":", "\\:"))
        variables = {"KVSAN": "1", "KVSAN_OPTIONS": ":".join(parts)}
        if self.spool is not None:
            variables["KVSAN_SPOOL"] = self.spool
        return variables

    def record_path(self, pid: int) -> str | None:
        """The trace that the process writes: `%p` becomes its id, which else goes before the ending."""
        if self.record is None or "%p" in self.record:
            return self.record and self.record.replace("%p", str(pid))
        root, ending = os.path.splitext(self.record)
        return f"{root}.{pid}{ending}"


FIELDS: dict[str, Field[Any]] = {f.name: f for f in fields(Options)}
SPECS: dict[str, Spec] = {name: f.metadata["spec"] for name, f in FIELDS.items()}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds one flag for each option; a flag that is not given leaves no trace in the namespace but None."""
    group = parser.add_argument_group("settings", "also as KVSAN_OPTIONS=name=value:... and in [tool.kvsan]")
    for name, spec in SPECS.items():
        if spec.internal:
            continue
        default = FIELDS[name].default
        text = spec.help.replace("%", "%%")
        text = text if default in (None, False, ()) else f"{text} (default: {default})"
        if spec.kind == "flag":
            group.add_argument(_flag(name), dest=name, action="store_true", default=None, help=text)
            continue
        metavar = "|".join(spec.choices) or spec.metavar or "FILE"
        action = "append" if spec.kind == "paths" else "store"
        group.add_argument(_flag(name), dest=name, action=action, default=None, metavar=metavar, help=text)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing when nothing is near."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _spec(name: str, where: str) -> Spec:
    if name not in SPECS:
        raise OptionError(f"{where}: unknown option {name!r}{nearest(name, SPECS)}")
    return SPECS[name]


def _split(text: str) -> list[str]:
    """The parts between unescaped colons, escapes resolved; empty parts are dropped."""
    parts, current, characters = [], "", iter(text)
    for character in characters:
        if character == "\\":
            current += next(characters, "\\")
        elif character == ":":
            parts.append(current)
            current = ""
        else:
            current += character
    return [part for part in (*parts, current) if part.strip()]


def _parse(name: str, spec: Spec, text: str, base: Path, where: str) -> Any:
    """The value of one option; raises OptionError that says what would fit. Relative paths start at `base`."""
    if spec.none and text.lower() in ("none", ""):
        return None
    if spec.kind in ("path", "paths"):
        if not text:
            raise OptionError(f"{where}: {name} needs a file name")
        path = os.path.abspath(base / os.path.expanduser(text))
        return (path,) if spec.kind == "paths" else path
    if spec.kind == "word":
        if text not in spec.choices:
            fitting = ", ".join(spec.choices)
            raise OptionError(f"{where}: {name} is one of {fitting}, not {text!r}{nearest(text, spec.choices)}")
        return text
    if spec.kind == "flag":
        if text.lower() not in _TRUE + _FALSE:
            raise OptionError(f"{where}: {name} is 1 or 0, not {text!r}")
        return text.lower() in _TRUE
    try:
        number = float(text) if spec.kind == "seconds" else int(text)
    except ValueError:
        raise OptionError(f"{where}: {name} is a number, not {text!r}") from None
    if not spec.low <= number <= spec.high or (spec.kind == "seconds" and number == 0):
        low = "more than 0" if spec.kind == "seconds" else f"{spec.low} to {spec.high}"
        raise OptionError(f"{where}: {name} is a number, {low}, not {text}")
    return number


def _as_text(value: object, key: str, where: str) -> str:
    if isinstance(value, (str, int, float)):
        return str(value)
    raise OptionError(f"{where}: {key} has a value of type {type(value).__name__}, which no option takes")


def _read_table(file: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("kvsan", {})
    except (OSError, ValueError, AttributeError) as error:
        raise OptionError(f"{file}: cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise OptionError(f"{file}: tool.kvsan is not a table")
    return table
