"""A real SGLang server with a sliding window: its attention in plain torch reads the window's pool by token slots."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from . import load
from . import model as models
from .living import BARRIER, WHEN, frames, others
from .server import serving, write_plugin

FULL = ("--level", "full")


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model with a sliding window."""
    return models.write(tmp_path_factory.mktemp("windowed"), models.WINDOWED)


@pytest.fixture(params=WHEN)
def late(request: pytest.FixtureRequest) -> dict[str, str]:
    """The variables of a server whose slot ids come at once, or late."""
    return WHEN[str(request.param)]


def prompt(number: int) -> dict[str, Any]:
    """One of a few requests, none of which begins like another."""
    return {
        "text": f"{number} " + load.PREFIX[: 100 + 40 * (number % 4)],
        "sampling_params": {"max_new_tokens": 40 + 8 * (number % 5), "temperature": 0, "ignore_eos": True},
    }


def test_token_slots_are_used_as_window_slots(windowed: Path, late: dict[str, str], tmp_path: Path) -> None:
    """One request after the other, until an id is beyond the window's pool and the scheduler dies of it: by then kvsan
    has long named what was wrong."""
    answered = 0
    arguments = ("--max-total-tokens", "2048", "--page-size", "16")
    with serving(windowed, tmp_path, *arguments, options=FULL, **BARRIER, **late) as served:
        try:
            for number in range(20):
                load.post(served.port, "/generate", prompt(number), timeout=45)
                answered += 1
        except OSError:  # the connection ends with the scheduler
            pass
    assert 1 <= answered < 20
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


TRANSLATION = textwrap.dedent(
    '''
    """What SGLang's attention in plain torch lacks: it translates token slots into window slots."""

    import sys


    def register():
        if "sglang.srt.managers.scheduler" not in sys.modules:
            return
        from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

        for name in ("_run_sdpa_forward_extend", "_run_sdpa_forward_decode"):
            setattr(TorchNativeAttnBackend, name, translating(getattr(TorchNativeAttnBackend, name)))


    def translating(original):
        def run(self, query, output, k_cache, v_cache, req_to_token, *rest, **named):
            pool = self.token_to_kv_pool
            if any(k_cache is each for each in pool.swa_kv_pool.k_buffer):
                req_to_token = pool.full_to_swa_index_mapping[req_to_token.long()]
            return original(self, query, output, k_cache, v_cache, req_to_token, *rest, **named)

        return run
    '''
)


@pytest.mark.parametrize(
    ("name", "arguments", "variables"),
    [
        ("page 16 and sessions", ("--max-total-tokens", "1024", "--page-size", "16", "--enable-streaming-session"), {}),
        ("page 1, no overlap", ("--max-total-tokens", "700", "--disable-overlap-schedule"), {}),
        (
            "page 16, the core in Python, and retraction",
            ("--max-total-tokens", "1024", "--page-size", "16"),
            {"SGLANG_TEST_RETRACT": "1", "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"},
        ),
        (
            "no cache, and retraction",
            ("--max-total-tokens", "2048", "--disable-radix-cache"),
            {"SGLANG_TEST_RETRACT": "1"},
        ),
    ],
)
def test_translated_reads(
    name: str,
    arguments: tuple[str, ...],
    variables: dict[str, str],
    windowed: Path,
    late: dict[str, str],
    tmp_path: Path,
) -> None:
    """The same model and backend with the translation, under load: tombstones, their recovery, evictions."""
    write_plugin(tmp_path, "translation", TRANSLATION)
    with serving(windowed, tmp_path, *arguments, options=FULL, **BARRIER, **variables, **late) as served:
        assert load.run(served.port, 40) == (40, [])
        if "--enable-streaming-session" in arguments:
            assert load.sessions(served.port, 3) == 9
        time.sleep(1)
        assert "flushed" in str(load.post(served.port, "/flush_cache", {}))
        assert load.run(served.port, 12) == (12, [])
    assert others(served) == []
    assert served.report["failures"] == []
    totals = {pool["pool"]: pool for pool in served.report["totals"]}
    assert set(totals) == {"rows", "kv", "swa"}
    assert totals["swa"]["events"] > 1000
    assert any("came from the device" in note for note in served.report["notes"]) is bool(late)
