"""SGLang's attention in plain torch reads a sliding window's pool by token slots: a fault of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import load
from .living import WHEN, frames
from .server import BARRIER, serving


def prompt(number: int) -> dict[str, Any]:
    """One of a few requests, none of which begins like another."""
    return {
        "text": f"{number} " + load.PREFIX[: 100 + 40 * (number % 4)],
        "sampling_params": {"max_new_tokens": 40 + 8 * (number % 5), "temperature": 0, "ignore_eos": True},
    }


@pytest.mark.parametrize("when", WHEN)
def test_token_slots_are_used_as_window_slots(windowed_model: Path, when: str, tmp_path: Path) -> None:
    """One request after the other, until an id is beyond the window's pool and the scheduler dies of it: by then kvsan
    has long named what was wrong."""
    answered = 0
    told = []
    arguments = ("--max-total-tokens", "2048", "--page-size", "16")
    with serving(windowed_model, tmp_path, *arguments, options=("--level", "full"), **BARRIER, **WHEN[when]) as served:
        try:
            for number in range(20):
                load.post(served.port, "/generate", prompt(number), timeout=45)
                answered += 1
                told.append("kvsan: USE AFTER FREE on swa:" in served.log)
        except OSError:  # the connection ends with the scheduler
            pass
    assert 3 <= answered < 20
    assert told[0], "it is said by the end of the first request"
    assert "IndexError: index" in served.log
    assert served.log.index("kvsan: USE AFTER FREE on swa:") < served.log.index("IndexError: index")
    found = served.first("use_after_free")
    assert found.pool == "swa"
    assert found.owner
    assert "the ids are token slots of the pool 'kv'" in found.extra["note"]
    assert frames(found.present)[0] in ("forward_extend", "forward_decode")
    assert found.holder is None
    assert {finding.kind for finding in served.findings} == {"use_after_free"}
    assert served.report["failures"] == []
