"""What a run with a bug switched on gives: its finding with owners and sites and nothing beside it, and what users
see."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from kvsan.reference_engine.bugs import Bug, Site
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.scenarios import Scenario

from kvsan.findings import Access, Finding

from .combinations import wrong_answers

STALLED = 300
"""Steps after which a workload that takes less without its bug has stalled."""


def faults(bug: Bug, findings: Sequence[Finding]) -> list[str]:
    """What is not as the registry says; empty if there is one finding, and it is the bug's."""
    if not findings:
        return ["nothing was found"]
    finding = findings[0]
    wrong = [f"also {other.kind} at event {other.at}" for other in findings[1:]]
    if (finding.kind, finding.pool) != (bug.finding, bug.pool):
        wrong.append(f"{finding.kind} in {finding.pool}, not {bug.finding} in {bug.pool}")
    wrong += _misplaced("committed", bug.site, finding.present, finding.owner)
    if bug.earlier is not None:
        earlier = finding.held[0].allocated if finding.held else finding.earlier
        wrong += _misplaced("earlier", bug.earlier, earlier, earlier.owner if earlier is not None else None)
    elif finding.earlier is not None:
        wrong.append(f"an earlier access, {finding.earlier.what}, where none is declared")
    return wrong


def _misplaced(which: str, site: Site, access: Access | None, owner: str | None) -> list[str]:
    if access is None:
        return [f"{which}: no access"]
    wrong = []
    if owner != site.owner and not (owner and site.owner and fnmatchcase(owner, site.owner)):
        wrong.append(f"{which} by {owner}, not {site.owner}")
    stack = [frame.function for frame in access.stack]
    rest = iter(stack)
    if stack[:1] != [site.functions[0]] or not all(function in rest for function in site.functions):
        wrong.append(f"{which} in {' < '.join(stack)}, not {' < '.join(site.functions)}")
    return wrong


def consequence(case: Scenario) -> str:
    """What users see of a scenario's run: "wrong tokens" (of a victim), "crash", "stall" or "latent"; "other tokens"
    if requests that are no victims get wrong ones."""
    engine = Engine(case.config)
    try:
        answers = case.drive(engine, STALLED)
    except IndexError:
        return "crash"
    except RuntimeError as error:
        if "still busy" not in str(error):
            raise
        return "stall"
    wrong = wrong_answers(case.config, case.arrivals, answers).keys()
    return "latent" if not wrong else "wrong tokens" if wrong & set(case.victims) else "other tokens"
