"""Real SGLang servers that decode with drafts, by n-grams and by models: a random number of them is accepted in each
step. What else drafts by a model, and what can go wrong there: `test_live_drafts.py`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from . import load
from . import model as models
from .living import LATE, others
from .server import BARRIER, serving, write_own_plugin

STEPS = ("--speculative-num-steps", "2", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "3")
PAGED = ("--max-total-tokens", "1024", "--page-size", "16")
RETRACT = {"SGLANG_TEST_RETRACT": "1"}


@dataclass(frozen=True)
class Server:
    """How a server drafts: by which algorithm, with which kind of model, and what else is asked of it."""

    name: str
    algorithm: str
    arguments: tuple[str, ...]
    drafts: dict[str, Any] | None = None
    variables: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


SERVERS = [
    Server(
        "n-grams, page 16, overlapped, and retraction",
        "NGRAM",
        ("--speculative-num-draft-tokens", "4", "--speculative-ngram-max-bfs-breadth", "1", *PAGED),
        variables=RETRACT,
    ),
    Server(
        "another model, page 16, no overlap, and retraction, slot ids late",
        "STANDALONE",
        (*STEPS, *PAGED, "--disable-overlap-schedule"),
        models.LLAMA,
        RETRACT | LATE,
    ),
    Server(
        "a head for each draft, overlapped",
        "EAGLE",
        (*STEPS, "--enable-multi-layer-eagle", "--max-total-tokens", "2048"),
        models.EAGLE,
    ),
]


@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_drafts(server: Server, model: Path, tmp_path: Path) -> None:
    write_own_plugin(tmp_path, "cpu_speculation")
    arguments = ["--speculative-algorithm", server.algorithm, *server.arguments]
    if server.drafts is not None:
        arguments += ["--speculative-draft-model-path", str(models.write(tmp_path / "drafts", server.drafts))]
    level = ("--level", "full")
    with serving(model, tmp_path, *arguments, options=level, **BARRIER, **server.variables) as served:
        assert load.run(served.port, 16) == (16, [])
        time.sleep(1)
        assert "flushed" in str(load.post(served.port, "/flush_cache", {}))
        assert load.run(served.port, 6) == (6, [])
    assert others(served) == []
    assert served.report["failures"] == []
    assert not [note for note in served.report["notes"] if "SGLang" in note]
    assert any("came from the device" in note for note in served.report["notes"]) is (
        server.variables.keys() >= LATE.keys()
    )
    totals = {pool["pool"]: pool for pool in served.report["totals"]}
    assert set(totals) == {"rows", "kv"}
    assert totals["kv"]["events"] > 500
