"""An engine's adapter comes when a scheduler is made, not before, and costs the engine nothing if it cannot come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvsan import arrival

ENGINE = "events = []\nclass Scheduler:\n    def __init__(self, size):\n        events.append(f'made {size}')\n"
ADAPTER = (
    "import fake_engine\ndef attach(scheduler):\n    fake_engine.events.append('attach')\n"
    "def begin(scheduler):\n    fake_engine.events.append('begin')\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a fake engine and its adapter, known to kvsan."""
    (tmp_path / "fake_engine.py").write_text(ENGINE)
    (tmp_path / "fake_adapter.py").write_text(ADAPTER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(arrival, "SCHEDULERS", {"fake_engine": ("Scheduler", "fake_adapter")})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield tmp_path
    for name in ("fake_engine", "fake_adapter"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("imported_before", [False, True])
def test_the_adapter_comes_with_the_scheduler(folder: Path, imported_before: bool) -> None:
    if imported_before:
        import fake_engine  # type: ignore[import-not-found]
    for _ in range(2):
        arrival.watch()
    import fake_engine

    assert "fake_adapter" not in sys.modules
    fake_engine.Scheduler(3)
    assert fake_engine.events == ["attach", "made 3", "begin"]
    assert sum(type(finder).__name__ == "_Finder" for finder in sys.meta_path) == 1


def test_an_adapter_that_cannot_come_leaves_the_engine_alone(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "fake_adapter.py").write_text("raise RuntimeError('broken')\n")
    arrival.watch()
    import fake_engine

    fake_engine.Scheduler(3)
    assert fake_engine.events == ["made 3"]
    assert (
        "fake_adapter could not be entered: RuntimeError: broken; this engine is not watched" in capfd.readouterr().err
    )
