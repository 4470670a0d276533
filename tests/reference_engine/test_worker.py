"""The scheduler's thread: when the engine dies, its clients and the server are told."""

from __future__ import annotations

import asyncio

import pytest
from kvsan.reference_engine.config import EngineConfig
from kvsan.reference_engine.protocol import BadRequest
from kvsan.reference_engine.request import Finish, Output, Request, SamplingParams
from kvsan.reference_engine.scheduler import Scheduler
from kvsan.reference_engine.worker import Worker


def test_a_dead_engine_fails_its_requests(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(self: Scheduler) -> list[Output]:
        raise IndexError("slot 99")

    async def use() -> None:
        failed = asyncio.Event()
        worker = Worker(EngineConfig(), failed.set)
        worker.start()
        outputs = worker.submit(Request("a", [1, 2], SamplingParams()))
        output = await asyncio.wait_for(outputs.get(), 10)
        assert (output.finish, output.error) == (Finish.ABORT, "the engine died: IndexError: slot 99")
        await asyncio.wait_for(failed.wait(), 10)
        with pytest.raises(BadRequest, match="slot 99") as refused:
            worker.submit(Request("b", [1], SamplingParams()))
        assert refused.value.status == 503
        await worker.stop()

    monkeypatch.setattr(Scheduler, "step", fail)
    asyncio.run(use())
    assert "IndexError: slot 99" in capsys.readouterr().err


def test_stop_ends_what_is_in_work() -> None:
    async def use() -> None:
        worker = Worker(EngineConfig(context_len=4096, kv_tokens=8192), lambda: None)
        worker.start()
        outputs = worker.submit(Request("a", [1, 2], SamplingParams(4000, ignore_eos=True)))
        await asyncio.wait_for(outputs.get(), 10)
        await asyncio.wait_for(worker.stop(), 10)
        assert worker.totals["rows_available"] == worker.totals["rows"]

    asyncio.run(use())
