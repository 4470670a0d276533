"""What the tests of the engine on its kernels share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from kvsan.kernels.backend import interpreter_requested
from kvsan.reference_engine.compute import TOLERANCE
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.request import Finish
from kvsan.reference_engine.workload import Answer, Arrival

REQUESTS = 4 if interpreter_requested() else 30
"""Triton's interpreter takes a hundredth of a second for a launch."""


@lru_cache(maxsize=2)
def oracle(hybrid: bool) -> Oracle:
    return Oracle(hybrid=hybrid)


def tight(page_size: int, **fields: object) -> EngineConfig:
    """So small that requests are chunked, cached, evicted and retracted; on the kernels."""
    return EngineConfig(
        **{  # type: ignore[arg-type]
            "compute": "kernels",
            "page_size": page_size,
            "rows": 5,
            "kv_tokens": 256 if page_size == 16 else 160,
            "chunked_prefill_size": 32,
            "context_len": 160,
            "mixed_chunk": True,
            **fields,
        }
    )


def wrong(
    arrivals: Iterable[Arrival], answers: dict[str, Answer], *, hybrid: bool = False, tolerance: float = TOLERANCE
) -> set[str]:
    """The requests whose tokens are not within the tolerance, or whose end is not the right one."""
    return {
        arrival.rid
        for arrival in arrivals
        if not oracle(hybrid).accepts(
            list(arrival.prompt),
            arrival.sampling,
            answers[arrival.rid].tokens,
            arrival.adapter,
            tolerance=tolerance,
            whole=answers[arrival.rid].finish is not Finish.ABORT or arrival.abort_at is None,
        )
    }
