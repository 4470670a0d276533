"""`kvsan doctor` names what is lost, and why; and a probe that is gone later is a failure in the report."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kvsan.hooks.adapters import sglang
from kvsan.hooks.adapters.probes import Probe, install
from kvsan.hooks.adapters.sglang import batches
from kvsan.hooks.adapters.sglang.requests import Reading
from kvsan.hooks.adapters.sglang.watch import ROWS, Doing, Watch

from kvsan import Sanitizer
from kvsan.cli import main
from kvsan.commands import doctor


class Pool:
    """What an engine has."""

    def alloc(self, count: int) -> list[int]:
        return list(range(count))


def seen(watch: Watch, pool: Any, count: int) -> Reading:
    """A reader that tells nothing."""
    yield


def probe(name: str, **how: bool) -> Probe:
    return Probe(f"an_engine:Pool.{name}", "alloc", seen, f"what {name} hands out", **how)


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed engine with one class, whose `alloc` is put back."""
    module: Any = types.ModuleType("an_engine")
    module.Pool = Pool
    monkeypatch.setitem(sys.modules, "an_engine", module)
    monkeypatch.setattr(Pool, "alloc", Pool.alloc)


@pytest.mark.parametrize(
    ("probes", "status", "lines"),
    [
        ((probe("alloc"),), 0, ["ok       an_engine:Pool.alloc  [alloc]", "1 of 1 found their place; 0 lost"]),
        (
            (probe("alloc"), probe("gone")),
            1,
            [
                "NEEDED   an_engine:Pool.gone  [alloc]",
                "an_engine.Pool defines no gone; not seen: what gone hands out",
                "1 of 2 found their place; 1 lost",
            ],
        ),
        ((probe("gone", needed=False),), 1, ["lost     an_engine:Pool.gone", "0 of 1 found their place; 1 lost"]),
        ((probe("gone", older=True),), 0, ["older    an_engine:Pool.gone", "0 of 1 found their place; 0 lost"]),
    ],
)
def test_what_is_lost_is_named(
    probes: tuple[Probe, ...],
    status: int,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tables: Any = types.ModuleType("an_engines_tables")
    tables.table_for = lambda version: SimpleNamespace(probes=probes, since="1.0")
    tables.stream_probes = lambda device: ()
    tables.standing = lambda version: ""
    monkeypatch.setitem(sys.modules, "an_engines_tables", tables)
    monkeypatch.setattr(doctor, "TABLES", {"sglang": ("numpy", "an_engines_tables")})
    assert main(["doctor", "sglang"]) == status
    printed = capsys.readouterr().out
    for line in lines:
        assert line in printed


def replaced(watch: Watch) -> list[str]:
    """What the report says of probes that are not where they were put."""
    return [failure.error for failure in watch.san.report().failures]


def idle(watch: Watch) -> None:
    """The scheduler finds itself idle."""
    with watch.within(Doing("idle")):
        reader = batches.fully_idle(watch, None)
        next(reader)
        with pytest.raises(StopIteration):
            reader.send(True)


def test_a_probe_that_was_replaced_is_told_when_the_engine_is_idle() -> None:
    watch = Watch(Sanitizer())
    watch.rows = SimpleNamespace(free_slots=[1, 2, 3], req_to_token=np.zeros((4, 8)))
    watch.san.pool(ROWS, kind="row", size=4, reserved=[0])
    watch.found = install([probe("alloc")], watch)
    watch.blind = False
    idle(watch)
    assert replaced(watch) == []
    Pool.alloc = lambda self, count: []  # type: ignore[method-assign]
    watch.san.alloc(ROWS, [1], owner="a")
    watch.san.free(ROWS, [1], owner="a")
    idle(watch)
    assert replaced(watch) == ["an_engine:Pool.alloc was replaced"]


def test_a_probe_that_was_replaced_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a plugin of SGLang that comes after kvsan's."""
    watch = Watch(Sanitizer())
    rows = type("ReqToTokenPool", (), {"req_to_token": np.zeros((4, 8))})()
    allocator = type("TokenToKVPoolAllocator", (), {"page_size": 1})()
    monkeypatch.setattr(sglang, "_found", install([probe("alloc")], watch))
    monkeypatch.setattr(sglang, "_unfollowed", lambda watch: None)
    monkeypatch.setattr(sglang, "_streams_in_place", lambda watch, device: True)
    monkeypatch.setattr(sglang, "_can_read_slots", lambda watch, device: False)
    monkeypatch.setattr(Watch, "name_streams", lambda watch: None)
    Pool.alloc = lambda self, count: []  # type: ignore[method-assign]
    algorithm = SimpleNamespace(name="NONE", is_none=lambda: True)
    sglang._begin(
        watch,
        SimpleNamespace(
            req_to_token_pool=rows, token_to_kv_pool_allocator=allocator, tree_cache=None, device="cpu",
            spec_algorithm=algorithm,
        ),
    )  # fmt: skip
    assert replaced(watch) == ["an_engine:Pool.alloc was replaced"]
