"""A server whose locks are never given back: SGLang's checks are content with it until it stalls."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

from . import load
from .living import frames, known, living
from .release import LOCKS
from .server import STRICT, status, wait_for

COUNT = 16
SECONDS = 60.0
STEPS = 3000
"""Of the scheduler, which takes hundreds for all the requests."""


def test_unlocks_that_are_skipped(model: Path, tmp_path: Path) -> None:
    """kvsan names the first of them while the server still serves."""
    answered: list[int] = []

    def one(number: int) -> None:
        with suppress(OSError):
            load.post(server.port, "/generate", load.body(number, COUNT), timeout=3 * SECONDS)
            answered.append(number)

    def stalls() -> bool:
        """Does the scheduler go on and on, and nobody gets an answer?"""
        if not (hits := server.hits()):
            return False
        before, step = len(answered), hits[-1]["step"]
        return wait_for(lambda: server.hits()[-1]["step"] > step + STEPS, SECONDS) and len(answered) == before

    with living(model, tmp_path, "--max-total-tokens", "512", **STRICT) as server:
        server.arm("lock_leaks")
        threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(COUNT)]
        for thread in threads:
            thread.start()
        assert wait_for(lambda: len(answered) == COUNT or stalls(), 2 * SECONDS)
        assert 0 < len(answered) < COUNT, "it serves some, and then no more"
        now = status(server.served)
        hits, found = server.hits(), [each for each in server.findings() if not known(each)]
        os.killpg(server.served.process.pid, signal.SIGINT)  # as Ctrl-C; at a SIGTERM SGLang waits for all requests
        server.served.process.wait(20)
        server.served.stop()
    assert now["holdings"]["findings"]["lock_leak"] >= 1
    assert now["holdings"]["owners"], "requests wait with rows or slots that they cannot give back"
    assert any("event_loop" in frame["function"] for thread in now["threads"] for frame in thread["stack"])
    for said in ("Leak Detected", "leak detected", "KV double free", "KV page use-after-free"):
        assert said not in server.served.log
    assert {each.kind for each in found} == {"lock_leak"}
    first = found[0]
    assert (first.node, first.owner) == (hits[0]["node"], hits[0]["owner"])
    assert first.present.step < hits[-1]["step"] - STEPS
    assert "process_batch_result" in frames(first.present)
    assert LOCKS & {*frames(first.earlier)}
    assert server.served.status == 88
    assert {each.kind for each in server.served.findings if not known(each)} == {"lock_leak"}
    assert server.served.report["failures"] == []
