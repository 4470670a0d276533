"""A real SGLang scheduler under kvsan: silent where nothing is wrong, and a name for every fault at its first hit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from . import load
from .faults import FAULTS, VARIABLE
from .server import Served, environment, serving

BARRIER = {"SGLANG_ENABLE_WAR_BARRIER": "1"}
NOT_FATAL = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "0"}


def frames(access: dict[str, Any] | None) -> list[str]:
    """The functions of an access's stack, innermost first."""
    return [frame["function"].rsplit(".", 1)[-1] for frame in (access or {}).get("stack", ())]


def known(finding: dict[str, Any]) -> bool:
    """Is this SGLang's own fault of sgl-project/sglang#38140: a publication gives back or remaps what a batch that is
    already launched captured?"""
    return (
        finding["kind"] == "stale_capture"
        and "checkpoint_into_tree" in frames(finding["present"])
        and {joined["kind"] for joined in finding.get("joined", ())} <= {"stale_capture"}
    )


def others(served: Served) -> list[str]:
    """What was found beside the known fault, in words."""
    return [
        f"{finding['kind']} {finding['object']} {frames(finding['present'])[:4]}"
        for finding in served.report["findings"]
        if not known(finding)
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "variables"),
    [
        ("page 1", ("--max-total-tokens", "2048"), {}),
        (
            "page 16, sessions and retraction",
            ("--max-total-tokens", "1024", "--page-size", "16", "--enable-streaming-session"),
            {"SGLANG_TEST_RETRACT": "1"},
        ),
        (
            "the core in Python, and retraction",
            ("--max-total-tokens", "1024"),
            {"SGLANG_TEST_RETRACT": "1", "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"},
        ),
        ("sessions", ("--max-total-tokens", "2048", "--enable-streaming-session"), {}),
        ("no cache", ("--max-total-tokens", "2048", "--disable-radix-cache"), {}),
        ("no overlap", ("--max-total-tokens", "700", "--page-size", "16", "--disable-overlap-schedule"), {}),
    ],
)
def test_clean(name: str, arguments: tuple[str, ...], variables: dict[str, str], model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, *arguments, **BARRIER, **variables) as served:
        assert load.run(served.port, 40) == (40, [])
        if "--enable-streaming-session" in arguments:
            assert load.sessions(served.port, 3) == 9
        time.sleep(1)
        assert "flushed" in str(load.post(served.port, "/flush_cache", {}))
        assert load.run(served.port, 12) == (12, [])
    assert others(served) == []
    assert served.report["failures"] == []
    assert {pool["pool"] for pool in served.report["totals"]} == {"rows", "kv"}
    if "SGLANG_TEST_RETRACT" in variables:
        assert "Testing retraction" in served.log


def test_a_publication_takes_what_the_next_batch_has_captured(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, "--max-total-tokens", "2048", **BARRIER) as served:
        assert load.run(served.port, 32) == (32, [])
    found = served.first("stale_capture")
    assert found["pool"] == "kv"
    assert found["slots"]
    assert found["earlier"]["agent"] == "fwd"
    assert re.fullmatch(r"(extend|mixed|decode) \d+", found["earlier"]["batch"])
    assert "checkpoint_into_tree" in frames(found["present"])


def test_without_the_barrier_the_missing_order_is_named(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, "--max-total-tokens", "2048") as served:
        assert load.run(served.port, 16) == (16, [])
    race = served.first("race")
    assert race["pool"] == "rows"
    assert (race["present"]["agent"], race["earlier"]["agent"]) == ("sched", "fwd")
    assert "nothing makes sched wait for fwd" in race["missing"]


@pytest.mark.parametrize(
    "fault",
    [*FAULTS, "leak:inside", "double_free:inside", "stale_prefix:inside", "lock_leak:inside", "row_leak:inside"],
)
def test_a_fault_is_named_at_its_first_hit(fault: str, model: Path, tmp_path: Path) -> None:
    name = fault.partition(":")[0]
    kind = FAULTS[name][3]
    variables = {**BARRIER, **NOT_FATAL, VARIABLE: fault}
    with serving(model, tmp_path, "--max-total-tokens", "500", **variables) as served:
        load.warm_up(served.port)  # and no two prompts are equal: SGLang's own fault would hide what follows from it
        answered, _ = load.run(served.port, 24, ends=24)
        if name != "lock_leak":  # which livelocks the server, sooner or later
            assert answered == 24
    lines = [line for line in served.log.splitlines() if line.startswith(("FAULT ", "kvsan: "))]
    hit = lines.index(f"FAULT {name} 1")
    word = kind.replace("_", " ").upper()
    second = next((at for at, line in enumerate(lines) if line == f"FAULT {name} 2"), len(lines))
    last = len(lines) if name == "lock_leak" else second  # only the end of its owner shows that a lock was forgotten
    told = [line for line in lines[hit:last] if line.startswith(f"kvsan: {word} on ")]
    assert told, lines
    found = served.first(kind)
    assert found["owner"] or found["holder"]  # at an alloc only who holds the slot is known: the call serves a batch
    assert found["present"]["stack"]
    if kind == "lock_leak":
        assert found["node"]
        assert "lock" in frames(found["earlier"])[0]
    else:
        assert found["pool"] in ("kv", "rows")
        assert found["slots"]


def test_as_a_plugin_without_a_wrapper(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, "--max-total-tokens", "2048", wrapped=False, KVSAN="1") as served:
        assert load.run(served.port, 24) == (24, [])
    assert "SUMMARY: kvsan: " in served.log
    assert "kvsan explain" in served.log


def test_off_means_off(tmp_path: Path) -> None:
    code = (
        "import sys, importlib.metadata as metadata; from sglang.srt.managers.scheduler import Scheduler; "
        "before = {name: value for name, value in vars(Scheduler).items()}; finders = list(sys.meta_path); "
        "[each.load()() for each in metadata.entry_points(group='sglang.srt.plugins', name='kvsan')]; "
        "print(dict(vars(Scheduler)) == before, finders == sys.meta_path, "
        "sorted(name for name in sys.modules if name.partition('.')[0] == 'kvsan'))"
    )
    variables = {name: value for name, value in environment(tmp_path).items() if not name.startswith("KVSAN")}
    got = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, check=True, env=variables, timeout=240
    )
    assert got.stdout.splitlines()[-1] == "True True ['kvsan', 'kvsan.plugin']"


def test_doctor_finds_every_probe(tmp_path: Path) -> None:
    got = subprocess.run(
        [sys.executable, "-m", "kvsan", "doctor", "sglang"],
        text=True, capture_output=True, env=environment(tmp_path), timeout=240,
    )  # fmt: skip
    assert got.returncode == 0, got.stdout + got.stderr
    assert os.linesep.join(got.stdout.splitlines()[-1:]).endswith("0 lost")
