"""Who finds which fault, when, and in which words."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from ..sglang import load
from ..sglang.server import Served
from .servers import CANARY, KVSAN, STRICT, Checker, serving

FAULTS = {
    "leak:inside": "a release forgets its last slot",
    "double_free:inside": "a release runs twice",
    "foreign_free": "a release frees a slot that the tree holds",
    "early_free": "a live slot is given back while a batch that captured it is in flight",
    "double_alloc": "a slot stays in the free list when it is handed out",
    "stale_prefix": "a matched prefix is not written into its row",
    "alias": "a row gets another request's slot",
    "row_leak": "a row is not given back",
    "row_double_free": "a row is given back twice",
    "lock_leak": "an unlock is skipped",
}
AT_ONCE = 2
"""Servers that live at the same time."""
TOKENS = 500
REQUESTS = 12


@dataclass
class Line:
    """A line of a server's log, and when it came."""

    at: float
    text: str


class Tail:
    """Reads a growing log, and notes when each line came (to 20 ms)."""

    def __init__(self, log: Path) -> None:
        self.lines: list[Line] = []
        self._log = log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._log.open(encoding="utf-8", errors="replace") as file:
            rest = ""
            while True:
                ending = self._stop.is_set()
                rest += file.read()
                *whole, rest = rest.split("\n")
                self.lines += [Line(time.monotonic(), text) for text in whole]
                if ending:
                    return
                time.sleep(0.02)

    def close(self) -> None:
        """Reads what is left."""
        self._stop.set()
        self._thread.join()


@dataclass
class Seen:
    """What became of one fault under one checker."""

    struck: bool
    after_s: float | None = None
    words: str = ""
    at_idle: bool = False
    died: bool = False

    def __str__(self) -> str:
        if not self.struck:
            return "had no chance to strike"
        if self.after_s is None:
            return "**no**" + (", the server died" if self.died else "")
        when = "when idle" if self.at_idle else f"after {self.after_s:.1f} s"
        return f"{when}: {self.words}" + ("; the scheduler dies" if self.died else "")


def table(tiny: Path, folder: Path, tell: Callable[[str], None]) -> str:
    """A line for each fault, a column for each checker."""
    seen: dict[tuple[str, str], Seen] = {}
    for checker in (STRICT, CANARY, KVSAN):
        tell(f"faults under {checker.name}")
        each = [[fault] for fault in FAULTS] if checker.once else [list(FAULTS)]
        folders = [folder / f"{checker.name} {number}" for number in range(len(each))]
        with ThreadPoolExecutor(AT_ONCE) as threads:  # a server takes most of its time to start
            for results in threads.map(_server, repeat(checker), each, repeat(tiny), folders):
                for name, result in results.items():
                    tell(f"  {name}: {result}")
                    seen[name, checker.name] = result
    names = [checker.name for checker in (STRICT, CANARY, KVSAN)]
    rows = ["| fault | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for fault, words in FAULTS.items():
        rows.append(f"| {words} | " + " | ".join(str(seen[fault, name]) for name in names) + " |")
    return "\n".join(rows)


def _server(checker: Checker, faults: list[str], tiny: Path, folder: Path) -> dict[str, Seen]:
    results = {}
    with serving(checker, tiny, folder, TOKENS) as served:
        load.warm_up(served.port)
        tail = Tail(folder / "log")
        for fault in faults:
            results[fault] = _one(checker, fault, served, folder / "fault", tail)
        tail.close()
    return results


def _one(checker: Checker, fault: str, served: Served, control: Path, tail: Tail) -> Seen:
    hits = Path(f"{control}.hits")
    before = len(hits.read_text().splitlines()) if hits.exists() else 0
    first = len(tail.lines)
    control.write_text(fault)
    traffic = threading.Thread(target=_traffic, args=(served.port,), daemon=True)
    traffic.start()
    struck_at: float | None = None
    end = time.monotonic() + 60
    while time.monotonic() < end and (traffic.is_alive() or struck_at is None):
        if struck_at is None and hits.exists() and len(hits.read_text().splitlines()) > before:
            struck_at = time.monotonic()
            control.write_text("")
        if served.process.poll() is not None or (struck_at is None and not traffic.is_alive()):
            break
        time.sleep(0.02)
    busy_until = time.monotonic()
    control.write_text("")
    time.sleep(3)  # idle checks
    died = not _serves(served)
    if not died:
        load.post(served.port, "/flush_cache", {})
        load.warm_up(served.port)
    if struck_at is None:
        return Seen(False, died=died)
    told = [line for line in tail.lines[first:] if checker.says.search(line.text)]
    if not told:
        return Seen(True, died=died)
    return Seen(True, max(0.0, told[0].at - struck_at), _words(told[0].text), told[0].at > busy_until, died)


def _traffic(port: int) -> None:
    with suppress(OSError):  # the server may die under it
        load.run(port, REQUESTS, ends=REQUESTS)


def _serves(served: Served) -> bool:
    try:
        load.post(served.port, "/generate", {"text": "rest", "sampling_params": {"max_new_tokens": 1}}, timeout=20)
    except OSError:
        return False
    return served.process.poll() is None


def _words(line: str) -> str:
    """The message, short enough for a table."""
    for begin in ("AssertionError: ", "ValueError: ", "kvsan: ", "kv_canary violation: ", "] "):
        if begin in line:
            line = line.partition(begin)[2]
            break
    line = line.replace("|", "/").replace(" (report at exit)", "")
    return f"`{line[:117]}...`" if len(line) > 120 else f"`{line}`"
