"""Shows what kvsan says of a fault in a living SGLang server: one starts on this CPU under `kvsan run`, serves a load
in which the fault strikes once, goes on serving, and is stopped; its report is printed.

.venv-sglang/bin/python -m tests.engines.sglang [FAULT]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from kvsan.reporters.terminal import console_for, render
from kvsan.serialize import report_from_dict

from . import model
from .living import known, living, many
from .test_page_1 import CASES

FAULTS = {case.fault: case.traffic for case in CASES}
NONE = "none"


def main() -> int:
    """Prints what happens, then the report; 0 unless a fault was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines.sglang", description=__doc__)
    parser.add_argument(
        "fault",
        nargs="?",
        choices=[*sorted(FAULTS), NONE],
        default="foreign_free",
        help="default: %(default)s; `:inside` is below kvsan's probe; without any: " + NONE,
    )
    fault = parser.parse_args().fault
    with tempfile.TemporaryDirectory(prefix="kvsan-sglang-") as folder:
        tiny = model.write(Path(folder) / "model")
        _tell("starting a server with a tiny random model, under kvsan run (a minute at most)")
        with living(tiny, Path(folder), "--max-total-tokens", "1024") as server:
            if fault == NONE:
                _tell("a load, without a fault")
                many(server.port)
            else:
                _tell(f"a load in which {fault} strikes")
                _tell(f"it did: {server.strike(fault, FAULTS[fault]).facts}")
            _tell("another load: the server still serves")
            server.serves_cleanly()
            _tell("stopping the server")
            server.served.stop()
        served = server.served
    render(report_from_dict(served.report), console_for(sys.stdout), root=os.getcwd(), exit_status=served.status)
    return int(fault != NONE and not any(not known(each) for each in served.findings))


def _tell(what: str) -> None:
    print(f"== {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
