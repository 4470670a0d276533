"""The full counts: random engine steps without a bug, every bug switch in 20 seeds, and the tracker beside the slow
judge.

python tests/soak.py [--steps 100000] [--seeds 20] [--traces 2000] [--write docs/soak.md]

Prints a table; with --write also puts it into the file, with the commit and the date. Exit status 1 if anything is
not as it should be.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvsan.hooks import scope
from kvsan.reference_engine.bugs import BUGS
from kvsan.reference_engine.engine import Engine
from kvsan.reference_engine.scenarios import scenario
from kvsan.reference_engine.workload import drive

from kvsan.sinks import Collector
from kvsan.traces import event_from_dict
from kvsan.tracker import Tracker

sys.path.insert(0, str(Path(__file__).resolve().parent))
from reference_engine.combinations import SESSIONS, features, random_case, wrong_answers
from reference_engine.exactness import consequence, faults

Collector.say = lambda self, line: None  # type: ignore[method-assign]  # the table says it


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    what: str
    count: str
    result: str
    good: bool


def correct_engine(steps: int, tell: Callable[[str], None]) -> Line:
    """Random engines without a bug until so many steps were made: no finding, and the right tokens."""
    done = requests = findings = wrong = seed = 0
    seen: set[frozenset[str]] = set()
    while done < steps:
        case = random_case(seed)
        with scope(level="full") as sanitizer:
            engine = Engine(case.config)
            answers = drive(engine, case.arrivals, flush_at=case.flush_at)
            for name in SESSIONS:
                engine.close_session(name)
        done += sanitizer.tracker.state.history.step
        requests += len(case.arrivals)
        seen.add(frozenset(features(case)))
        found = len(sanitizer.findings) + len(sanitizer.report().failures)
        lost = wrong_answers(case.config, case.arrivals, answers)
        if found or lost:
            print(f"seed {seed}: {found} findings, wrong: {lost}", file=sys.stderr, flush=True)
        findings += found
        wrong += len(lost)
        seed += 1
        tell(f"{done} of {steps} steps, {findings} findings, {wrong} wrong answers")
    return Line(
        "engine steps without a bug, random features",
        f"{done} ({requests} requests, {seed} engines, {len(seen)} combinations of features)",
        f"{findings} findings, {wrong} wrong answers",
        not findings and not wrong,
    )


def bug(name: str, seeds: int) -> Line:
    """The switch in so many seeds at each page size: its finding with owners and sites, nothing beside it, and its
    consequence."""
    exact = shown = 0
    others: set[str] = set()
    pages = BUGS[name].page_sizes
    effect = BUGS[name].effect
    for seed, page in itertools.product(range(seeds), pages):
        case = scenario(name, seed, page_size=page)
        with scope(level="full") as sanitizer:
            case.drive(Engine(case.config))
        wrong = faults(BUGS[name], sanitizer.findings)
        exact += not wrong
        others.update(wrong)
        biting = scenario(name, seed, page_size=page, biting=True)
        shown += consequence(biting) == effect.replace("exhaustion", "stall")
    runs = seeds * len(pages)
    result = f"{BUGS[name].finding} alone, with owners and sites, in {exact}; {effect} in {shown}"
    return Line(
        f"bug {name}",
        f"{seeds} seeds, pages of {' and '.join(map(str, pages))}",
        "; ".join([result, *sorted(others)]),
        exact == shown == runs,
    )


def two_judges(traces: int, tell: Callable[[str], None]) -> list[Line]:
    """Generated traces: the tracker's first finding is the slow judge's."""
    from oracle.generate import mutate, random_soup, random_trace
    from oracle.judge import judge

    makers = {
        "correct traces": lambda seed: random_trace(seed, 60),
        "mutated traces": lambda seed: mutate(random_trace(seed, 60), seed),
        "noise": lambda seed: random_soup(seed, 40),
    }
    lines = []
    for what, make in makers.items():
        differ = 0
        for seed in range(traces):
            trace = make(seed)
            tracker = Tracker()
            for index, event in enumerate(trace):
                tracker.take(event_from_dict(event, index))
            first = [(finding.kind, finding.at) for finding in tracker.findings[:1]]
            differ += first != [(verdict.kind, verdict.at) for verdict in judge(trace)[:1]]
            tell(f"{what}: {seed + 1} of {traces}, {differ} differ")
        lines.append(Line(f"tracker beside the slow judge, {what}", f"{traces} traces", f"{differ} differ", not differ))
    return lines


def main() -> int:
    """Runs everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--traces", type=int, default=2_000)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    started = time.monotonic()
    shown = 0.0

    def tell(text: str) -> None:
        nonlocal shown
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"[{shown - started:5.0f} s] {text}", file=sys.stderr, flush=True)

    lines = [correct_engine(options.steps, tell)]
    # rank_divergence takes two processes: tests/reference_engine/test_tensor_ranks.py shows it.
    lines += [bug(name, options.seeds) for name, each in BUGS.items() if each.finding != "rank_divergence"]
    lines += two_judges(options.traces, tell)
    table = "| what | count | result |\n| --- | --- | --- |\n"
    table += "".join(f"| {line.what} | {line.count} | {line.result} |\n" for line in lines)
    print(table)
    wrong = [line for line in lines if not line.good]
    print(f"{len(lines) - len(wrong)} of {len(lines)} lines as they should be, in {time.monotonic() - started:.0f} s")
    if options.write is not None:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        date = datetime.date.today().isoformat()
        command = f"python tests/soak.py --steps {options.steps} --seeds {options.seeds} --traces {options.traces}"
        full = parser.parse_args([])
        cut = (options.steps, options.seeds, options.traces) != (full.steps, full.seeds, full.traces)
        all_of_it = f"{full.steps:,} steps, {full.seeds} seeds and {full.traces:,} traces"
        note = f" (a cut: `make soak` takes {all_of_it})" if cut else ""
        options.write.write_text(
            f"# The last soak run\n\n`{command}`{note}, commit {commit}, {date}, "
            f"{len(lines) - len(wrong)} of {len(lines)} lines as they should be.\n\n{table}",
            encoding="utf-8",
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
