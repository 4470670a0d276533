"""Retraction in the middle of a load. In 0.5.4 the branch of sgl-project/sglang#10871 takes a request that was
retracted while its prefill was in flight for a delayed decode, and gives back what the retraction gave back before."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from . import loads
from .bugs import HAS_MIXED_CHUNK_LEAK, HAS_ROW_RACE
from .server import Served, frames, serving, wait_for

LOADS = 8
"""Whether a load meets the fault is a matter of time; nearly every one does."""

GIVEN_BACK_AGAIN = {"double_free", "free_not_owner"}
"""The latter where another request has got the slot in between."""


def dies(served: Served) -> bool:
    """Loads the server; once it is idle after the fault, be it before the last request is sent, it finds more free
    slots than there are, and dies."""
    with suppress(OSError):
        loads.sound(served.port)
    return wait_for(lambda: "memory leak detected" in served.log, 3)


def test_retraction(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, *loads.ARGUMENTS, SGLANG_TEST_RETRACT="1") as served:
        if HAS_MIXED_CHUNK_LEAK:
            assert any(dies(served) for _ in range(LOADS))
        else:
            assert loads.sound(served.port) == (18, [])
        served.stop()
    assert "etract" in served.log
    assert served.report["failures"] == []
    rest = [each for each in served.findings if "cache_unfinished_req" not in frames(each["present"])]
    again = [each for each in rest if each["kind"] in GIVEN_BACK_AGAIN]
    assert {each["kind"] for each in rest} <= GIVEN_BACK_AGAIN | ({"race"} if HAS_ROW_RACE else set())
    assert bool(again) is HAS_MIXED_CHUNK_LEAK
    for each in again:
        assert each["pool"] == "kv"
        assert frames(each["present"])[0] == "process_batch_result_prefill"
        assert each["kind"] != "double_free" or "retract_decode" in frames(each["earlier"])
