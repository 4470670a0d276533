"""What the engine's tests share: the oracle, the events as a trace, and a server in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvsan.reference_engine.client import Client
from kvsan.reference_engine.oracle import Oracle

START_SECONDS = 60
STOP_SECONDS = 20


class RecordingProbe:
    """Takes every operation; `events` are dicts as in the text encoding of the trace format."""

    enabled = True
    data = True

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __getattr__(self, op: str) -> Callable[..., None]:
        def take(*args: Any, **fields: Any) -> None:
            event: dict[str, Any] = {"i": len(self.events), "op": op, "agent": "host"}
            event |= dict(zip(("pool", "slots"), args, strict=False))
            event |= {("from" if key == "start" else key): value for key, value in fields.items() if value is not None}
            if "slots" in event:
                event["slots"] = [int(slot) for slot in np.atleast_1d(event["slots"])]
            self.events.append(event)

        return take


class Served:
    """A server process on a free loopback port, and a client of it."""

    def __init__(self, process: subprocess.Popen[str], client: Client) -> None:
        self.process = process
        self.client = client

    def totals(self) -> dict[str, int]:
        """What is free and cached in the server."""
        _, info = self.client.call("GET", "/server_info")
        totals: dict[str, int] = info["totals"]
        return totals

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stops the server with a signal; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts servers with the given options; ends those that are left."""
    processes: list[subprocess.Popen[str]] = []

    def start(*options: str) -> Served:
        command = [sys.executable, "-m", "kvsan.reference_engine", "serve", "--port", "0", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        processes.append(process)
        assert process.stdout is not None
        timer = _deadline(process)
        line = process.stdout.readline()
        timer.cancel()
        found = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", line)
        assert found, f"the server said {line!r}"
        return Served(process, Client("127.0.0.1", int(found[1])))

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(STOP_SECONDS)


def _deadline(process: subprocess.Popen[str]) -> threading.Timer:
    """A timer that kills a server that does not start."""
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.start()
    return timer
