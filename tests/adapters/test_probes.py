"""Probes resolve, wrap once, keep what they wrap, and never let a failure of their own out."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from kvsan.hooks.adapters.probes import Probe, install, missing, resolve

from kvsan.errors import FindingRaised
from kvsan.findings import Finding


class Watch:
    """Remembers what readers told."""

    def __init__(self) -> None:
        self.blind = False
        self.seen: list[Any] = []
        self.failures: list[str] = []

    def failed(self, where: str, error: Exception) -> None:
        self.blind = True
        self.failures.append(f"{where}: {error}")


def reader(watch: Watch, pool: Any, count: int) -> Generator[None, Any, None]:
    """Tells the argument and the result."""
    watch.seen.append(("before", count))
    try:
        result = yield
        watch.seen.append(("after", result))
    finally:
        watch.seen.append("over")


ENGINE = """
class Pool:
    def alloc(self, count: int) -> list[int]:
        "Hands out."
        if count < 0:
            raise ValueError(count)
        return list(range(count))
    @staticmethod
    def check(count):
        return count
class Child(Pool):
    pass
def write(pool, count):
    return -count
"""


@pytest.fixture
def engine() -> Iterator[types.ModuleType]:
    module = types.ModuleType("an_engine")
    exec(ENGINE, module.__dict__)
    user = types.ModuleType("an_engine_user")
    user.write_it = module.write  # type: ignore[attr-defined]
    sys.modules.update({"an_engine": module, "an_engine_user": user})
    yield module
    del sys.modules["an_engine"], sys.modules["an_engine_user"]


def probe(where: str, read: Any = reader) -> Probe:
    return Probe(f"an_engine:{where}", "alloc", read, "everything")


def test_a_method_is_wrapped_once_and_keeps_its_face(engine: Any) -> None:
    watch = Watch()
    before = inspect.signature(engine.Pool.alloc)
    for _ in range(2):
        found = install([probe("Pool.alloc")], watch)
    assert inspect.signature(engine.Pool.alloc) == before
    assert engine.Pool.alloc.__doc__ == "Hands out."
    assert engine.Child().alloc(2) == [0, 1]
    assert watch.seen == [("before", 2), ("after", [0, 1]), "over"]
    assert not missing(found)


def test_aliases_of_a_function_are_wrapped_too(engine: Any) -> None:
    watch = Watch()
    install([probe("write")], watch)
    assert sys.modules["an_engine_user"].write_it(None, 3) == -3  # type: ignore[attr-defined]
    assert watch.seen[:2] == [("before", 3), ("after", -3)]


def test_a_static_method_stays_one(engine: Any) -> None:
    watch = Watch()

    def read(watch: Watch, count: int) -> Generator[None, Any, None]:
        watch.seen.append((yield))

    install([probe("Pool.check", read)], watch)
    assert (engine.Pool.check(4), engine.Pool().check(5), watch.seen) == (4, 5, [4, 5])


def test_a_call_that_raises_ends_the_reader(engine: Any) -> None:
    watch = Watch()
    install([probe("Pool.alloc")], watch)
    with pytest.raises(ValueError, match="-1"):
        engine.Pool().alloc(-1)
    assert watch.seen == [("before", -1), "over"]
    assert not watch.blind


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_reader_that_fails_ends_the_watch_and_not_the_engine(engine: Any, when: str) -> None:
    watch = Watch()

    def read(watch: Watch, pool: Any, count: int) -> Generator[None, Any, None]:
        if when == "before":
            raise RuntimeError("broken")
        yield
        raise RuntimeError("broken")

    install([probe("Pool.alloc", read)], watch)
    assert engine.Pool().alloc(1) == [0]
    assert watch.failures == ["an_engine:Pool.alloc: broken"]
    assert engine.Pool().alloc(1) == [0]
    assert len(watch.failures) == 1


def test_a_raised_finding_gets_out(engine: Any) -> None:
    def read(watch: Watch, pool: Any, count: int) -> Generator[None, Any, None]:
        yield
        raise FindingRaised("found", Finding("leak", 0, "kv:1"))

    install([probe("Pool.alloc", read)], Watch())
    with pytest.raises(FindingRaised):
        engine.Pool().alloc(1)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("Pool.gone", "an_engine.Pool defines no gone"),
        ("Gone.alloc", "an_engine has no Gone"),
        ("Child.alloc", "an_engine.Child defines no alloc"),
    ],
)
def test_what_does_not_resolve_says_why(engine: Any, where: str, error: str) -> None:
    found = resolve(probe(where))
    assert (found.found, found.error) == (False, error)


def test_a_missing_module_says_why() -> None:
    assert "no_such_engine cannot be imported" in resolve(Probe("no_such_engine:a", "", reader, "")).error


def test_a_replaced_probe_is_noticed_and_a_wrapped_one_is_there(engine: Any) -> None:
    import functools

    found = install([probe("Pool.alloc"), probe("write")], Watch())
    inner = engine.Pool.alloc
    engine.Pool.alloc = functools.wraps(inner)(lambda *arguments: inner(*arguments))
    assert not missing(found)
    engine.Pool.alloc = lambda self, count: []
    assert [each.probe.where for each in missing(found)] == ["an_engine:Pool.alloc"]


def test_without_the_variable_the_plugin_loads_and_wraps_nothing() -> None:
    code = (
        "import sys; from kvsan.plugin import sglang; finders = list(sys.meta_path); sglang(); "
        "print(sorted(name for name in sys.modules if name.startswith(('kvsan', 'numpy', 'pluggy'))), "
        "finders == sys.meta_path)"
    )
    import os

    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVSAN")}
    got = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True, env=environment)
    assert got.stdout == "['kvsan', 'kvsan.plugin'] True\n"


@pytest.mark.parametrize("why", ["fails", "gives up"])
def test_a_call_in_which_the_watch_ended_is_told_no_further(engine: Any, why: str) -> None:
    """What happened in it from there on was not seen: its end would be judged by a shadow that is wrong."""
    watch = Watch()

    def inner(watch: Watch, count: int) -> Generator[None, Any, None]:
        yield
        watch.blind = True
        if why == "fails":
            raise RuntimeError("broken")

    engine.Pool.alloc = lambda pool, count: list(range(engine.Pool.check(count)))
    install([probe("Pool.alloc"), probe("Pool.check", inner)], watch)
    assert engine.Pool().alloc(2) == [0, 1]
    assert watch.seen == [("before", 2), "over"]
