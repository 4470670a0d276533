"""A real SGLang decode server; SGLang's own stand-in for transfers says that everything has arrived."""

from __future__ import annotations

import re
import threading
import time
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from . import load
from .living import LATE, others
from .server import BARRIER, serving

DECODE = (
    "--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "fake",
    "--disaggregation-decode-retraction-backup", "cpu_tensor", "--max-total-tokens", "4096",
)  # fmt: skip
NOWHERE = "2.2.2.2"
"""The prefill server that SGLang takes for its stand-in."""
ABORTED = "abort-5"


def requests(port: int, count: int) -> list[Any]:
    """Requests whose prefill somebody else is said to have done, one of them aborted; the answers. SGLang says 500 to
    one that is aborted before what it awaits is taken in."""
    answers: list[Any] = [None] * count

    def one(number: int) -> None:
        body = {**load.body(number, 30), "bootstrap_host": NOWHERE, "bootstrap_port": 1, "bootstrap_room": number}
        try:
            answers[number] = load.post(port, "/generate", body)
        except urllib.error.HTTPError as error:
            if body.get("rid") != ABORTED or error.code != 500:
                raise
            answers[number] = error.reason

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    load.post(port, "/abort_request", {"rid": ABORTED})
    for thread in threads:
        thread.join(load.SECONDS)
    return answers


PAGED = ("--page-size", "16", "--disable-overlap-schedule")


@pytest.mark.parametrize(("arguments", "when"), [((), {}), (PAGED, {}), ((), LATE)], ids=["overlap", "page 16", "late"])
def test_a_decode_server(arguments: tuple[str, ...], when: dict[str, str], model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, *DECODE, *arguments, options=("--level", "full"), **BARRIER, **when) as served:
        assert all(requests(served.port, 24))
        time.sleep(1)
        assert "flushed" in str(load.post(served.port, "/flush_cache", {}))
    assert others(served) == []
    assert served.report["failures"] == []
    late = [note for note in served.report["notes"] if "came from the device" in note]
    assert len(late) == bool(when)
    for note in late:  # each iteration takes in what has come (a scheduler may sleep a second), not only the end
        (milliseconds,) = re.findall(r"told at most ([\d,]+) ms after", note)
        assert int(milliseconds.replace(",", "")) < 5000, note
    totals = {pool["pool"]: pool for pool in served.report["totals"]}
    assert set(totals) == {"rows", "kv"}
    assert totals["rows"]["free"] == totals["rows"]["size"] - 1 > 8
    assert totals["kv"]["events"] > 1000
