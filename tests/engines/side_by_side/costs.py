"""What each checker costs on the scheduler's thread: servers that live at the same time get the same load in turns."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from ..sglang import load
from ..sglang.server import Served, wait_for
from .servers import CANARY, KVSAN, PLAIN, STRICT, Checker, serving

TOKENS = 2048
REQUESTS = 24


@dataclass(frozen=True)
class Spent:
    """One load's steps, and microseconds a step: the model's forward, and all else that the scheduler's thread did."""

    steps: int
    forward_us: float
    rest_us: float


def table(tiny: Path, folder: Path, rounds: int, tell: Callable[[str], None]) -> str:
    """A line for each server."""
    checkers = [PLAIN, STRICT, *(_at(level) for level in ("rows", "slots", "full"))]

    def start(checker: Checker) -> AbstractContextManager[Served]:
        tell(f"costs: starting a server with {checker.name}")
        return serving(checker, tiny, folder / f"costs of {checker.name}", TOKENS)

    spent: dict[str, list[Spent]] = {}
    with ExitStack() as living:
        servers = [(checker, living.enter_context(start(checker))) for checker in checkers]
        for number in range(rounds + 1):
            for checker, served in servers:
                one = _load(served)
                if number:  # the first load warms up
                    spent.setdefault(checker.name, []).append(one)
                    tell(f"  {checker.name}: {one.rest_us:.0f} + {one.forward_us:.0f} us in {one.steps} steps")
    with start(CANARY) as served:  # its kernels are interpreted here: alone, for it takes long
        _load(served)
        spent[CANARY.name] = [_load(served)]
    base_rest = median(each.rest_us for each in spent[PLAIN.name])
    base = base_rest + median(each.forward_us for each in spent[PLAIN.name])
    rows = [
        "Microseconds of CPU time on the scheduler's thread, for each step that launches a batch (median of "
        f"{rounds} loads of {REQUESTS} requests, at most 8 at once, pages of one slot). The model is a toy of two "
        "layers, whose forward runs on the same thread here; kv-canary's work is part of the forward, and Triton "
        "interprets its kernels here, which says nothing about a GPU; its server ran alone, for one load.",
        "",
        "| server | scheduler | more than without | forward | whole step |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, several in spent.items():
        rest, forward = median(each.rest_us for each in several), median(each.forward_us for each in several)
        rows.append(
            f"| {name} | {rest:.0f} | {rest - base_rest:+.0f} | {forward:.0f} | {(rest + forward) / base:.2f} times |"
        )
    return "\n".join(rows)


def _at(level: str) -> Checker:
    variables = {**KVSAN.variables, "KVSAN_OPTIONS": f"level={level}"}
    return replace(KVSAN, name=f"kvsan, level {level}", variables=variables)


def _load(served: Served) -> Spent:
    file = served.folder / "meter"
    before = _read(file)
    answered, errors = load.run(served.port, REQUESTS)
    assert (answered, errors) == (REQUESTS, [])
    assert wait_for(lambda: _read(file)["steps"] > before["steps"], 20), "the meter says nothing"
    time.sleep(0.5)
    after = _read(file)
    steps = int(after["steps"] - before["steps"])
    forward = (after["forward_s"] - before["forward_s"]) / steps * 1e6
    return Spent(steps, forward, (after["step_s"] - before["step_s"]) / steps * 1e6 - forward)


def _read(file: Path) -> dict[str, float]:
    return dict(json.loads(file.read_text())) if file.exists() else {"steps": 0, "step_s": 0.0, "forward_s": 0.0}
