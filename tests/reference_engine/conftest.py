"""A probe that keeps what the engine tells kvsan, as the events of a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kvsan.reference_engine.oracle import Oracle


class RecordingProbe:
    """Takes every operation; `events` are dicts as in the text encoding of the trace format."""

    enabled = True
    data = True

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __getattr__(self, op: str) -> Callable[..., None]:
        def take(*args: Any, **fields: Any) -> None:
            event = {"i": len(self.events), "op": op, "agent": "host"}
            event |= dict(zip(("pool", "slots"), args, strict=False))
            event |= {("from" if key == "start" else key): value for key, value in fields.items()}
            if isinstance(event.get("slots"), (int, np.integer)):
                event["slots"] = [int(event["slots"])]
            elif "slots" in event:
                event["slots"] = [int(slot) for slot in event["slots"]]
            self.events.append({key: value for key, value in event.items() if value is not None or key == "row"})

        return take


@pytest.fixture
def probe() -> RecordingProbe:
    return RecordingProbe()


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return Oracle()
