"""Which table of probes goes with which release, and what is said of a release that no test runs."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kvsan.hooks.adapters import sglang
from kvsan.hooks.adapters.probes import Probe
from kvsan.hooks.adapters.sglang import requests
from kvsan.hooks.adapters.sglang.between.records import OwnRecordsWatch
from kvsan.hooks.adapters.sglang.older import table as older
from kvsan.hooks.adapters.sglang.older.begin import declare_rows
from kvsan.hooks.adapters.sglang.older.watch import OlderWatch
from kvsan.hooks.adapters.sglang.table import PROBES, STATEFUL, WINDOWED
from kvsan.hooks.adapters.sglang.tables import SINCE_0_5_22, TABLES, Table, standing, table_for
from kvsan.hooks.adapters.sglang.watch import ROWS, Watch
from kvsan.hooks.sanitizer import Sanitizer


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("0.5.3", "0.5.4"),
        ("0.5.4", "0.5.4"),
        ("0.5.4.post3", "0.5.4"),
        ("0.5.5.post1", "0.5.4"),
        ("0.5.6", "0.5.6"),
        ("0.5.8.post1", "0.5.6"),
        ("0.5.9", "0.5.9"),
        ("0.5.9.post1", "0.5.9"),
        ("0.5.10", "0.5.9"),
        ("0.5.10.post1", "0.5.9"),
        ("0.5.11", "0.5.11"),
        ("0.5.12.post1", "0.5.11"),
        ("0.5.13", "0.5.13"),
        ("0.5.13.post1", "0.5.13"),
        ("0.5.14", "0.5.14"),
        ("0.5.15.post1", "0.5.15"),
        ("0.5.16", "0.5.16"),
        ("0.5.18", "0.5.17"),
        ("0.5.19", "0.5.19"),
        ("0.5.20", "0.5.20"),
        ("0.5.21", "0.5.21"),
        ("0.5.22", "0.5.22"),
        ("0.5.23", "0.5.23"),
        ("0.6.0.dev1+g0123abc", "0.5.23"),
    ],
)
def test_the_table_for_a_release(version: str, since: str) -> None:
    assert table_for(version).since == since


def test_old_releases_have_a_watch_of_their_own() -> None:
    old = ["0.5.4", "0.5.6", "0.5.9", "0.5.11", "0.5.13", "0.5.14", "0.5.15"]
    assert [table.since for table in TABLES if table.watch is OlderWatch] == old
    assert [table.since for table in TABLES if table.watch is OwnRecordsWatch] == ["0.5.16", "0.5.17"]
    assert {table.watch for table in TABLES} == {OlderWatch, OwnRecordsWatch, Watch}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.since)
def test_a_place_stands_once_in_a_table(table: Table) -> None:
    places = [probe.where for probe in table.probes]
    assert len(places) == len(set(places))
    assert all(inspect.isgeneratorfunction(probe.read) for probe in table.probes)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.since)
def test_the_releases_that_a_table_names_are_its_own(table: Table) -> None:
    assert all(table_for(version) is table for version in (*table.run, *table.compared))
    assert table.run or table.compared


def test_0_5_11_differs_from_0_5_9_in_one_place() -> None:
    before, after = ({each.where for each in probes} for probes in (older.SINCE_0_5_9, older.SINCE_0_5_11))
    mixin = "sglang.srt.managers.scheduler_runtime_checker_mixin:SchedulerRuntimeCheckerMixin"
    assert (before - after, after - before) == ({f"{mixin}.self_check_during_idle"}, {f"{mixin}.on_idle"})


def test_0_5_13_differs_from_0_5_11_in_what_its_scheduler_moved() -> None:
    before, after = ({each.where for each in probes} for probes in (older.SINCE_0_5_11, older.SINCE_0_5_13))
    assert {place.rpartition(":")[2] for place in before - after} == {
        "SchedulerOutputProcessorMixin.process_batch_result_prefill",
        "SchedulerOutputProcessorMixin.process_batch_result_decode",
        "SchedulerRuntimeCheckerMixin.on_idle",
        "ScheduleBatch.release_req",
    }
    assert {place.rpartition(":")[2] for place in after - before} == {
        "SchedulerBatchResultProcessor.process_batch_result_prefill",
        "SchedulerBatchResultProcessor.process_batch_result_decode",
        "Scheduler.on_idle",
        "release_req",
    }


def test_0_5_14_and_0_5_15_have_one_place_more_each() -> None:
    (barrier,) = set(older.SINCE_0_5_14) - set(older.SINCE_0_5_13)
    (session,) = set(older.SINCE_0_5_15) - set(older.SINCE_0_5_14)
    assert barrier.where.endswith(":Scheduler._apply_war_barrier")
    assert session.where.endswith(":SessionRadixCacheMixin.release_radix_session")


def test_0_5_22_differs_in_two_places_and_two_groups() -> None:
    assert {each.where for each in SINCE_0_5_22} - {each.where for each in PROBES} == {
        "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache._free_values",
        "sglang.srt.managers.scheduler_components.output_sender:SenderWrapper.send_output",
    }
    gone = {each for each in PROBES if each not in SINCE_0_5_22}
    assert {each.where for each in gone - {*WINDOWED, *STATEFUL}} == {
        "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache._apply_eviction_result",
        "sglang.srt.managers.scheduler:Scheduler.send_abort_output",
    }
    assert gone > {*WINDOWED, *STATEFUL}


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.5.8.post1", None),
        ("0.5.9", None),
        ("0.5.23", None),
        ("0.5.23+cpu", None),
        ("0.5.10.post1", None),
        ("0.5.10", "compared by source"),
        ("0.5.12", "compared by source"),
        ("0.5.14", "compared by source"),
        ("0.5.15.post1", None),
        ("0.5.16", None),
        ("0.5.17", "compared by source"),
        ("0.5.20", None),
        ("0.5.22", None),
        ("0.5.7", "only that its places are there is checked"),
        ("0.5.24", "only that its places are there is checked"),
    ],
)
def test_what_is_said_of_a_release(version: str, said: str | None) -> None:
    sentence = standing(version)
    if said is None:
        assert sentence is None
    else:
        assert sentence is not None
        assert sentence.startswith(f"SGLang {version} ")
        assert said in sentence


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """The adapter's watch, as `attach` leaves it; nothing of SGLang is there."""
    watch = Watch(Sanitizer())
    monkeypatch.setattr(sglang, "_watch", watch)
    monkeypatch.setattr(sglang, "_found", [])
    return watch


def test_a_release_gets_the_probes_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[Any] = []
    monkeypatch.setattr(sglang, "_watch", None)
    monkeypatch.setattr(sglang, "current", lambda: Sanitizer())
    monkeypatch.setattr(sglang, "install", lambda probes, watch: put.extend(probes) or [])
    for version, count in (("0.5.22", len(SINCE_0_5_22)), ("0.5.10", len(older.SINCE_0_5_9))):
        monkeypatch.setattr(sglang, "installed_version", lambda version=version: version)
        monkeypatch.setattr(sglang, "_watch", None)
        put.clear()
        sglang.attach(object)
        assert len(put) == count


@pytest.mark.parametrize(
    ("version", "notes"),
    [
        ("0.5.17", ("SGLang 0.5.17 was not run by kvsan's tests; its places were compared by source.",)),
        ("0.5.23", ()),
    ],
)
def test_a_release_that_no_test_runs_is_told(
    watch: Watch, version: str, notes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang, "installed_version", lambda: version)
    begun: list[Any] = []
    monkeypatch.setattr(sglang, "_begin", lambda watch, scheduler: begun.append(scheduler))
    sglang.begin(SimpleNamespace())
    assert len(begun) == 1
    assert (watch.san.report().notes, watch.san.report().failures) == (notes, ())


# -- what 0.5.10, 0.5.11 and 0.5.22 have instead of what their neighbours have


def test_the_loop_of_0_5_10_has_a_stream_of_its_own() -> None:
    """It is drawn when the loop starts, after the watch has begun; rows are written before the first launch."""
    watch = OlderWatch(Sanitizer())
    loop, forward = SimpleNamespace(), SimpleNamespace()
    watch.scheduler = SimpleNamespace(forward_stream=forward, copy_stream=None)
    watch.name_streams()
    watch.scheduler.schedule_stream = loop
    probe = next(each for each in older.SINCE_0_5_9 if each.where.endswith("Scheduler.get_next_batch_to_run"))
    reader = probe.read(watch, watch.scheduler)
    next(reader)
    assert (watch.stream_name(loop), watch.stream_name(forward)) == ("sched", "fwd")


def test_the_loop_of_0_5_9_works_on_the_stream_that_made_the_scheduler() -> None:
    watch = OlderWatch(Sanitizer())
    watch.scheduler = SimpleNamespace(default_stream=SimpleNamespace())
    watch.name_streams()
    assert watch.stream_name(watch.scheduler.default_stream) == "sched"


@pytest.mark.parametrize(("count", "found"), [(2, []), (3, ["reserved_slot"])])
def test_from_0_5_11_on_the_first_row_is_for_padding(count: int, found: list[str]) -> None:
    """The pool says that it has two rows; the table has one more since then."""
    watch = OlderWatch(Sanitizer())
    watch.rows = SimpleNamespace(size=2, req_to_token=np.zeros((count, 8), np.int32))
    declare_rows(watch)
    watch.san.alloc(ROWS, count - 1, owner="r1")
    assert watch.san.findings == []
    watch.san.alloc(ROWS, 0, owner="r2")
    assert [finding.kind for finding in watch.san.findings] == found


class AbortReq(SimpleNamespace):
    """Named as SGLang's own."""


@pytest.mark.parametrize(("output", "ends"), [(AbortReq(rid="r1"), True), (SimpleNamespace(rids=["r1"]), False)])
def test_0_5_22_tells_by_its_answer_that_a_queued_request_ends(output: Any, ends: bool) -> None:
    watch = Watch(Sanitizer())
    watch.live.add("r1")
    req = SimpleNamespace(rid="r1", kv=SimpleNamespace(holds_kv=False, holds_mamba=False))
    for _ in requests.sent(watch, SimpleNamespace(), output, req):
        assert "r1" in watch.live
    assert ("r1" not in watch.live) is ends


def test_what_0_5_22_frees_from_its_cache_is_an_eviction() -> None:
    """The reader takes what `_free_values` is called with, and holds while it runs."""
    probe = next(each for each in SINCE_0_5_22 if each.where.endswith("._free_values"))
    assert isinstance(probe, Probe)
    watch = Watch(Sanitizer())
    watch.tree = SimpleNamespace()
    reader = probe.read(watch, watch.tree, {}, {})
    next(reader)
    assert [doing.what for doing in watch.doing] == ["evict"]
    with pytest.raises(StopIteration):
        reader.send(None)
    assert watch.doing == []
