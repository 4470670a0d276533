"""The main job: `kvsan run` around a serving engine with a historical bug, then around the same engine without it.

`make demo`, or `python examples/demo.py [--bug NAME]` where kvsan and its extra `engine` are installed. Uses a free
loopback port, and takes a minute at most. Exit status 0 when both runs ended as they should.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass


@dataclass(frozen=True)
class Show:
    """What it takes for a bug to come up: the server's options, and the workload that a client sends."""

    options: list[str]
    workload: str = "demo"


SHOWS = {
    # Few rows, so that a row that is given back goes straight to the next request; and a forward stream that runs late,
    # so that the race bites. kvsan finds it under any other policy too.
    "row-realloc-between-chunks": Show(["--rows", "2", "--chunked-prefill-size", "32", "--schedule-policy", "late"]),
    "mixed-chunk-abort-keeps-row": Show(["--mixed-chunk"], "too-long"),
    "profiling-frees-by-hand": Show(["--profile-sizes", "2", "--profile-chunks", "2"]),
    "reuse-inferred-from-length": Show(["--kv-tokens", "320"]),
    "capture-before-publication": Show(["--hybrid"]),
}
FOUND = 88
READY_SECONDS = 60.0
END_SECONDS = 30.0

ENGINE = [sys.executable, "-m", "kvsan.reference_engine"]


def main() -> int:
    """Runs both halves and says how they ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bug", choices=SHOWS, default=next(iter(SHOWS)), help="default: %(default)s")
    bug = parser.parse_args().bug
    good = half(1, f"the server with the bug {bug}", SHOWS[bug], ["--bug", bug], expected=FOUND)
    good &= half(2, "the same server without the bug", SHOWS[bug], [], expected=0)
    say("both runs ended as they should" if good else "this is not what should have happened")
    return 0 if good else 1


def half(number: int, title: str, show: Show, switch: list[str], expected: int) -> bool:
    """One run: start, wait until it answers, send the workload, stop, compare the exit status."""
    say(f"{number} of 2: {title}")
    port = free_port()
    address = ["--port", str(port)]
    server = [sys.executable, "-m", "kvsan", "run", "--", *ENGINE, "serve", *address, *show.options, *switch]
    print("$ " + shown(server), flush=True)
    process = subprocess.Popen(server, stdout=subprocess.DEVNULL)
    try:
        wait_until_ready(process, f"http://127.0.0.1:{port}/health")
        client = [*ENGINE, "client", *address, "--workload", show.workload]
        print("$ " + shown(client), flush=True)
        answers = subprocess.run(client, timeout=120).returncode
        say("some answers are wrong, and nothing in the server says so" if answers else "every answer is right")
        print(f"$ kill -TERM {process.pid}", flush=True)
        process.send_signal(signal.SIGTERM)
        status = process.wait(END_SECONDS)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    say(f"exit status {status}, expected {expected}")
    return status == expected and (bool(switch) or answers == 0)


def wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Returns when the server answers; ends the demo when it does not."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"demo: the server ended at once, with status {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                say(f"the server answers: {json.dumps(json.load(answer))}")
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError, ValueError):
            time.sleep(0.1)
    raise SystemExit(f"demo: the server did not answer at {url} within {READY_SECONDS:.0f} seconds")


def free_port() -> int:
    """A loopback port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def shown(command: list[str]) -> str:
    """The command as a person would type it."""
    words = ["python" if word == sys.executable else word for word in command]
    return shlex.join(words).replace("python -m kvsan run", "kvsan run", 1)


def say(text: str) -> None:
    """A step of the demo."""
    print(f"\n== demo: {text}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
