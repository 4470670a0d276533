"""A real SGLang server that searches with beams, beside plain requests: aborts in the middle, and with retraction."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from . import load
from .living import others
from .server import BARRIER, serving


def beams(port: int, count: int) -> list[Any]:
    """Beam requests of several widths at once, one of which is aborted while it runs; the answers."""
    answers: list[Any] = [None] * count

    def one(number: int) -> None:
        body = {
            "rid": f"beam-{number}",
            "text": f"{number} " + load.PREFIX[: 60 + 20 * (number % 4)],
            "sampling_params": {
                "max_new_tokens": 10 + 10 * (number % 4),
                "beam_width": 2 + number % 3,
                "n": 2,
                "ignore_eos": True,
            },
        }
        answers[number] = load.post(port, "/generate", body)

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(0.4)
    load.post(port, "/abort_request", {"rid": f"beam-{count - 1}"})
    for thread in threads:
        thread.join(load.SECONDS)
    return answers


@pytest.mark.parametrize(
    ("name", "arguments", "variables"),
    [
        ("overlapped", (), {}),
        ("no overlap, and retraction", ("--disable-overlap-schedule",), {"SGLANG_TEST_RETRACT": "1"}),
    ],
)
def test_beams(name: str, arguments: tuple[str, ...], variables: dict[str, str], model: Path, tmp_path: Path) -> None:
    # With few rows SGLang admits more beams than it has rows for, and its scheduler dies of it, with or without kvsan.
    rows = ("--max-total-tokens", "4096", "--max-running-requests", "48")
    with serving(model, tmp_path, *rows, *arguments, **BARRIER, **variables) as served:
        plain = threading.Thread(target=load.run, args=(served.port, 16), daemon=True)
        plain.start()
        assert all(beams(served.port, 8))
        plain.join(load.SECONDS)
        time.sleep(1)
        assert "flushed" in str(load.post(served.port, "/flush_cache", {}))
    assert others(served) == []
    assert served.report["failures"] == []
    totals = {pool["pool"]: pool for pool in served.report["totals"]}
    assert totals["rows"]["free"] == 48
