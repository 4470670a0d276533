"""The thread that answers `kvsan status`: what it must never do to the process that it is in."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import pytest
from kvsan.hooks import answers
from kvsan.hooks.answers import Answers
from kvsan.hooks.sanitizer import Sanitizer

from kvsan import asking


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A private folder, as a run's spool is."""
    path = tmp_path / "spool"
    path.mkdir(mode=0o700)
    return str(path)


def given(folder: str) -> list[dict[str, object]]:
    """The answers in the folder."""
    return [json.loads(path.read_text()) for path in Path(folder).glob(f"*{asking.ANSWER}")]


def soon(condition: object, seconds: float = 10.0) -> bool:
    """Does it come true in time?"""
    assert callable(condition)
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def threads() -> int:
    return sum(thread.name == "kvsan-answers" for thread in threading.enumerate())


def test_an_answer_keeps_nothing_of_the_engine_alive() -> None:
    """Engines switch the collector off, and their frames refer to tensors."""

    class Tensor:
        pass

    held, go, done = threading.Event(), threading.Event(), threading.Event()
    seen: list[weakref.ref[Tensor]] = []

    def forward() -> None:
        tensor = Tensor()
        seen.append(weakref.ref(tensor))
        held.set()
        go.wait(20)

    def engine() -> None:
        forward()
        done.set()

    thread = threading.Thread(target=engine, name="engine")
    thread.start()
    held.wait(20)
    gc.disable()
    try:
        stacks = {each.name: each.stack for each in answers._threads()}
        go.set()
        thread.join()
        del thread
        assert seen[0]() is None
    finally:
        gc.enable()
    assert [frame.function.rsplit(".")[-1] for frame in stacks["engine"]][-2:] == ["forward", "engine"]


def test_it_ends_and_begins_again(folder: str) -> None:
    before, answering = threads(), Answers(Sanitizer(), folder)
    assert threads() == before + 1
    answering.end()
    assert threads() == before
    answering.begin()
    asking.ask(folder)
    assert soon(lambda: given(folder))
    answering.end()
    assert threads() == before


def test_a_question_that_cannot_be_answered_leaves_nothing_and_is_not_tried_again(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def full(old: str, new: str) -> None:
        tried.append(new)
        raise OSError("no space left on device")

    answering = Answers(Sanitizer(), folder)
    asking.ask(folder)
    monkeypatch.setattr(os, "replace", full)
    assert soon(lambda: tried)
    time.sleep(3 * answers.LOOK_SECONDS)
    monkeypatch.undo()
    assert len(tried) == 1
    assert sorted(path.suffix for path in Path(folder).iterdir()) == ["", ".jsonl"]
    asking.ask(folder)
    assert soon(lambda: given(folder)), "the next question is answered"
    answering.end()


def test_what_fails_is_told_in_the_answer(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sanitizer = Sanitizer()
    monkeypatch.setattr(sanitizer, "holdings", lambda timeout: 1 / 0)
    monkeypatch.setattr(answers, "_threads", lambda: 1 / 0)
    answering = Answers(sanitizer, folder)
    asking.ask(folder)
    assert soon(lambda: given(folder))
    (answer,) = given(folder)
    assert (answer["error"], answer["threads"]) == ("ZeroDivisionError: division by zero", [])
    assert threads() >= 1
    answering.end()


def test_it_ends_at_once_though_an_event_is_in_the_making(folder: str) -> None:
    """A fork waits for its end."""
    sanitizer = Sanitizer()
    answering = Answers(sanitizer, folder)
    with sanitizer._lock:
        asking.ask(folder)
        time.sleep(2 * answers.LOOK_SECONDS)  # it waits for the lock now
        began = time.monotonic()
        answering.end()
        assert time.monotonic() - began < 0.5


@pytest.mark.parametrize("anew", [False, True])
def test_a_folder_that_is_gone_is_not_looked_at_any_more(folder: str, anew: bool) -> None:
    """In a shared folder somebody else may make one of the same name."""
    before, answering = threads(), Answers(Sanitizer(), folder)
    assert soon(lambda: list(Path(folder).glob("*.jsonl")))
    shutil.move(folder, f"{folder}.gone")
    if anew:
        Path(folder).mkdir(mode=0o700)
        (Path(folder) / asking.QUESTION).write_text("")
    assert soon(lambda: threads() == before)
    assert given(f"{folder}.gone") == []
    assert not anew or given(folder) == []
    answering.end()


FORKS = """
import os, sys, threading
from kvsan.hooks.answers import Answers
from kvsan.hooks.sanitizer import Sanitizer

answering = Answers(Sanitizer(), sys.argv[1])

def fork():
    for _ in range(25):
        child = os.fork()
        if not child:
            os._exit(sum(each.name == "kvsan-answers" for each in threading.enumerate()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

def now():
    return sum(thread.name == "kvsan-answers" for thread in threading.enumerate())

forks = [threading.Thread(target=fork) for _ in range(4)]
[thread.start() for thread in forks]
[thread.join() for thread in forks]
print(now(), answering.running)
answering.end()
print(now())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_threads_that_fork_at_once_leave_one_thread_that_answers(folder: str) -> None:
    got = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKS), folder], capture_output=True, text=True, timeout=60
    )
    assert (got.stdout, got.stderr) == ("1 True\n0\n", "")
