"""`kvsan status`: a living engine is asked who holds what, and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from .wrapped import KVSAN, Outcome, clean_environment, outcome, program, start

ENGINE = """
    import threading, time
    from kvsan.hooks import current

    def engine():
        san = current()
        san.pool("rows", kind="row", size=4, reserved=[0])
        san.pool("kv", kind="kv", size=100, reserved=[0])
        san.alloc("kv", range(1, 31), owner="r1")
        san.alloc("rows", [1], owner="r1")
        san.alloc("kv", [31, 32], owner="r2")
        san.req_finish(owner="r2")
        san.alloc("kv", [33, 34, 35])
        san.alloc("kv", [40, 41], owner="evil\\x1b[31m")
        san.alloc("kv", range(50, 60), owner="r3")
        san.insert("kv", range(50, 60), owner="r3", node="n")
        san.lock(node="n", owner="r4")
        return san
"""
WAITS = """
    san = engine()
    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    san.free("kv", [33, 34, 35])
    for owner in ("r1", "r2", "evil\\x1b[31m", "r4"):
        san.req_end(owner=owner)
"""
TEXT = """\
 level slots · 11 events, the last AGE ago

 pool  size  reserved  free  pending  owned  cached
 rows     4         1     2        0      1       0
 kv     100         1    52        0     37      10

 owner         rows  kv  locked nodes  state
 r2               -   2             -  finished
 r1               1  30             -  live
 evil\\x1b[31m     -   2             -  live
 r4               -   -             1  live
 nobody known     -   3             -

"""


class Living:
    """A program under the wrapper that waits for a line."""

    def __init__(self, folder: Path, wrapper: subprocess.Popen[str], pid: int) -> None:
        self.folder, self.wrapper, self.pid = folder, wrapper, pid

    def end(self) -> Outcome:
        """Lets it go on to its end."""
        return outcome(self.folder, self.wrapper)


def ask(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What `kvsan status` says of the runs of this folder."""
    return subprocess.run(
        [*KVSAN, "status", *arguments], text=True, capture_output=True, timeout=60,
        env=clean_environment(TMPDIR=str(folder)),
    )  # fmt: skip


@contextmanager
def living(folder: Path, text: str) -> Iterator[Living]:
    """The program, once it says that it is ready; ended at the latest here."""
    wrapper = start(
        folder, [sys.executable, program(folder, dedent(ENGINE) + dedent(text))], stdin=subprocess.PIPE,
        env=clean_environment(TMPDIR=str(folder)),
    )  # fmt: skip
    try:
        assert wrapper.stdout is not None
        word, pid = wrapper.stdout.readline().split()
        assert word == "ready"
        yield Living(folder, wrapper, int(pid))
    finally:
        if wrapper.poll() is None:
            wrapper.kill()
            wrapper.communicate(timeout=20)
        elif wrapper.stdin is not None:
            wrapper.stdin.close()  # the program ends, if it is still there


def test_who_holds_what(tmp_path: Path) -> None:
    with living(tmp_path, WAITS) as program:
        said = ask(tmp_path)
        ended = program.end()
    title, _, rest = said.stdout.partition("\n")
    assert title.startswith(f"━━━ kvsan: pid {program.pid} ")
    assert len(title) == 100
    age = rest.partition("the last ")[2].partition(" ago")[0]
    assert rest.replace(age, "AGE", 1) == TEXT
    assert (said.stderr, said.returncode) == ("", 0)
    assert {finding["kind"] for finding in ended.report["findings"]} == {"leak", "lock_leak"}


@pytest.mark.parametrize("who", ["engine", "wrapper"])
def test_one_run_by_any_of_its_processes(who: str, tmp_path: Path) -> None:
    with living(tmp_path, WAITS) as program:
        said = ask(tmp_path, str(program.pid if who == "engine" else program.wrapper.pid), "--format", "json")
        program.end()
    got = json.loads(said.stdout)
    (process,) = got["processes"]
    assert (process["pid"], process["level"], process["watching"], got["silent"]) == (program.pid, "slots", True, [])
    pools = {pool["pool"]: pool for pool in process["holdings"]["pools"]}
    assert (pools["kv"]["free"], pools["kv"]["unknown"], pools["rows"]["owned"]) == (52, 3, 1)
    owners = {owner["name"]: owner for owner in process["holdings"]["owners"]}
    assert owners["r1"] == {"name": "r1", "state": "live", "slots": {"kv": 30, "rows": 1}, "locked": 0}
    assert owners["r4"]["locked"] == 1


def test_each_answer_is_of_its_own_time(tmp_path: Path) -> None:
    with living(
        tmp_path,
        """
        san = engine()
        print("ready", os.getpid(), flush=True)
        for line in sys.stdin:
            san.alloc("kv", [70], owner="late")
            print("done", flush=True)
        """,
    ) as program:
        assert program.wrapper.stdin is not None
        assert program.wrapper.stdout is not None
        assert "late" not in ask(tmp_path).stdout
        program.wrapper.stdin.write("\n")
        program.wrapper.stdin.flush()
        assert program.wrapper.stdout.readline() == "done\n"
        assert "late" in ask(tmp_path).stdout


def test_where_the_engine_is(tmp_path: Path) -> None:
    text = """
    def stuck():
        print("ready", os.getpid(), flush=True)
        sys.stdin.readline()

    def other():
        while True:
            time.sleep(0.1)

    engine()
    threading.Thread(target=other, name="helper", daemon=True).start()
    stuck()
    """
    with living(tmp_path, text):
        plain, said = ask(tmp_path), ask(tmp_path, "--stacks")
    assert "stuck" not in plain.stdout
    head, _, stacks = said.stdout.partition(" thread MainThread\n")
    assert "r1" in head
    assert [line.split()[-1] for line in stacks.partition(" thread helper")[0].splitlines() if line] == [
        "stuck",
        "<module>",
    ]
    assert stacks.partition(" thread helper")[2].split()[1] == "other"
    assert "thread kvsan" not in said.stdout


def test_a_process_that_cannot_answer(tmp_path: Path) -> None:
    with living(tmp_path, WAITS) as program:
        os.kill(program.pid, signal.SIGSTOP)
        try:
            said = ask(tmp_path, "--wait", "0.5")
        finally:
            os.kill(program.pid, signal.SIGCONT)
        again = ask(tmp_path)
        ended = program.end()
    assert said.stdout == ""
    assert said.stderr.startswith(f"kvsan: pid {program.pid} ({sys.executable} ")
    assert "did not answer within 0.5 s" in said.stderr
    assert said.returncode == 1
    assert (again.returncode, "r1" in again.stdout) == (0, True)
    assert ended.report["failures"] == []


def test_an_event_that_does_not_end(tmp_path: Path) -> None:
    """The tracker's lock is held by a thread that does not come back: the answer says that, and where."""
    text = """
    def inside(san):
        with san._lock:
            print("ready", os.getpid(), flush=True)
            sys.stdin.readline()

    inside(engine())
    """
    with living(tmp_path, text):
        said = ask(tmp_path, "--stacks")
    assert "TimeoutError: an event has been in the making for 2 s" in said.stdout
    assert "inside" in said.stdout
    assert "nobody known" not in said.stdout
    assert said.returncode == 0


def test_forks(tmp_path: Path) -> None:
    """A parent answers after a fork as before; a child for itself, once it has told something of its own."""
    text = """
    san = engine()
    go, came = os.pipe(), os.pipe()
    if not (child := os.fork()):
        os.read(go[0], 1)
        san.alloc("kv", [90], owner="child's")
        os.write(came[1], b".")
        time.sleep(60)
    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    os.write(go[1], b".")
    os.read(came[0], 1)
    print("told", flush=True)
    sys.stdin.readline()
    os.kill(child, 15)
    """
    with living(tmp_path, text) as program:
        assert program.wrapper.stdin is not None
        assert program.wrapper.stdout is not None
        before = json.loads(ask(tmp_path, "--format", "json").stdout)
        program.wrapper.stdin.write("\n")
        program.wrapper.stdin.flush()
        assert program.wrapper.stdout.readline() == "told\n"
        until = time.monotonic() + 20
        after: dict[str, Any] = {"processes": []}
        while len(after["processes"]) < 2 and time.monotonic() < until:  # the child's thread has to see it first
            after = json.loads(ask(tmp_path, "--format", "json").stdout)
        program.end()
    assert ([each["pid"] for each in before["processes"]], before["silent"]) == ([program.pid], [])
    owners = {each["pid"]: {owner["name"] for owner in each["holdings"]["owners"]} for each in after["processes"]}
    assert "child's" not in owners.pop(program.pid)
    (of_child,) = owners.values()
    assert {"child's", "r1"} <= of_child


def test_nobody_to_ask(tmp_path: Path) -> None:
    said = ask(tmp_path)
    assert said.stderr == (
        f"kvsan: error: no kvsan run of this user is going on (looked for {tmp_path}/kvsan-*); "
        "start a server with kvsan run -- COMMAND\n"
    )
    assert (said.stdout, said.returncode) == ("", 2)


def test_who_stands_above_a_run_does_not_belong_to_it(tmp_path: Path) -> None:
    with living(tmp_path, WAITS):
        said = ask(tmp_path, str(os.getpid()))
    assert said.stderr.startswith(f"kvsan: error: pid {os.getpid()} belongs to no kvsan run")
    assert said.returncode == 2


def test_who_stands_between(tmp_path: Path) -> None:
    """A shell that started the engine."""
    file = program(tmp_path, dedent(ENGINE) + dedent(WAITS))
    wrapper = start(
        tmp_path, ["sh", "-c", f"echo $$; {sys.executable} {file}; true"], stdin=subprocess.PIPE,
        env=clean_environment(TMPDIR=str(tmp_path)),
    )  # fmt: skip
    assert wrapper.stdout is not None
    shell = wrapper.stdout.readline().strip()
    assert wrapper.stdout.readline().startswith("ready")
    said = ask(tmp_path, shell)
    outcome(tmp_path, wrapper)
    assert (said.returncode, "r1" in said.stdout) == (0, True)


def test_an_engine_whose_wrapper_is_gone_still_answers(tmp_path: Path) -> None:
    with living(tmp_path, WAITS) as program:
        program.wrapper.kill()
        program.wrapper.wait(20)
        said = ask(tmp_path, str(program.pid))
        every = ask(tmp_path)
    assert (said.returncode, "r1" in said.stdout) == (0, True)
    assert "r1" in every.stdout


def test_a_run_without_python(tmp_path: Path) -> None:
    wrapper = start(tmp_path, ["sh", "-c", "echo ready; read line"], stdin=subprocess.PIPE,
        env=clean_environment(TMPDIR=str(tmp_path)),
    )  # fmt: skip
    assert wrapper.stdout is not None
    assert wrapper.stdout.readline() == "ready\n"
    said = [ask(tmp_path), ask(tmp_path, str(wrapper.pid))]
    outcome(tmp_path, wrapper)
    for each in said:
        assert each.stderr == f"kvsan: error: no engine was seen so far in the kvsan run with pid {wrapper.pid}\n"
        assert each.returncode == 2


def test_no_engine_yet(tmp_path: Path) -> None:
    with living(tmp_path, 'print("ready", os.getpid(), flush=True); sys.stdin.readline()') as program:
        said = ask(tmp_path)
    assert said.stderr.startswith(f"kvsan: error: no engine was seen so far in pid {program.pid} (")
    assert said.returncode == 2


def test_answers_keep_no_process_alive_and_leave_nothing(tmp_path: Path) -> None:
    with living(tmp_path, WAITS) as program:
        ask(tmp_path)
        began = time.monotonic()
        ended = program.end()
        assert time.monotonic() - began < 20
    assert ended.status == 88
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("kvsan-")] == []
    assert ask(tmp_path).returncode == 2
