"""The scheduler's thread: it alone owns the engine; others put messages into its inbox and get outputs back."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from .config import EngineConfig
from .engine import Engine
from .probe import Probe
from .protocol import BadRequest
from .request import Finish, Output, Request

Outputs = asyncio.Queue[Output]


@dataclass(frozen=True, slots=True)
class CloseSession:
    """A message to the scheduler's thread."""

    name: str


class Worker:
    """Makes an engine and runs it on a thread. All methods are for the thread of the event loop.

    `failure` says why the engine died; `on_failure` is then called on the event loop.
    """

    def __init__(self, config: EngineConfig, on_failure: Callable[[], None], probe: Probe | None = None) -> None:
        self.config = config
        self.failure: str | None = None
        self._engine = Engine(config, probe)
        self.totals = self._engine.totals()
        self.compute_name, self.tolerance = self._engine.compute.name, self._engine.compute.tolerance
        self._on_failure = on_failure
        self._inbox: SimpleQueue[Request | CloseSession | str | None] = SimpleQueue()
        self._clients: dict[str, Outputs] = {}
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Starts the thread; outputs go to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, request: Request) -> Outputs:
        """Queues a request; its outputs come through the returned queue, the last one with a finish reason."""
        if self.failure is not None:
            raise BadRequest(self.failure, 503)
        if request.rid in self._clients:
            raise BadRequest(f"a request with the rid {request.rid!r} is in work", 409)
        outputs = self._clients[request.rid] = Outputs()
        self._inbox.put(request)
        return outputs

    def abort(self, rid: str) -> bool:
        """Asks for a request's end; whether it was known."""
        if rid in self._clients:
            self._inbox.put(rid)
        return rid in self._clients

    def close_session(self, name: str) -> None:
        """Asks for a session's end."""
        self._inbox.put(CloseSession(name))

    async def stop(self) -> None:
        """Aborts what is in work and waits for the thread's end."""
        for rid in self._clients:
            self._inbox.put(rid)
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        assert self._loop is not None
        try:
            self._serve()
        except BaseException as error:
            traceback.print_exc(file=sys.stderr)
            self._loop.call_soon_threadsafe(self._fail, f"the engine died: {type(error).__name__}: {error}")

    def _serve(self) -> None:
        assert self._loop is not None
        engine = self._engine
        stopping = False
        while engine.busy or not stopping:
            while not self._inbox.empty() or not engine.busy:
                message = self._inbox.get()
                if message is None:
                    stopping = True
                    break
                if isinstance(message, str):
                    engine.abort(message)
                elif isinstance(message, CloseSession):
                    engine.close_session(message.name)
                else:
                    engine.add(message)
            if engine.busy:
                outputs = engine.step()
                self.totals = engine.totals()
                self._loop.call_soon_threadsafe(self._deliver, outputs)

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            self._clients[output.rid].put_nowait(output)
            if output.finish is not None:
                del self._clients[output.rid]

    def _fail(self, failure: str) -> None:
        self.failure = failure
        self._deliver([Output(rid, [], Finish.ABORT, failure) for rid in self._clients])
        self._on_failure()
