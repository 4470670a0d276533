"""SGLang's own checks beside kvsan, in one run: the same faults in the same server under the same load; what each
finds, when, what it says, and what it costs on the scheduler's thread.

.venv-sglang/bin/python -m tests.engines.side_by_side [--write docs/side-by-side.md] [--rounds 5]
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ..sglang import model
from . import costs, detection

ROOT = Path(__file__).resolve().parents[3]


def main() -> int:
    """Prints the tables, and writes them into a file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines.side_by_side", description=__doc__)
    parser.add_argument("--write", type=Path, help="the file that gets the tables")
    parser.add_argument("--rounds", type=int, default=5, help="loads that each server gets for the costs")
    arguments = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tiny = model.write(Path(folder) / "model")
        found = detection.table(tiny, Path(folder), tell)
        spent = costs.table(tiny, Path(folder), arguments.rounds, tell)
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    minutes = (time.monotonic() - begin) / 60
    text = (
        "# kvsan beside SGLang's own checks\n\n"
        f"`make side-by-side` (SGLang 0.5.23 on a CPU, {arguments.rounds} rounds, {minutes:.0f} minutes), "
        f"commit {commit}, {datetime.date.today().isoformat()}.\n\n"
        f"## What each finds\n\n{found}\n\n## What each costs\n\n{spent}\n"
    )
    print(text)
    if arguments.write is not None:
        arguments.write.write_text(text, encoding="utf-8")
    return 0


def tell(line: str) -> None:
    """What is being done, for who waits."""
    print(f"{datetime.datetime.now():%H:%M:%S} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
