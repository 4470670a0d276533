"""The HTTP server: `/generate`, `/v1/completions`, `/abort_request`, `/close_session`, `/server_info` and `/health`."""

from __future__ import annotations

import asyncio
import codecs
import json
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from types import FrameType
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from .config import EngineConfig
from .protocol import BadRequest, Job, parse_completion, parse_generate
from .request import Output
from .tokenizer import decode, token_bytes
from .worker import Outputs, Worker

MAX_BODY = 1 << 20
"""Longest request body, in bytes."""

GRACE_SECONDS = 2
"""How long requests in work may go on after a signal to stop."""


class AsciiResponse(JSONResponse):
    """JSON in ASCII, so that whatever a client sent can be echoed."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode("ascii")


class Server(uvicorn.Server):
    """uvicorn, but a signal only stops it: the process then ends as usual, with status 0 and its exit handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.handle_exit(number, frame)


class Api:
    """The routes. Every error is JSON: {"error": {"message": ...}}."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._config = worker.config

    def routes(self) -> list[Route]:
        return [
            Route("/generate", self.generate, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/abort_request", self.abort_request, methods=["POST"]),
            Route("/close_session", self.close_session, methods=["POST"]),
            Route("/server_info", self.server_info, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
        ]

    async def generate(self, http: HttpRequest) -> Response:
        job = parse_generate(await _json_object(http), self._config)
        outputs = self._worker.submit(job.request)
        if job.stream:
            return self._stream(job, outputs, _generate_body)
        return await self._whole(http, job, outputs, _generate_body)

    async def completions(self, http: HttpRequest) -> Response:
        job = parse_completion(await _json_object(http), self._config)
        outputs = self._worker.submit(job.request)
        if job.stream:
            return self._stream(job, outputs, _completion_chunk)
        return await self._whole(http, job, outputs, _completion_body)

    async def abort_request(self, http: HttpRequest) -> Response:
        rid = (await _json_object(http)).get("rid")
        if not isinstance(rid, str):
            raise BadRequest("'rid' must be a string")
        return AsciiResponse({"rid": rid, "known": self._worker.abort(rid)})

    async def close_session(self, http: HttpRequest) -> Response:
        name = (await _json_object(http)).get("session_id")
        if not isinstance(name, str):
            raise BadRequest("'session_id' must be a string")
        self._worker.close_session(name)
        return AsciiResponse({"session_id": name})

    async def server_info(self, http: HttpRequest) -> Response:
        worker = self._worker
        running = {"compute": worker.compute_name, "tolerance": worker.tolerance}
        return AsciiResponse({"config": asdict(self._config), "totals": worker.totals, **running})

    async def health(self, http: HttpRequest) -> Response:
        if self._worker.failure is not None:
            return _error(self._worker.failure, 503)
        return AsciiResponse({"status": "ok"})

    async def _whole(self, http: HttpRequest, job: Job, outputs: Outputs, body: _Body) -> Response:
        """The answer in one piece; a client that goes away ends its request."""
        gone = asyncio.ensure_future(_disconnected(http))
        tokens: list[int] = []
        output: Output | None = None
        try:
            while output is None or output.finish is None:
                news = asyncio.ensure_future(outputs.get())
                await asyncio.wait((news, gone), return_when=asyncio.FIRST_COMPLETED)
                if not news.done():
                    news.cancel()
                    return Response(status_code=499)
                output = news.result()
                tokens += output.tokens
        finally:
            gone.cancel()
            if output is None or output.finish is None:
                self._worker.abort(job.request.rid)
        if output.error is not None:
            return _error(output.error, 500 if self._worker.failure is not None else 400)
        return AsciiResponse(body(job, tokens, decode(tokens), output))

    def _stream(self, job: Job, outputs: Outputs, body: _Body) -> Response:
        return StreamingResponse(self._events(job, outputs, body), media_type="text/event-stream")

    async def _events(self, job: Job, outputs: Outputs, body: _Body) -> AsyncIterator[str]:
        """Server-sent events, one for each output; ends the request when the client goes away."""
        text = codecs.getincrementaldecoder("utf-8")(errors="replace")
        output: Output | None = None
        try:
            while output is None or output.finish is None:
                output = await outputs.get()
                if output.error is not None:
                    yield f"data: {json.dumps({'error': {'message': output.error}})}\n\n"
                    break
                piece = text.decode(token_bytes(output.tokens), final=output.finish is not None)
                yield f"data: {json.dumps(body(job, output.tokens, piece, output))}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            if output is None or output.finish is None:
                self._worker.abort(job.request.rid)


class _Body(Protocol):
    """Makes an answer, or a piece of one, of new tokens and their text; `output` is the latest news."""

    def __call__(self, job: Job, tokens: list[int], text: str, output: Output) -> dict[str, Any]: ...


def _generate_body(job: Job, tokens: list[int], text: str, output: Output) -> dict[str, Any]:
    meta = {
        "id": job.request.rid,
        "finish_reason": None if output.finish is None else {"type": output.finish.value},
        "prompt_tokens": len(job.request.prompt),
        "completion_tokens": len(tokens),
        "cached_tokens": output.cached_tokens,
    }
    return {"text": text, "output_ids": tokens, "meta_info": meta}


def _completion_chunk(job: Job, tokens: list[int], text: str, output: Output) -> dict[str, Any]:
    reason = None if output.finish is None else output.finish.value
    return {
        "id": job.request.rid,
        "object": "text_completion",
        "created": int(time.time()),
        "model": "reference",
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}],
    }


def _completion_body(job: Job, tokens: list[int], text: str, output: Output) -> dict[str, Any]:
    prompt = len(job.request.prompt)
    usage = {"prompt_tokens": prompt, "completion_tokens": len(tokens), "total_tokens": prompt + len(tokens)}
    return {**_completion_chunk(job, tokens, text, output), "usage": usage}


def _error(message: str, status: int) -> Response:
    return AsciiResponse({"error": {"message": message}}, status_code=status)


async def _json_object(http: HttpRequest) -> dict[str, Any]:
    body = b""
    async for piece in http.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise BadRequest(f"the body is longer than {MAX_BODY} bytes", 413)
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object")
    return value


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _bad_request(http: HttpRequest, error: Exception) -> Response:
    return _error(str(error), error.status if isinstance(error, BadRequest) else 400)


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {404: f"there is no {http.url.path}", 405: f"{http.url.path} does not take {http.method}"}
    return AsciiResponse(
        {"error": {"message": what.get(error.status_code, error.detail)}}, error.status_code, headers=error.headers
    )


async def _server_error(http: HttpRequest, error: Exception) -> Response:
    return _error(f"{type(error).__name__}: {error}", 500)


def serve(config: EngineConfig, host: str, port: int) -> int:
    """Serves until a signal; port 0 takes a free one. Prints the address when it listens. Returns the exit status."""
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        print(f"cannot listen on {host}:{port}: {error}", file=sys.stderr)
        return 2
    server: Server | None = None

    def stop() -> None:
        if server is not None:
            server.should_exit = True

    worker = Worker(config, stop)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        worker.start()
        address = listener.getsockname()
        print(f"listening on http://{address[0]}:{address[1]}", flush=True)
        yield
        await worker.stop()

    app = Starlette(
        routes=Api(worker).routes(),
        lifespan=lifespan,
        exception_handlers={BadRequest: _bad_request, HTTPException: _http_error, Exception: _server_error},
    )
    server = Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_SECONDS))
    server.run(sockets=[listener])
    return 1 if worker.failure is not None else 0
