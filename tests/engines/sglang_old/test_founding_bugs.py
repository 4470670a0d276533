"""The bugs that kvsan was founded on, in the unmodified releases that have them, found while a server lives; and the
same load on releases without them. One server for each release."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvsan.events import Event
from kvsan.traces import read_trace
from kvsan.tracker import Tracker

from ..sglang.living import WHEN
from . import loads
from .bugs import HAS_MIXED_CHUNK_LEAK, HAS_ROW_RACE
from .server import Served, frames, serving, wait_for


@pytest.fixture(scope="module", params=WHEN)
def served(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server after it has had every load and is stopped."""
    folder = tmp_path_factory.mktemp("served")
    recorded = ("--record", str(folder / "trace.kvt"))
    variables = WHEN[request.param]
    with serving(model, folder, *loads.ARGUMENTS, options=recorded, **variables) as served:
        assert loads.sound(served.port) == (18, [])
        loads.churn(served.port)
        loads.twins(served.port)
        loads.recycled_row(served.port)
        with loads.busy(served.port, 1):  # an idle 0.5.4 notices that rows are missing, and dies
            loads.wrong_slot(served.port, clean=True)
            loads.wrong_slot(served.port)
            loads.over_long(served.port)
            if HAS_MIXED_CHUNK_LEAK:
                assert wait_for(lambda: "kvsan: LEAK on rows" in served.log, 20)
            assert served.alive
        if HAS_MIXED_CHUNK_LEAK:
            assert wait_for(lambda: "memory leak detected" in served.log, 20)
        served.stop()
        yield served


def of_kind(served: Served, kind: str) -> list[dict[str, Any]]:
    """The findings of a kind."""
    return [finding for finding in served.findings if finding["kind"] == kind]


def replay(served: Served, without: str) -> set[str]:
    """The kinds of the findings in the recorded trace, with one of the adapter's words (`spent`, `same`) left out."""
    tracker = Tracker("slots")
    for event in recorded(served):
        if event.extra is not None:
            event.extra.pop(without, None)
        tracker.take(event)
    return {finding.kind for finding in tracker.findings}


def recorded(served: Served) -> Iterator[Event]:
    """The events of the scheduler's process."""
    (path,) = served.folder.glob("trace*.kvt")
    yield from read_trace(path).events


def test_everything_was_watched(served: Served) -> None:
    assert served.report["failures"] == []
    assert not [note for note in served.report["notes"] if "watched" in note]
    allocated = {event.owner for event in recorded(served) if event.op == "alloc"}
    captured = {event.owner for event in recorded(served) if event.op == "capture"}
    requests = {"twin-0", "prefix", "A", "B", "A faulty", "X faulty", "A clean", "X clean"}
    assert requests <= allocated
    assert requests <= captured


def test_a_row_handed_on_while_it_is_read(served: Served) -> None:
    found = of_kind(served, "race")
    if not HAS_ROW_RACE:
        assert found == []
        return
    (race,) = found
    write, read = race["present"], race["earlier"]
    assert race["pool"] == "rows"
    assert (write["owner"], write["agent"], read["owner"], read["agent"]) == ("B", "sched", "A", "fwd")
    assert write["cells"] == [0, 40]
    assert read["cells"][1] > 40
    assert {"write_cache_indices", "alloc_for_extend"} & {*frames(write)[:2]}
    assert "run_batch" in frames(read)
    before, after = (int(access["batch"].removeprefix("forward ")) for access in (read, write))
    assert after == before + 1


def test_a_slot_given_back_in_place_of_another(served: Served) -> None:
    found = of_kind(served, "free_not_owner")
    if not HAS_MIXED_CHUNK_LEAK:
        assert found == []
        return
    (freed,) = found
    assert (freed["pool"], freed["owner"], freed["holder"]) == ("kv", "aborted", "X faulty")
    assert frames(freed["present"])[0] == "process_batch_result_prefill"
    assert "alloc_for_extend" in frames(freed["earlier"])
    assert ("leak", "aborted") in {(joined["kind"], joined["owner"]) for joined in freed["joined"]}


def test_a_row_that_an_aborted_request_leaves_behind(served: Served) -> None:
    found = of_kind(served, "leak")
    if not HAS_MIXED_CHUNK_LEAK:
        assert found == []
        return
    (leak,) = found
    assert (leak["owner"], leak["pool"]) == ("over-long", "rows")
    assert len(leak["slots"]) == 1
    assert any("alloc_req_slots" in frames(access) for access in leak["provenance"])


def test_what_else_was_found(served: Served) -> None:
    """Equal prompts: a publication repoints a row that a launched batch has captured (sgl-project/sglang#38140). And in
    0.5.4, what follows from X's slot in two hands."""
    rest = [each for each in served.findings if each["kind"] not in ("race", "free_not_owner", "leak")]
    repointed = [each for each in rest if "cache_unfinished_req" in frames(each["present"])]
    follows = [each for each in rest if HAS_MIXED_CHUNK_LEAK and each["owner"] == "X faulty"]
    assert {each["kind"] for each in repointed} == {"stale_capture"}
    assert {each["kind"] for each in follows} <= {"use_after_free"}
    assert len(rest) == len(repointed) + len(follows), [(each["kind"], each["owner"]) for each in rest]


@pytest.mark.skipif(HAS_ROW_RACE, reason="its rows race without them too")
@pytest.mark.parametrize("word", ["spent", "same"])
def test_the_look_alikes_were_there(word: str, served: Served) -> None:
    """Rows that were read for nothing, and rewritten with what was there: without that word they would be races."""
    assert "race" in replay(served, word)
    assert "race" not in replay(served, "")
