"""The benchmarks run, print a line for each case, and measure what they say: a decode step of the stand-in gives the
events that a living server's gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from kvsan.hooks.sanitizer import Sanitizer
from kvsan.hooks.specification import hookimpl

from kvsan import bench, bench_steps
from kvsan.bench_engine import Scheduler
from kvsan.events import EVENT_CLASSES, Event


class Listener:
    """Keeps the operations that it hears of, in order."""

    def __init__(self) -> None:
        self.heard: list[str] = []


for _cls in EVENT_CLASSES:

    def _implementation(self: Listener, event: Event) -> None:
        self.heard.append(event.op)

    _implementation.__name__ = _cls.hook
    _implementation.__qualname__ = f"Listener.{_cls.hook}"
    setattr(Listener, _cls.hook, hookimpl(_implementation))


def listened(
    monkeypatch: pytest.MonkeyPatch, count: int, level: str
) -> tuple[Scheduler, Callable[[], object], Listener]:
    listener = Listener()
    init = Sanitizer.__init__

    def with_listener(self: Sanitizer, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        self.add_plugin(listener)

    monkeypatch.setattr(Sanitizer, "__init__", with_listener)
    scheduler, fine = bench_steps.dressed(count, level)
    return scheduler, fine, listener


BEFORE_THE_CELLS = ["step", "alloc"]
AFTER_THE_CELLS = ["record", "wait"]
AFTER_THE_CAPTURES = ["launch"]
RESULTS = ["record", "wait", "record", "record", "wait", "record", "wait", "sync", "done"]


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("level", bench_steps.LEVELS)
def test_a_decode_step_is_that_of_a_living_server(monkeypatch: pytest.MonkeyPatch, count: int, level: str) -> None:
    scheduler, fine, listener = listened(monkeypatch, count, level)
    for _ in range(3):
        scheduler.decode()
    listener.heard.clear()
    scheduler.decode()
    cells = ["row_write"] * count if level == "rows" else [*["own"] * count, *["row_write"] * count]
    before = BEFORE_THE_CELLS[:1] if level == "rows" else BEFORE_THE_CELLS
    launch = [*AFTER_THE_CAPTURES, "write"] if level == "full" else AFTER_THE_CAPTURES
    assert listener.heard == [*before, *cells, *AFTER_THE_CELLS, *["capture"] * count, *launch, *RESULTS]
    fine()


def test_a_prefill_is_matched_computed_published_released_and_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, fine, listener = listened(monkeypatch, 1, "slots")
    scheduler.prefill()
    listener.heard.clear()
    scheduler.prefill()
    heard = Counter(listener.heard)
    expected = ["req_start", "match", "capture", "launch", "done", "insert", "req_finish", "free", "req_end", "own"]
    assert {op: heard[op] for op in expected} == dict.fromkeys(expected, 1)
    assert heard["row_write"] == 3  # the prefix, what is new, and what the tree has of it
    assert heard["attach"] == 2
    assert heard["lock"] == heard["unlock"] == 2
    assert heard["evict"]
    fine()


@pytest.mark.parametrize("what", ["decode", "prefill"])
def test_the_same_is_told_where_slot_ids_come_late(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    heard = []
    for level in ("slots", bench_steps.LATE):
        scheduler, fine, listener = listened(monkeypatch, 4, level)
        for _ in range(3):
            getattr(scheduler, what)()
        fine()
        heard.append(Counter(listener.heard))
    assert heard[0] == heard[1]


@pytest.mark.parametrize("level", ["full", bench_steps.LATE])
def test_requests_that_decode_can_begin_afresh(level: str) -> None:
    scheduler, fine = bench_steps.dressed(2, level)
    for _ in range(2):
        scheduler.decode()
        scheduler.restart()
    scheduler.decode()
    assert len(scheduler.running) == 2
    fine()


def test_the_table_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_steps.main(["--repeats", "20"]) == 0
    _, _, head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["step", "requests", "level", "us/step", "us/request", "turns/step"]
    cases = [("decode", "8"), ("decode", "64"), ("prefill", "1")]
    assert [tuple(line.split()[:3]) for line in lines] == [
        (*case, level) for case in cases for level in (*bench_steps.LEVELS, bench_steps.LATE)
    ]
    assert all(float(figure) > 0 for line in lines for figure in line.split()[3:])


def test_the_table_of_events(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "COUNTS", (1, 256))
    assert bench.main(["--repeats", "20"]) == 0
    _, _, _, *lines = capsys.readouterr().out.splitlines()
    operations = ["alloc", "free", "row write", "capture", "read", "write"]
    assert [line[:10].strip() for line in lines] == operations * 4
