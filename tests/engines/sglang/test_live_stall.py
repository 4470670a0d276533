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
from .server import wait_for

STRICT = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
COUNT = 16
SECONDS = 60.0


def test_unlocks_that_are_skipped(model: Path, tmp_path: Path) -> None:
    """kvsan names the first of them while the server still serves."""
    answered: list[int] = []

    def one(number: int) -> None:
        with suppress(OSError):
            load.post(server.port, "/generate", load.body(number, COUNT), timeout=SECONDS)
            answered.append(number)

    def stalls() -> bool:
        before = len(answered)
        return not wait_for(lambda: len(answered) != before, 10)

    with living(model, tmp_path, "--max-total-tokens", "512", **STRICT) as server:
        server.arm("lock_leaks")
        threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(COUNT)]
        for thread in threads:
            thread.start()
        assert wait_for(lambda: len(answered) == COUNT or stalls(), SECONDS)
        assert 0 < len(answered) < COUNT, "it serves some, and then no more"
        hits, found = server.hits(), [each for each in server.findings() if not known(each)]
        os.killpg(server.served.process.pid, signal.SIGINT)  # as Ctrl-C; at a SIGTERM SGLang waits for all requests
        server.served.process.wait(20)
        server.served.stop()
    assert "leak detected" not in server.served.log.lower().replace("lock leak", "")
    assert {each.kind for each in found} == {"lock_leak"}
    first = found[0]
    assert (first.node, first.owner) == (hits[0]["node"], hits[0]["owner"])
    assert first.present.step * 10 < hits[-1]["step"], "the server tries again and again long after that"
    assert "process_batch_result" in frames(first.present)
    assert LOCKS & {*frames(first.earlier)}
    assert server.served.status == 88
    assert {each.kind for each in server.served.findings if not known(each)} == {"lock_leak"}
    assert server.served.report["failures"] == []
