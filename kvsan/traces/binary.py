"""The binary encoding: what production records. A signature, then records, each with its length and checksum.

    file    = signature record*
    record  = length:u32 ~length:u32 checksum:u32 body  little endian; the checksum is zlib's CRC-32 of the body
    body    = size:u32 json array*                  `size` bytes of JSON, then the arrays that it names, int64 each

The first record is the header; the last is always the same, by which a whole file is told from one that was cut. An
event's JSON is its text line, with every slot array replaced by its length under "#": {field: length}; the arrays
follow in that order. A field whose own name is "#" or "##" gets one more "#". A process that is killed leaves an
incomplete last record, which the reader leaves out; the length stands there twice, so that a damaged one does not look
like that. Loading runs nothing from the file.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import TraceError
from ..events import Event
from .text import VERSION, Header, Trace, event_from_dict, event_to_dict, header_from_dict

SIGNATURE = b"\x89KVT\r\n\x1a\n"
MAX_RECORD = 1 << 30
_ARRAY_FIELDS = ("slots", "reserved", "keys", "key", "val")
_HEAD = struct.Struct("<III")
_SIZE = struct.Struct("<I")
_LAST = {"kvsan_trace": "end"}


def is_binary(path: str | Path) -> bool:
    """Does the file begin like a binary trace?"""
    try:
        with open(path, "rb") as stream:
            return stream.read(len(SIGNATURE)) == SIGNATURE
    except OSError:
        return False


class BinaryWriter:
    """Writes a binary trace record by record."""

    def __init__(self, stream: BinaryIO, **header: Any) -> None:
        self._stream = stream
        stream.write(SIGNATURE)
        self._put({"kvsan_trace": VERSION, **header}, [])

    def write(self, event: Event) -> None:
        """Appends one event."""
        self.write_dict(event_to_dict(event))

    def write_dict(self, record: dict[str, Any]) -> None:
        """Appends the event of one text line."""
        arrays = {}
        for name in _ARRAY_FIELDS:
            value = record.get(name)
            if isinstance(value, list) and all(type(item) is int and -(2**63) <= item < 2**63 for item in value):
                arrays[name] = np.array(value, "<i8")
        plain = {_more(name): value for name, value in record.items() if name not in arrays}
        if arrays:
            plain["#"] = {name: int(array.size) for name, array in arrays.items()}
        self._put(plain, list(arrays.values()))

    def end(self) -> None:
        """Nothing follows."""
        self._stream.write(_END)

    def _put(self, record: dict[str, Any], arrays: list[Any]) -> None:
        self._stream.write(_bytes(record, arrays))


def _bytes(record: dict[str, Any], arrays: list[Any]) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    body = b"".join([_SIZE.pack(len(text)), text, *(array.tobytes() for array in arrays)])
    return _HEAD.pack(len(body), len(body) ^ 0xFFFFFFFF, zlib.crc32(body)) + body


_END = _bytes(_LAST, [])


def _more(name: str) -> str:
    return f"#{name}" if name and not name.strip("#") else name


def _less(name: str) -> str:
    return name[1:] if name.startswith("##") and not name.strip("#") else name


def read_binary(path: str | Path) -> Trace:
    """Opens a binary trace. Raises TraceError with file, byte offset and reason where a record is damaged."""
    file = str(path)
    try:
        stream = open(path, "rb")  # noqa: SIM115 (closed by the generator)
    except OSError as error:
        raise TraceError(error.strerror or str(error), file=file) from None
    if stream.read(len(SIGNATURE)) != SIGNATURE:
        stream.close()
        raise TraceError("no binary trace: the signature is missing", file=file)
    whole = _has_end(stream)
    records = _records(stream, file)
    try:
        first = next(records, None)
        if first is None:
            raise TraceError("the header is cut off", file=file)
        header: Header = header_from_dict(first, file)
    except TraceError:
        stream.close()
        raise
    return Trace(file, header, _events(records, file), cut=not whole)


def _has_end(stream: BinaryIO) -> bool:
    """Does the file end with the last record? Its position stays as it is."""
    place = stream.tell()
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - len(_END)))
    found = stream.read() == _END
    stream.seek(place)
    return found


def _records(stream: BinaryIO, file: str) -> Iterator[dict[str, Any]]:
    place = len(SIGNATURE)
    with stream:
        while True:
            head = _read(stream, _HEAD.size, file)
            if len(head) < _HEAD.size:
                return
            length, inverse, checksum = _HEAD.unpack(head)
            if length ^ inverse != 0xFFFFFFFF:
                raise TraceError(f"at byte {place}: the record is damaged (its length is)", file=file)
            if length > MAX_RECORD:
                raise TraceError(f"at byte {place}: a record of {length} bytes is too long", file=file)
            body = _read(stream, length, file)
            if len(body) < length:
                return
            if zlib.crc32(body) != checksum:
                raise TraceError(f"at byte {place}: the record is damaged (its checksum differs)", file=file)
            try:
                yield _record(body)
            except (ValueError, struct.error, TypeError, AttributeError, RecursionError) as error:
                raise TraceError(f"at byte {place}: the record makes no sense ({error})", file=file) from None
            place += _HEAD.size + length


def _read(stream: BinaryIO, size: int, file: str) -> bytes:
    try:
        return stream.read(size)
    except OSError as error:
        raise TraceError(error.strerror or str(error), file=file) from None


def _record(body: bytes) -> dict[str, Any]:
    (size,) = _SIZE.unpack_from(body)
    record = json.loads(body[_SIZE.size : _SIZE.size + size])
    if not isinstance(record, dict):
        raise ValueError("not an object")
    place = _SIZE.size + size
    counts = record.pop("#", {})
    record = {_less(name): value for name, value in record.items()}
    for name, count in counts.items():
        if type(count) is not int or count < 0 or place + 8 * count > len(body):
            raise ValueError(f"array {name!r} of {count!r} items does not fit")
        record[name] = np.frombuffer(body, "<i8", count, place).tolist()
        place += 8 * count
    return record


def _events(records: Iterator[dict[str, Any]], file: str) -> Iterator[Event]:
    previous = -1
    for number, record in enumerate(records):
        if record == _LAST:
            return
        try:
            event = event_from_dict(record, previous + 1)
        except ValueError as error:
            raise TraceError(f"record {number}: {error}", file=file) from None
        if event.at <= previous:
            raise TraceError(f"record {number}: index {event.at} does not come after {previous}", file=file)
        previous = event.at
        yield event
