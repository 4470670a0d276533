"""The servers that are compared: without checks, with SGLang's own, and under kvsan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..sglang import server
from ..sglang.faults import VARIABLE as FAULT
from . import meter


@dataclass(frozen=True)
class Checker:
    """One way to watch a server. `says` matches the lines of the log that name a fault.

    `once`: each fault needs a server of its own, because the first kills it, or leaves contents behind that are found
    again and again.
    """

    name: str
    says: re.Pattern[str]
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    wrapped: bool = False
    once: bool = False


NOTHING = re.compile(r"(?!)")
TOTALS = r"^(?:\w*Error: |\[\d).*(?:Mem Leak Detected|memory leak detected|KV double free|KV page use-after-free)"
"""Of an exception or a line of the log; not of the source in a traceback."""

PLAIN = Checker("no checks", NOTHING, variables=server.NOT_FATAL)
STRICT = Checker(
    "strict checks",
    re.compile(TOTALS),
    variables=server.STRICT,
    once=True,
)
CANARY = Checker(
    "kv-canary",
    re.compile(r"kv_canary violation: "),
    arguments=("--kv-canary", "log", "--kv-canary-real-data", "partial", "--kv-canary-sweep-interval", "5"),
    variables={"TRITON_INTERPRET": "1", **server.NOT_FATAL},
    once=True,
)
KVSAN = Checker(
    "kvsan", re.compile(r"^kvsan: [A-Z ]+ on (?!.*checkpoint_into_tree)"), variables=server.NOT_FATAL, wrapped=True
)
"""Without the line of SGLang's own fault, sgl-project/sglang#38140, which has nothing to do with the faults put in."""


@contextmanager
def serving(checker: Checker, tiny: Path, folder: Path, tokens: int, **more: str) -> Iterator[server.Served]:
    """A server under the checker, with a meter, and with faults that can be armed (file `fault` of the folder)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fault").write_text("")
    server.write_plugin(folder, "meter", Path(meter.__file__).read_text(encoding="utf-8"))
    variables = {
        **server.BARRIER,
        **checker.variables,
        FAULT: str(folder / "fault"),
        meter.VARIABLE: str(folder / "meter"),
        **more,
    }
    arguments = ("--max-total-tokens", str(tokens), *checker.arguments)
    with server.serving(tiny, folder, *arguments, wrapped=checker.wrapped, **variables) as served:
        yield served
