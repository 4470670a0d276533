"""Both encodings: round trips without loss, files cut off or damaged at any byte, errors with file, place, reason."""

from __future__ import annotations

import io
import json
import tracemalloc
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from oracle.generate import mutate, random_soup, random_trace

from kvsan.errors import EventError, TraceError
from kvsan.events import EVENT_CLASSES, Event
from kvsan.rows import MAX_CELL
from kvsan.traces import (
    BinaryWriter,
    TextWriter,
    event_from_dict,
    event_to_dict,
    read_binary,
    read_text,
    read_trace,
)
from kvsan.traces.binary import MAX_RECORD, SIGNATURE
from kvsan.traces.text import MAX_POOL
from kvsan.tracker import Tracker

from .feeding import ROW, Dict, facts, feed, indexed, pool, seeds

NAMES = {"agent": "fwd", "via": "host:x", "owner": "r\u00e9q \x1b[31m\ud800", "site": "a.py:3", "kind": "kv",
         "access": "write", "on": "event:e"}  # fmt: skip
NUMBERS = {"size": 64, "page": 4, "time_ns": 2**53 + 1, "row": 3, "pos": 5, "upto": 9, "start": 2}
ODD = {"zz": [1.5, {"a": None}], "#": 1, "##": {"#": [2]}, "": "empty", "slots2": [1, 2]}


def full_event(cls: type[Event]) -> Event:
    """An event with every field given, and unknown ones."""
    arguments: dict[str, Any] = {"at": 7, "extra": dict(ODD)}
    for f in fields(cls):
        if f.name in ("at", "stack", "extra"):
            continue
        if f.name in ("slots", "reserved", "keys") or (f.name in ("key", "val") and cls.op.startswith("map_")):
            arguments[f.name] = np.array([0, 5, 2**31 - 1] if f.name != "reserved" else [0, 1], np.int64)
        elif f.name in ("ready", "dedup", "init"):
            arguments[f.name] = True
        elif f.name in NUMBERS or f.type == "int" or str(f.type).startswith("int"):
            arguments[f.name] = NUMBERS.get(f.name, 11)
        else:
            arguments[f.name] = NAMES.get(f.name, f"some {f.name}")
    return cls(**arguments)


def text_of(events: list[Event], **header: Any) -> str:
    stream = io.StringIO()
    writer = TextWriter(stream, **header)
    for event in events:
        writer.write(event)
    return stream.getvalue()


def binary_of(events: list[Event], **header: Any) -> bytes:
    stream = io.BytesIO()
    writer = BinaryWriter(stream, **header)
    for event in events:
        writer.write(event)
    return stream.getvalue()


def same(one: Event, other: Event) -> bool:
    """Same class and fields; arrays by content and type."""
    if type(one) is not type(other):
        return False
    for f in fields(one):
        mine, theirs = getattr(one, f.name), getattr(other, f.name)
        if isinstance(mine, np.ndarray) or isinstance(theirs, np.ndarray):
            if not (mine.dtype == theirs.dtype == np.int64 and mine.shape == theirs.shape and (mine == theirs).all()):
                return False
        elif mine != theirs or type(mine) is not type(theirs):
            return False
    return True


@pytest.mark.parametrize("cls", EVENT_CLASSES, ids=lambda cls: cls.__name__)
def test_every_field_of_every_event_survives(cls: type[Event], tmp_path: Path) -> None:
    event = full_event(cls)
    assert same(event_from_dict(json.loads(json.dumps(event_to_dict(event))), 7), event)
    (tmp_path / "t.jsonl").write_text(text_of([event]))
    (tmp_path / "t.kvt").write_bytes(binary_of([event]))
    for name in ("t.jsonl", "t.kvt"):
        (back,) = read_trace(tmp_path / name).events
        assert same(back, event), name


@pytest.mark.parametrize("cls", EVENT_CLASSES, ids=lambda cls: cls.__name__)
def test_defaults_survive(cls: type[Event]) -> None:
    given = event_to_dict(full_event(cls))
    least = {"op": cls.op, "agent": "host", "i": 0}
    for name in [f.name for f in fields(cls)]:
        try:
            event = event_from_dict(least, 0)
            break
        except ValueError as error:
            missing = str(error).split("'")
            least |= {name: given[name] for name in missing if name in given}
    assert same(event_from_dict(event_to_dict(event), 0), event)
    assert event_to_dict(event).items() >= least.items()


def test_unknown_fields_keep_their_values(tmp_path: Path) -> None:
    """Also where their names are those of slot arrays elsewhere."""
    odd: list[Dict] = [
        {"op": "step", "slots": [1.5, 2]},
        {"op": "step", "slots": ["a"], "keys": [[1], [2, 3]], "val": [True, None]},
        {"op": "idle", "key": [2**70], "reserved": [], "#": {"slots": 3}},
        {"op": "read", "pool": "kv", "slots": [3], "val": [1, -(2**63)], "###": 1, "#": "x", "deep": [[[{}]]]},
        {"op": "insert", "pool": "kv", "slots": [], "node": "n", "key": "5", "stack": 9, "extra": {"a": 1}},
    ]
    odd = [{"agent": "host", **event} for event in indexed(odd)]
    events = [event_from_dict(event, index) for index, event in enumerate(odd)]
    assert [event_to_dict(event) for event in events] == odd
    (tmp_path / "t").write_bytes(binary_of(events))
    assert [event_to_dict(event) for event in read_binary(tmp_path / "t").events] == odd
    (tmp_path / "t").write_text(text_of(events))
    assert [event_to_dict(event) for event in read_text(tmp_path / "t").events] == odd


def test_generated_traces_survive_both_ways(tmp_path: Path) -> None:
    for seed in seeds(8):
        for trace in (random_trace(seed, 150), random_soup(seed, 60), mutate(random_trace(seed, 100), seed)):
            text, binary, again = tmp_path / "a.jsonl", tmp_path / "a.kvt", tmp_path / "b.jsonl"
            lines = [{"agent": "host", **event} for event in indexed(trace)]
            events = [event_from_dict(event, index) for index, event in enumerate(lines)]
            text.write_text(text_of(events, title="seed", group="g", rank=seed, expect={"verdict": "clean"}))
            first = read_text(text)
            binary.write_bytes(binary_of(list(first.events), **first.header.fields))
            second = read_binary(binary)
            again.write_text(text_of(list(second.events), **second.header.fields))
            assert again.read_text() == text.read_text()
            assert second.header == first.header
            assert (first.header.group, first.header.rank, first.header.title) == ("g", seed, "seed")
            assert facts(feed([event_to_dict(event) for event in read_text(again).events]).findings) == facts(
                feed(trace).findings
            )


def test_events_without_an_index_get_one(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"kvsan_trace": 1}\n\n{"op": "step"}\n{"op": "step", "i": 5}\n  \n{"op": "step"}\n')
    assert [event.at for event in read_text(path).events] == [0, 5, 6]


# -- the binary file, cut off or damaged


SMALL = [{"agent": "host", **event} for event in indexed([
    {"op": "pool", "pool": "kv", "kind": "kv", "size": 16, "reserved": [0]},
    {"op": "alloc", "pool": "kv", "slots": [1, 2, 3], "owner": "A"},
    {"op": "write", "agent": "fwd", "pool": "kv", "slots": [1, 2], "owner": "A"},
    {"op": "free", "pool": "kv", "slots": [1, 2, 3], "owner": "A"},
])]  # fmt: skip


def small_binary() -> tuple[bytes, list[int]]:
    """A trace and where its records end, the header's included."""
    stream = io.BytesIO()
    writer = BinaryWriter(stream, title="small")
    ends = [stream.tell()]
    for event in SMALL:
        writer.write_dict(event)
        ends.append(stream.tell())
    writer.end()
    return stream.getvalue(), ends


def test_a_file_cut_off_at_any_byte_loads_up_to_its_last_whole_record(tmp_path: Path) -> None:
    data, ends = small_binary()
    path = tmp_path / "cut.kvt"
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        if size < len(SIGNATURE):
            with pytest.raises(TraceError, match=r"cut\.kvt"):
                read_trace(path)
        elif size < ends[0]:
            with pytest.raises(TraceError, match=r"cut\.kvt: the header is cut off"):
                read_trace(path)
        else:
            whole = sum(end <= size for end in ends) - 1
            trace = read_trace(path)
            assert trace.cut == (size < len(data)), size
            assert [event_to_dict(event) for event in trace.events] == SMALL[:whole], size


def test_a_damaged_byte_is_named(tmp_path: Path) -> None:
    """A bit of every byte behind the header: the records before it were read, and the error names the record's byte."""
    data, ends = small_binary()
    path = tmp_path / "bad.kvt"
    for place in range(ends[0], len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        begin = max(end for end in ends if end <= place)
        read: list[Event] = []
        with pytest.raises(TraceError, match=rf"bad\.kvt: at byte {begin}: the record is damaged"):
            read.extend(read_binary(path).events)
        trace = read_binary(path)
        for event in SMALL[: ends.index(begin)]:
            assert event_to_dict(next(trace.events)) == event


def test_a_damaged_header_is_no_trace(tmp_path: Path) -> None:
    data, ends = small_binary()
    path = tmp_path / "bad.kvt"
    for place in range(len(SIGNATURE), ends[0]):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises(TraceError, match=rf"bad\.kvt: at byte {len(SIGNATURE)}: the record is damaged"):
            read_binary(path)


def record(body: bytes, length: int | None = None) -> bytes:
    import zlib

    length = len(body) if length is None else length
    return b"".join(n.to_bytes(4, "little") for n in (length, length ^ 0xFFFFFFFF, zlib.crc32(body))) + body


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "makes no sense"),
        (b"\x01", "makes no sense"),
        (b"\xff\xff\xff\xff{}", "unknown operation None"),
        (b"\x02\0\0\0[]", "makes no sense .not an object"),
        (b"\x02\0\0\0{", "makes no sense"),
        (b"\x04\0\0\0nope", "makes no sense"),
        (b"\x02\0\0\0\xff\xfe", "makes no sense"),
        (b'\x07\0\0\0{"#":1}', "makes no sense"),
        (b'\x13\0\0\0{"#":{"slots":1000}}', "makes no sense"),
        (b'\x0f\0\0\0{"#":{"a":-1}}  ', "array 'a' of -1 items does not fit"),
        (b"\xa0\x86\x01\0" + b"[" * 100_000, "makes no sense"),
    ],
)
def test_whole_records_that_make_no_sense(body: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.kvt"
    path.write_bytes(small_binary()[0][: small_binary()[1][0]] + record(body))
    with pytest.raises(TraceError, match=rf"odd\.kvt: .*{reason}"):
        list(read_binary(path).events)


def test_a_record_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "long.kvt"
    path.write_bytes(SIGNATURE + record(b"", MAX_RECORD + 1))
    with pytest.raises(TraceError, match=r"long\.kvt: at byte 8: a record of 1073741825 bytes is too long"):
        read_binary(path)


def test_a_binary_index_that_goes_back(tmp_path: Path) -> None:
    stream = io.BytesIO()
    writer = BinaryWriter(stream)
    writer.write_dict({"i": 4, "op": "step"})
    writer.write_dict({"i": 4, "op": "idle"})
    (tmp_path / "t.kvt").write_bytes(stream.getvalue())
    with pytest.raises(TraceError, match=r"t\.kvt: record 1: index 4 does not come after 4"):
        list(read_binary(tmp_path / "t.kvt").events)


# -- errors of text traces


HEADER = '{"kvsan_trace": 1}\n'
GOOD = '{"op": "pool", "pool": "kv", "kind": "kv", "size": 8, "reserved": [0]}\n'

BAD_LINES = [
    ('{"op": "allocate", "pool": "kv"}', "unknown operation 'allocate'"),
    ('{"op": ["alloc"]}', r"unknown operation \['alloc'\]"),
    ("{}", "unknown operation None"),
    ('{"op": "alloc", "pool": "kv"}', "'alloc' needs the field 'slots'"),
    ('{"op": "capture", "pool": "row", "row": 1, "upto": 1}', "'capture' needs the field 'batch'"),
    (
        '{"op": "kv_record", "owner": "A", "allocated": 0, "committed": 0, "protected": 0}',
        "'kv_record' needs the field 'row'",
    ),
    ('{"op": "alloc", "pool": null, "slots": [1]}', "field 'pool' must be given, not null"),
    ('{"op": "alloc", "pool": "kv", "slots": "1"}', "field 'slots' must be a list of slot numbers, not \"1\""),
    ('{"op": "alloc", "pool": "kv", "slots": [1.0]}', "field 'slots' must be a list of slot numbers"),
    ('{"op": "alloc", "pool": "kv", "slots": [true]}', "field 'slots' must be a list of slot numbers"),
    ('{"op": "alloc", "pool": "kv", "slots": [[1]]}', "field 'slots' must be a list of slot numbers"),
    ('{"op": "alloc", "pool": "kv", "slots": [2147483648]}', "field 'slots' must be a list of slot numbers"),
    ('{"op": "alloc", "pool": {}, "slots": [1]}', "field 'pool' must be a string, not {}"),
    ('{"op": "alloc", "pool": "kv", "slots": [1], "owner": [1]}', "field 'owner' must be a string"),
    ('{"op": "query", "event": "e", "ready": 1}', "field 'ready' must be true or false, not 1"),
    ('{"op": "step", "i": "3"}', "field 'i' must be an integer, not \"3\""),
    ('{"op": "step", "i": true}', "field 'i' must be an integer, not true"),
    ('{"op": "step", "i": 1.5}', "field 'i' must be an integer, not 1.5"),
    ('{"op": "step", "i": 0}', "index 0 does not come after 0: events must stand in their order"),
    ('{"op": "step", "i": -3}', "index -3 does not come after 0"),
    ('{"op": "step", "i": 9223372036854775807}', "field 'i' must be an integer, not 9223372036854775807"),
    ('{"op": "step", "t": 1e400}', "field 't' must be an integer, not Infinity"),
    (f'{{"op": "step", "i": {"9" * 5000}}}', "Exceeds the limit"),
    ("[1, 2]", "an event must be a JSON object"),
    ("17", "an event must be a JSON object"),
    ("alloc kv 1", "not JSON"),
    ('{"op": "step"} {"op": "step"}', "not JSON .Extra data"),
    ("[" * 100_000, "recursion"),
    ('{"op": "step", "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "recursion"),
    (
        '{"op": "pool", "pool": "x", "kind": "gpu", "size": 8}',
        "pool kind 'gpu' is none of row, kv, state, host, staging",
    ),
    ('{"op": "pool", "pool": "x", "kind": "kv", "size": 0}', "pool size 0 must be at least 1"),
    (
        '{"op": "pool", "pool": "x", "kind": "kv", "size": 1099511627776}',
        "pool size 1099511627776 must be at least 1 and at most",
    ),
    ('{"op": "pool", "pool": "x", "kind": "kv", "size": 4, "page": 0}', "page 0 must be at least 1"),
    (
        '{"op": "pool", "pool": "x", "kind": "kv", "size": 4, "page": 1000000000}',
        "page 1000000000 must be at least 1 and at most",
    ),
    ('{"op": "pool", "pool": "x", "kind": "kv", "size": 4, "reserved": [4]}', "reserved slots must lie in 0..3"),
    ('{"op": "pool", "pool": "x", "kind": "kv", "size": 4, "reserved": [-1]}', "reserved slots must lie in 0..3"),
    (
        '{"op": "row_write", "pool": "r", "row": 1, "pos": -1, "into": "kv", "slots": [1]}',
        "cells from -1 on must lie in 0",
    ),
    (
        '{"op": "row_write", "pool": "r", "row": 1, "pos": 1099511627776, "into": "kv", "slots": [1]}',
        "cells from 1099511627776 on",
    ),
    (
        '{"op": "capture", "batch": "b", "pool": "r", "row": 1, "from": 3, "upto": 2}',
        "'from' 3 and 'upto' 2 are no range of cells",
    ),
    (
        '{"op": "capture", "batch": "b", "pool": "r", "row": 1, "upto": 1152921504606846976}',
        "'upto' 1152921504606846976 are no range",
    ),
    ('{"op": "free", "pool": "kv"}', "'free' needs 'slots', or 'map' and 'keys'"),
    ('{"op": "free", "pool": "kv", "map": "m"}', "'free' needs 'slots', or 'map' and 'keys'"),
    ('{"op": "evict", "pool": "kv"}', "'evict' needs 'node', or 'pool' and 'slots'"),
    ('{"op": "map_set", "map": "m", "key": [1, 2], "val": [3]}', "'key' and 'val' must have equal lengths"),
    (
        '{"op": "xfer_begin", "xfer": "x", "access": "move", "pool": "kv", "slots": [1]}',
        "access 'move' is neither 'read' nor 'write'",
    ),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES, ids=[line[:60] for line, _ in BAD_LINES])
def test_a_bad_line_is_named_and_what_stands_before_it_is_read(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(HEADER + GOOD + line + "\n" + '{"op": "idle"}\n')
    events = read_text(path).events
    assert next(events).op == "pool"
    with pytest.raises(TraceError, match=rf"bad\.jsonl:3: .*{reason}") as caught:
        next(events)
    assert (caught.value.file, caught.value.line, caught.value.exit_status) == (str(path), 3, 2)
    assert len(str(caught.value)) < 500 + len(str(path)), "a reason is for people"


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"", 1, "the file is empty"),
        (b"\n", 1, "the header is not JSON"),
        (b"hello\n", 1, "the header is not JSON"),
        (b"[1]\n", 1, 'no trace: the first line must be an object with "kvsan_trace": 1'),
        (b'{"op": "step"}\n', 1, "no trace"),
        (b'{"kvsan_trace": 2}\n', 1, "trace version 2 is not 1"),
        (b'{"kvsan_trace": "1"}\n', 1, "trace version '1' is not 1"),
        (b'{"kvsan_trace": 1, "rank": -1}\n', 1, "rank must be a number from 0 on, not -1"),
        (b'{"kvsan_trace": 1, "rank": true}\n', 1, "rank must be a number from 0 on, not True"),
        (b'{"kvsan_trace": 1, "expect": "clean"}\n', 1, "expect must be an object"),
        (b"[" * 100_000, 1, "the header is not JSON .*recursion"),
        (b"\xef\xbb\xbf" + HEADER.encode(), 1, "the header is not JSON .*BOM"),
        (b"\xff\xfe\x00\x01" * 100, 1, "not UTF-8"),
        (bytes(Random(1).randbytes(4096)), 1, "not UTF-8"),
        (b"\0" * 100, 1, "the header is not JSON"),
        (SIGNATURE, None, "the header is cut off"),
        (SIGNATURE[:-1] + b"x", 1, "not UTF-8"),
        (HEADER.encode() + b'{"op": "ste', 2, "the line is cut off"),
        (HEADER.encode() + b'{"op": "st\xffep"}\n', 2, "not UTF-8 .byte 10 of the line"),
    ],
)
def test_files_that_are_no_traces(data: bytes, line: int | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "no.trace"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=rf"no\.trace(:\d+)?: .*{reason}") as caught:
        list(read_trace(path).events)
    assert caught.value.line == line


def test_bytes_that_are_no_utf8_far_down_cost_no_line_before_them(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(HEADER.encode() + b'{"op": "step"}\n' * 50 + b'{"op": "\xc3("}\n')
    events = read_text(path).events
    assert [next(events).at for _ in range(50)] == list(range(50))
    with pytest.raises(TraceError, match=r"t\.jsonl:52: not UTF-8 \(byte 8 of the line\)"):
        next(events)


def test_a_text_trace_cut_off_at_any_byte(tmp_path: Path) -> None:
    """Whole lines are read; the last one is read, or named as cut off, or (empty) not there."""
    data = text_of([event_from_dict(event, index) for index, event in enumerate(SMALL)]).encode()
    path = tmp_path / "cut.jsonl"
    header = data.index(b"\n") + 1
    for size in range(header, len(data)):
        path.write_bytes(data[:size])
        whole = data[:size].count(b"\n") - 1
        read: list[Event] = []
        try:
            read.extend(read_text(path).events)
        except TraceError as error:
            events = read_text(path).events
            read = [next(events) for _ in range(whole)]
            assert (error.line, error.reason.split(" (")[0]) == (whole + 2, "the line is cut off")
        assert [event_to_dict(event) for event in read][:whole] == SMALL[:whole]


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_files_that_cannot_be_opened(name: str, tmp_path: Path) -> None:
    for read in (read_text, read_binary, read_trace):
        with pytest.raises(TraceError, match=r"No such file|Is a directory"):
            read(tmp_path / name)


# -- hostile traces


def test_random_bytes_are_never_more_than_an_error(tmp_path: Path) -> None:
    path = tmp_path / "fuzz"
    good = {False: text_of([event_from_dict(e, i) for i, e in enumerate(SMALL)]).encode(), True: small_binary()[0]}
    errors = 0
    for seed in seeds(300):
        rng = Random(seed)
        data = bytearray(good[rng.random() < 0.5])
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[place] = rng.randrange(256)
            else:
                data[place : place + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
        path.write_bytes(data)
        try:
            tracker = Tracker()
            for event in read_trace(path).events:
                tracker.take(event)
        except (TraceError, EventError):
            errors += 1
    assert errors > 100


def odd_number(rng: Random) -> int:
    return rng.choice((-1, -(2**31) + 1, 2**31 - 1, 7, 8, 9, 100, 0, 63))


@pytest.mark.parametrize("level", ["rows", "slots", "full"])
def test_ids_that_do_not_exist_are_never_more_than_findings(level: str) -> None:
    """Slots, rows and positions out of range in any event: an EventError at most (unknown pool, wrong kind of pool)."""
    refused = 0
    for seed in seeds(120):
        rng = Random(seed)
        tracker = Tracker(level)
        for index, event in enumerate(random_soup(seed, 80)):
            if event["op"] != "pool" and rng.random() < 0.3:
                for name in ("slots", "key", "val", "keys"):
                    if isinstance(event.get(name), list) and event[name]:
                        event[name][rng.randrange(len(event[name]))] = odd_number(rng)
                    elif isinstance(event.get(name), int):
                        event[name] = odd_number(rng)
                    elif isinstance(event.get(name), list):
                        event[name] = []
                if event.get("row") is not None:
                    event["row"] = odd_number(rng)
                for name in ("pool", "into"):
                    if name in event and rng.random() < 0.2:
                        event[name] = rng.choice(("row", "kv", "paged", "state", "none"))
            try:
                tracker.take(event_from_dict(event, index))
            except EventError:
                refused += 1
        assert all(pool.free >= 0 and pool.pending >= 0 and pool.cached >= 0 for pool in tracker.state.by_number), seed
        assert all(count > 0 for holder in tracker.state.holders.all() for count in holder.held.values()), seed
    assert refused > 10


def test_the_largest_values_take_bounded_memory(tmp_path: Path) -> None:
    """The largest pool that a trace may declare, and the last cell that a row may have."""
    events = [
        pool("kv", "kv", MAX_POOL, page=1),
        pool("paged", "kv", MAX_POOL, page=MAX_POOL, reserved=[]),
        ROW,
        {"op": "alloc", "pool": "row", "slots": [1], "owner": "A"},
        {"op": "alloc", "pool": "kv", "slots": [MAX_POOL - 1], "owner": "A"},
        {"op": "capture", "batch": "b", "pool": "row", "row": 1, "from": 0, "upto": MAX_CELL},
        {"op": "capture", "batch": "b", "pool": "row", "row": 2**61, "from": MAX_CELL, "upto": MAX_CELL},
        {"op": "free", "pool": "kv", "slots": [MAX_POOL - 1], "owner": "A"},
    ]
    tracemalloc.start()
    try:
        tracker = feed(events)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert facts(tracker.findings) == [("stale_row", 5, "row:1"), ("use_after_free", 6, f"row:{2**61}")]
    assert peak < 5 * MAX_POOL * 8, "the words of the two pools, which the system hands out as they are touched"


def test_positions_past_any_context_are_refused() -> None:
    write = {"op": "row_write", "pool": "row", "row": 1, "into": "kv", "slots": [1, 2]}
    with pytest.raises(ValueError, match=r"cells from 67108863 on must lie in 0\.\.67108863"):
        event_from_dict({**write, "pos": MAX_CELL - 1}, 0)
    assert event_from_dict({**write, "pos": MAX_CELL - 2}, 0).op == "row_write"


def test_loading_runs_nothing(tmp_path: Path) -> None:
    """Pickles, and JSON that names Python objects, are only data."""
    import pickle

    path = tmp_path / "evil"
    path.write_bytes(SIGNATURE + record(pickle.dumps({"kvsan_trace": 1})))
    with pytest.raises(TraceError, match="makes no sense"):
        read_trace(path)
    path.write_text(HEADER + '{"op": "step", "__class__": "os.system", "__reduce__": ["os.system", "true"]}\n')
    (event,) = read_trace(path).events
    assert event.extra == {"__class__": "os.system", "__reduce__": ["os.system", "true"]}
