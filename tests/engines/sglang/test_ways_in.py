"""The ways in: as SGLang's plugin without `kvsan run`; switched off; and what `kvsan doctor sglang` says."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from . import load
from .living import others
from .server import BARRIER, environment, serving, status


def test_as_a_plugin_without_a_wrapper(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path, "--max-total-tokens", "2048", wrapped=False, KVSAN="1", **BARRIER) as served:
        assert load.run(served.port, 24) == (24, [])
    assert "SUMMARY: kvsan: " in served.log
    assert "kvsan explain" in served.log


def test_rows_alone(model: Path, tmp_path: Path) -> None:
    """As on a device, where slots are not read: nothing is wrong with rows, and the report says how many were seen."""
    with serving(model, tmp_path, "--max-total-tokens", "2048", options=("--level", "rows"), **BARRIER) as served:
        assert load.run(served.port, 24) == (24, [])
    assert (served.findings, served.report["failures"]) == ([], [])
    assert served.report["events"] > 1000


def test_who_holds_what_in_a_living_server(model: Path, tmp_path: Path) -> None:
    """`kvsan status` names the requests that run, and nobody once they are answered; the server serves on."""
    with serving(model, tmp_path, "--max-total-tokens", "2048", **BARRIER) as served:
        loads = threading.Thread(target=load.run, args=(served.port, 24), daemon=True)
        loads.start()
        asked = [status(served)]
        while loads.is_alive():
            asked.append(status(served))
        idle = status(served, "--stacks")
        assert load.run(served.port, 8) == (8, [])
    busy = [each for each in asked if each["holdings"]["owners"]]
    assert busy, "nobody was seen to hold anything under load"
    for each in busy:
        assert (each["level"], each["watching"], each["error"]) == ("slots", True, "")
        rows, kv = (pool_named(each, name) for name in ("rows", "kv"))
        owners = each["holdings"]["owners"]
        assert sum(owner["slots"].get("rows", 0) for owner in owners) + rows["unknown"] == rows["owned"] <= 8
        assert sum(owner["slots"].get("kv", 0) for owner in owners) + kv["unknown"] == kv["owned"]
    assert any(owner["slots"].get("kv") and owner["locked"] for each in busy for owner in each["holdings"]["owners"])
    assert idle["name"].startswith("sglang::scheduler")
    assert idle["holdings"]["owners"] == []
    assert (pool_named(idle, "rows")["owned"], pool_named(idle, "kv")["owned"]) == (0, 0)
    assert pool_named(idle, "kv")["cached"] > 0
    (scheduler,) = (thread for thread in idle["threads"] if thread["name"] == "MainThread")
    assert any("event_loop_overlap" in frame["function"] for frame in scheduler["stack"])
    assert (served.report["failures"], others(served)) == ([], [])


def pool_named(process: dict[str, Any], name: str) -> dict[str, Any]:
    """The pool of that name in an answer."""
    (pool,) = (each for each in process["holdings"]["pools"] if each["pool"] == name)
    return dict(pool)


def test_without_the_barrier(model: Path, tmp_path: Path) -> None:
    """On a CPU SGLang asks for it only if it is told to: what it does not ask for is missing, and nothing else."""
    with serving(model, tmp_path, "--max-total-tokens", "2048", options=("--level", "rows")) as served:
        assert load.run(served.port, 24) == (24, [])
    assert {(each.kind, each.pool) for each in served.findings} == {("race", "rows")}
    for race in served.findings:
        assert (race.present.agent, race.earlier.agent) == ("sched", "fwd")
        assert "nothing makes sched wait for fwd" in race.missing
    assert (served.status, served.report["failures"]) == (88, [])


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
