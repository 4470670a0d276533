"""Writes the figures of the documents anew: every block between `<!-- run: COMMAND -->` and `<!-- end -->` becomes
what the command prints.

python docs/regenerate.py [--check] [FILE ...]     default: README.md and docs/*.md

With --check nothing is written, and the exit status is 1 if a document has a block that no command made. Commands run
in the project's folder with `.venv/bin` first in PATH. What a machine's speed decides differs from run to run, so
--check does not compare the text.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"<!-- run: (?P<command>.+?) -->\n```text\n(?P<text>.*?)```\n<!-- end -->", re.DOTALL)
SECONDS = 900


def main() -> int:
    """Runs the commands of every block."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files", nargs="*", type=Path, default=[ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a block is empty")
    options = parser.parse_args()
    empty = 0
    for file in options.files:
        text = file.read_text(encoding="utf-8")
        if options.check:
            empty += sum(not block["text"].strip() for block in BLOCK.finditer(text))
            continue
        renewed = BLOCK.sub(renew, text)
        if renewed != text:
            file.write_text(renewed, encoding="utf-8")
            print(f"{file}: renewed")
    return 1 if empty else 0


def renew(block: re.Match[str]) -> str:
    """The block with what its command prints now."""
    command = block["command"]
    print(f"$ {command}", file=sys.stderr, flush=True)
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, shell=True, cwd=ROOT, env={**os.environ, "PATH": path, "COLUMNS": "100"}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=SECONDS,
    )  # fmt: skip
    printed = done.stdout.replace(str(ROOT) + os.sep, "").rstrip() + "\n"
    return f"<!-- run: {command} -->\n```text\n{printed}```\n<!-- end -->"


if __name__ == "__main__":
    sys.exit(main())
