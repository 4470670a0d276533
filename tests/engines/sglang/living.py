"""A living server under kvsan: what was found so far, faults that are armed in it, and its way back to health."""

from __future__ import annotations

import json
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsan.findings import Access, Finding
from kvsan.serialize import finding_from_dict

from . import load
from .faults import VARIABLE
from .release import PUBLISHES
from .server import BARRIER, NOT_FATAL, Served, serving, wait_for

SECONDS = 60.0
LATE = {"KVSAN_TEST_LATE": "20"}
"""Slot ids come so many milliseconds later, as from a device (`slow_device`): several steps of these servers."""
LATE_STEPS = 40
"""How many steps of the scheduler kvsan may then be behind."""
WHEN = {"at once": {}, "late": LATE}
"""When slot ids can be read, on a CPU and on a device, and the variables of a server where it is so."""


def frames(access: Access | None) -> list[str]:
    """The functions of an access's stack, innermost first."""
    return [frame.function.rsplit(".", 1)[-1] for frame in access.stack] if access is not None else []


def known(finding: Finding) -> bool:
    """Is this SGLang's own fault of sgl-project/sglang#38140: a publication gives back or remaps what a batch that is
    already launched captured?"""
    return finding.kind == "stale_capture" and bool(PUBLISHES & {*frames(finding.present)})


def others(served: Served) -> list[str]:
    """What a stopped server's report has beside SGLang's own fault, in words."""
    return [f"{each.kind} {each.object} {frames(each.present)[:4]}" for each in served.findings if not known(each)]


def many(port: int) -> None:
    """More requests than fit at once, some aborted, no two prompts equal: SGLang's own fault concerns few slots."""
    load.warm_up(port)
    assert load.run(port, 18, ends=18, tokens=8) == (18, [])


def too_many(port: int) -> None:
    """The same with longer answers, so that the cache has to evict."""
    load.warm_up(port)
    assert load.run(port, 24, ends=24) == (24, [])


def apart(port: int) -> None:
    """Prompts of several chunks each, which the cache does not know, at once; more than fit."""
    assert load.run(port, 12, tokens=8, apart=True) == (12, [])


def one(port: int) -> None:
    """One request alone."""
    load.warm_up(port)
    assert load.run(port, 1) == (1, [])


def few(port: int) -> None:
    """Three requests at once."""
    assert load.run(port, 3, ends=24) == (3, [])


@dataclass(frozen=True)
class Struck:
    """What a fault did: `event` is the index of kvsan's next event then, `step` the scheduler's iteration (where kvsan
    may be behind, the last that it may be), `facts` what the fault says of it; `found` are the findings since, without
    SGLang's own, in the order of their events."""

    event: int
    step: int
    facts: dict[str, Any]
    found: tuple[Finding, ...]


class Living:
    """What a fault did: `event` is the index of kvsan's next event then, `step` the scheduler's iteration (where kvsan
    may be behind, the last that it may be), `facts` what the fault says of it; `found` are the findings since, without
    SGLang's own, in the order of their events."""

    def __init__(self, served: Served, control: Path, behind: int = 0) -> None:
        self.served = served
        self.behind = behind
        self.port = served.port
        self._control = control

    def findings(self) -> list[Finding]:
        """All that was found so far, one like another too, as they came."""
        return [finding_from_dict(line) for line in self._read("found")]

    def strike(self, fault: str, traffic: Callable[[int], object]) -> Struck:
        """Arms a fault in an idle server with an empty cache, sends traffic, in which it strikes, and waits until the
        scheduler is idle again."""
        assert wait_for(self._flush, SECONDS), "the server does not come to rest"
        hits, told = len(self.hits()), len(self._read("found"))
        self.arm(fault)
        try:
            traffic(self.port)
            assert wait_for(lambda: len(self.hits()) > hits, 5), f"{fault} had no chance to strike"
        finally:
            self.arm("")
        self.rest()
        facts = self.hits()[hits]
        found = [each for each in self.findings()[told:] if not known(each)]
        return Struck(facts.pop("event"), facts.pop("step") + self.behind, facts, tuple(found))

    def arm(self, fault: str) -> None:
        """Puts a new control file in the place of the old one, so that the scheduler reads a whole one."""
        new = self._control.with_suffix(".new")
        new.write_text(fault, encoding="utf-8")
        new.replace(self._control)

    def hits(self) -> list[dict[str, Any]]:
        """What faults did so far: `event`, `step`, and what each says of itself."""
        return self._read("hits")

    def rest(self) -> None:
        """Waits until the scheduler is idle and kvsan has told all that it found."""
        time.sleep(0.3)  # the scheduler's own idle check comes first
        assert wait_for(self._flush, SECONDS), "the server does not come to rest"
        answer = load.post(self.port, "/generate", {"text": "rest", "sampling_params": {"max_new_tokens": 1}})
        assert answer["meta_info"]["completion_tokens"] == 1

    def nothing_is_wrong(self) -> None:
        """Asserts that kvsan has found nothing so far but SGLang's own fault, and SGLang's check at idle nothing."""
        assert [each for each in self.findings() if not known(each)] == []
        assert "memory leak detected" not in self.served.log

    def serves_cleanly(self, traffic: Callable[[int], object] = many) -> None:
        """Asserts that requests are served and nothing is found but SGLang's own fault."""
        told = len(self.findings())
        traffic(self.port)
        self.rest()
        assert [each for each in self.findings()[told:] if not known(each)] == []

    def reports_what_was_told(self) -> None:
        """Stops the server; asserts that its report has every kind of finding at every pair of sites, and no failure of
        kvsan itself."""
        told = {(finding.kind, finding.token) for finding in self.findings()}
        self.served.stop()
        assert {(finding["kind"], finding["token"]) for finding in self.served.report["findings"]} == told
        assert self.served.report["failures"] == []
        assert any("came from the device" in note for note in self.served.report["notes"]) is (self.behind > 0)
        assert self.served.status == (88 if told else 0)

    def _flush(self) -> bool:
        try:
            return "flushed" in str(load.post(self.port, "/flush_cache", {}))
        except urllib.error.HTTPError:  # something still runs
            return False

    def _read(self, what: str) -> list[dict[str, Any]]:
        file = Path(f"{self._control}.{what}")
        complete = file.read_text(encoding="utf-8").rpartition("\n")[0] if file.exists() else ""
        return [json.loads(line) for line in complete.splitlines()]


@dataclass(frozen=True)
class Case:
    """A fault, and the finding that must name it.

    `frame` is a function of the engine (or of the fault) that must stand in the finding's stack; `steps` how many
    iterations of the scheduler later it may come at most; `traffic` is what gives the fault its chance.
    """

    fault: str
    kind: str
    frame: str
    steps: int = 0
    traffic: Callable[[int], object] = many

    def __str__(self) -> str:
        return self.fault


HARMLESS = ("mixed", "abort_chunked", "abort_queued", "abort_running")
"""What is armed like a fault and is none, so that a test knows that it happened."""


def names(struck: Struck, case: Case, page: int = 1) -> Finding:
    """Asserts that the first finding since the fault is the one that it must give: in time, of that kind, at those
    slots (with pages larger than one: those pages), row or node, with the owner and the engine's frame."""
    assert struck.found, "nothing was found"
    first, facts = struck.found[0], struck.facts
    said = f"{case.fault} {facts} at {struck.event}, step {struck.step}: {first}"
    assert first.kind == case.kind, said
    assert first.present is not None
    assert first.present.step is not None
    assert struck.event <= first.at
    assert first.present.step <= struck.step + case.steps, said
    assert case.frame in frames(first.present), said
    if "slots" in facts:
        assert first.pool == "kv", said
        assert {slot // page for slot in first.slots} == {slot // page for slot in facts["slots"]}, said
    if "row" in facts:
        assert first.pool == "rows", said
        assert first.slots == (facts["row"],), said
    if "node" in facts:
        assert first.node == facts["node"], said
    if facts.get("owner"):
        assert facts["owner"] in (first.owner, first.holder, first.earlier.owner if first.earlier else None), said
    return first


def comes_from(finding: Finding) -> set[str]:
    """The functions that stand in the stacks of what a finding says of its slot's or lock's past."""
    past = [*finding.provenance, *(held.allocated for held in finding.held), finding.earlier]
    return {frame for access in past for frame in frames(access)}


@contextmanager
def living(
    model: Path, folder: Path, *arguments: str, options: tuple[str, ...] = (), **variables: str
) -> Iterator[Living]:
    """A server under `kvsan run` with these options, whose findings can be read while it lives."""
    control = folder / "fault"
    control.write_text("")
    variables = {VARIABLE: str(control), **BARRIER, **NOT_FATAL, **variables}
    with serving(model, folder, *arguments, options=options, **variables) as served:
        yield Living(served, control, LATE_STEPS if variables.keys() >= LATE.keys() else 0)
