"""The text encoding: JSON Lines, a header and then one event a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

from ..errors import TraceError
from ..events import EVENT_BY_OP, POOL_KINDS, Event, as_slots
from ..rows import MAX_CELL
from ..state import LEVELS

VERSION = 1
MAX_SLOTS = 1 << 31
MAX_POOL = 1 << 27  # more than any machine holds; the shadow of a pool takes memory for every slot
MAX_LINE = 1 << 28

# Trace fields whose names are taken in Python or say less there.
_TO_ATTRIBUTE = {"i": "at", "t": "time_ns", "from": "start"}
_TO_FIELD = {attribute: name for name, attribute in _TO_ATTRIBUTE.items()}
_INTEGERS = frozenset(
    [
        "size",
        "page",
        "row",
        "pos",
        "upto",
        "start",
        "allocated",
        "committed",
        "protected",
        "evicted",
        "available",
        "evictable",
        "total",
        "session",
    ]
)


@dataclass(frozen=True, slots=True)
class Header:
    """What the first line says."""

    version: int
    engine: str | None = None
    title: str | None = None
    group: str | None = None
    rank: int | None = None
    level: str | None = None
    """Up to which level what happened was recorded whole; None: all of it."""
    expect: dict[str, Any] | None = None
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """A header and its events; `events` may be consumed once and raises TraceError at the first unusable line. `cut`:
    what recorded it did not come to its end, or some of it is gone; not known of text."""

    file: str
    header: Header
    events: Iterator[Event]
    cut: bool = False


def _wrong(name: str, wanted: str, value: object) -> ValueError:
    shown = json.dumps(value)
    return ValueError(f"field {name!r} must be {wanted}, not {shown if len(shown) <= 60 else shown[:57] + '...'}")


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**62) < value < 2**62:
        raise _wrong(name, "an integer", value)
    return value


def _array(name: str, value: object) -> np.ndarray:
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list) or not all(type(item) is int and -MAX_SLOTS < item < MAX_SLOTS for item in value):
        raise _wrong(name, "a list of slot numbers", value)
    return as_slots(value)


def _text(name: str, value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise _wrong(name, "a string", value)
    return value


_SPECS: dict[str, dict[str, tuple[str, bool]]] = {}
for _op, _cls in EVENT_BY_OP.items():
    _SPECS[_op] = {
        _TO_FIELD.get(f.name, f.name): (f.name, f.default is MISSING and f.default_factory is MISSING)
        for f in fields(_cls)
        if f.name not in ("stack", "extra")
    }


def event_from_dict(record: dict[str, Any], index: int) -> Event:
    """The event of one line; `index` is its place. Raises ValueError with what is wrong."""
    op = record.get("op")
    if not isinstance(op, str) or op not in EVENT_BY_OP:
        raise ValueError(f"unknown operation {op!r}")
    spec = _SPECS[op]
    arguments: dict[str, Any] = {"at": index}
    extra: dict[str, Any] = {}
    for name, value in record.items():
        if name == "op":
            continue
        known = spec.get(name)
        if known is None:
            extra[name] = value
            continue
        attribute = known[0]
        if value is None:
            if attribute != "row" and known[1]:
                raise _wrong(name, "given", value)
            arguments[attribute] = None if attribute != "at" else index
        elif attribute in ("at", "time_ns") or attribute in _INTEGERS:
            arguments[attribute] = _integer(name, value)
        elif attribute in ("slots", "reserved", "keys") or (attribute in ("key", "val") and op.startswith("map_")):
            arguments[attribute] = _array(name, value)
        elif attribute in ("ready", "dedup", "init"):
            if not isinstance(value, bool):
                raise _wrong(name, "true or false", value)
            arguments[attribute] = value
        else:
            arguments[attribute] = _text(name, value)
    if op == "pool":
        arguments.setdefault("reserved", as_slots([]))
    for name, (attribute, required) in spec.items():
        if required and attribute not in arguments:
            raise ValueError(f"{op!r} needs the field {name!r}")
    for attribute, value in list(arguments.items()):
        if value is None and attribute != "row":
            del arguments[attribute]
    if extra:
        arguments["extra"] = extra
    event = EVENT_BY_OP[op](**arguments)
    _check(event, arguments)
    return event


def _check(event: Event, arguments: dict[str, Any]) -> None:
    """What types alone do not say."""
    op = event.op
    if op == "pool":
        if arguments["kind"] not in POOL_KINDS:
            raise ValueError(f"pool kind {arguments['kind']!r} is none of {', '.join(POOL_KINDS)}")
        size, page, reserved = arguments["size"], arguments.get("page", 1), arguments["reserved"]
        if not 0 < size <= MAX_POOL:
            raise ValueError(f"pool size {size} must be at least 1 and at most {MAX_POOL}")
        if not 0 < page <= size:
            raise ValueError(f"page {page} must be at least 1 and at most the pool's size {size}")
        if reserved.size and (int(reserved.min()) < 0 or int(reserved.max()) >= size):
            raise ValueError(f"reserved slots must lie in 0..{size - 1}")
    elif op == "free" and "slots" not in arguments and not {"map", "keys"} <= arguments.keys():
        raise ValueError("'free' needs 'slots', or 'map' and 'keys'")
    elif op == "evict" and "node" not in arguments and not {"pool", "slots"} <= arguments.keys():
        raise ValueError("'evict' needs 'node', or 'pool' and 'slots'")
    elif op == "xfer_begin" and arguments["access"] not in ("read", "write"):
        raise ValueError(f"access {arguments['access']!r} is neither 'read' nor 'write'")
    elif op == "row_write" and not 0 <= arguments["pos"] <= MAX_CELL - arguments["slots"].size:
        raise ValueError(f"cells from {arguments['pos']} on must lie in 0..{MAX_CELL - 1}")
    elif op == "capture" and not 0 <= arguments.get("start", 0) <= arguments["upto"] <= MAX_CELL:
        raise ValueError(f"'from' {arguments.get('start', 0)} and 'upto' {arguments['upto']} are no range of cells")
    elif op == "map_set" and arguments["key"].size != arguments["val"].size:
        raise ValueError("'key' and 'val' must have equal lengths")
    elif op in ("give", "insert", "attach", "own", "reuse") and "slots" not in arguments:
        raise ValueError(f"{op!r} needs the field 'slots'")


def event_to_dict(event: Event) -> dict[str, Any]:
    """The line of an event; fields at their defaults are left out."""
    record: dict[str, Any] = {"i": event.at, "op": event.op}
    for f in fields(event):
        if f.name in ("at", "stack", "extra"):
            continue
        value = getattr(event, f.name)
        if value is None and f.name != "row":
            continue
        if f.name != "agent" and f.default is not MISSING and not isinstance(value, np.ndarray) and value == f.default:
            continue
        record[_TO_FIELD.get(f.name, f.name)] = value.tolist() if isinstance(value, np.ndarray) else value
    if event.extra:
        record.update(event.extra)
    return record


def _read_header(line: str, file: str) -> Header:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"the header is not JSON ({error})", file=file, line=1) from None
    return header_from_dict(record, file)


def header_from_dict(record: object, file: str) -> Header:
    """The header of a trace's first line. Raises TraceError for anything else."""
    if not isinstance(record, dict) or "kvsan_trace" not in record:
        raise TraceError('no trace: the first line must be an object with "kvsan_trace": 1', file=file, line=1)
    if record["kvsan_trace"] != VERSION:
        raise TraceError(f"trace version {record['kvsan_trace']!r} is not {VERSION}", file=file, line=1)
    rank = record.get("rank")
    if rank is not None and not (type(rank) is int and rank >= 0):
        raise TraceError(f"rank must be a number from 0 on, not {rank!r}", file=file, line=1)
    level = record.get("level")
    if level is not None and level not in LEVELS:
        raise TraceError(f"level must be one of {', '.join(LEVELS)}, not {level!r}", file=file, line=1)
    expect = record.get("expect")
    if expect is not None and not isinstance(expect, dict):
        raise TraceError("expect must be an object", file=file, line=1)
    group = record.get("group")
    return Header(
        VERSION, record.get("engine"), record.get("title"), str(group) if group is not None else None, rank,
        level, expect, record,
    )  # fmt: skip


def read_text(path: str | Path) -> Trace:
    """Opens a text trace. Raises TraceError with file, line and reason; lines before a broken one were still read."""
    file = str(path)
    try:
        stream = open(path, "rb")  # noqa: SIM115 (closed by the generator)
    except OSError as error:
        raise TraceError(error.strerror or str(error), file=file) from None
    try:
        first = _read_line(stream, file, 1)
        if not first:
            raise TraceError("the file is empty: its process ended before anything was told", file=file, line=1)
        header = _read_header(first, file)
    except TraceError:
        stream.close()
        raise
    return Trace(file, header, _read_events(stream, file))


def _read_line(stream: BinaryIO, file: str, number: int) -> str:
    """The next line, with its end; empty at the end of the file."""
    try:
        line = stream.readline(MAX_LINE)
        if len(line) == MAX_LINE:
            raise TraceError(f"the line is longer than {MAX_LINE} bytes", file=file, line=number)
        return line.decode()
    except UnicodeDecodeError as error:
        raise TraceError(f"not UTF-8 (byte {error.start} of the line)", file=file, line=number) from None
    except OSError as error:
        raise TraceError(error.strerror or str(error), file=file, line=number) from None


def _read_events(stream: BinaryIO, file: str) -> Iterator[Event]:
    with stream:
        previous = -1
        number = 1
        while line := _read_line(stream, file, number := number + 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError("an event must be a JSON object")
                event = event_from_dict(record, previous + 1)
            except (ValueError, RecursionError) as error:
                reason = str(error)
                if isinstance(error, json.JSONDecodeError):
                    reason = f"not JSON ({reason})" if line.endswith("\n") else f"the line is cut off ({reason})"
                raise TraceError(reason, file=file, line=number) from None
            if event.at <= previous:
                raise TraceError(
                    f"index {event.at} does not come after {previous}: events must stand in their order",
                    file=file, line=number,
                )  # fmt: skip
            previous = event.at
            yield event


class TextWriter:
    """Writes a text trace line by line."""

    def __init__(self, stream: TextIO, **header: Any) -> None:
        self._stream = stream
        stream.write(json.dumps({"kvsan_trace": VERSION, **header}) + "\n")

    def write(self, event: Event) -> None:
        """Appends one event."""
        self._stream.write(json.dumps(event_to_dict(event)) + "\n")

    def end(self) -> None:
        """Nothing follows; a text does not say so."""
