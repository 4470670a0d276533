"""A client that sends a bundled workload to a running server and compares the answers with the oracle."""

from __future__ import annotations

import http.client
import json
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from .config import EngineConfig
from .oracle import Oracle
from .request import SamplingParams
from .workload import Arrival, random_workload

TIMEOUT_SECONDS = 60.0
WORKLOADS = ("demo", "mixed", "too-long")


@dataclass(frozen=True, slots=True)
class Result:
    """One answer: HTTP status, tokens and finish reason (None where the client hung up or got an error)."""

    rid: str
    status: int
    tokens: list[int]
    finish: str | None


class Client:
    """Talks to one server; every call opens a connection of its own."""

    def __init__(self, host: str, port: int, timeout: float = TIMEOUT_SECONDS) -> None:
        self.host = host
        self.port = port
        self._timeout = timeout

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of one request; a body that is bytes goes out as it is."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self._timeout)
        try:
            payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def generate(self, arrival: Arrival) -> Result:
        """Sends the request and waits for its answer."""
        status, answer = self.call("POST", "/generate", self._body(arrival))
        if status != 200:
            return Result(arrival.rid, status, [], None)
        return Result(arrival.rid, status, answer["output_ids"], answer["meta_info"]["finish_reason"]["type"])

    def hang_up(self, arrival: Arrival, after: int) -> Result:
        """Streams the answer and closes the connection after that many events."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self._timeout)
        tokens: list[int] = []
        try:
            body = json.dumps({**self._body(arrival), "stream": True}).encode()
            connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            while after > 0 and (line := response.readline()) and line != b"data: [DONE]\n":
                if line.startswith(b"data: "):
                    tokens += json.loads(line[6:]).get("output_ids", [])
                    after -= 1
            return Result(arrival.rid, response.status, tokens, None)
        finally:
            connection.close()

    def _body(self, arrival: Arrival) -> dict[str, Any]:
        return {
            "rid": arrival.rid,
            "input_ids": list(arrival.prompt),
            "sampling_params": asdict(arrival.sampling),
            "adapter": arrival.adapter,
            "session_id": arrival.session,
            "priority": arrival.priority,
        }


def send(client: Client, arrivals: list[Arrival], concurrency: int) -> list[Result]:
    """Sends the workload with that many connections at a time, in its order.

    A request that is to be aborted is, by turns, hung up on or ended through `/abort_request` by another connection.
    """

    def one(numbered: tuple[int, Arrival]) -> Result:
        number, arrival = numbered
        if arrival.abort_at is None:
            return client.generate(arrival)
        delay = arrival.abort_at - arrival.step
        if number % 2:
            return client.hang_up(arrival, after=delay % 4)
        timer = threading.Timer(delay / 500, client.call, ("POST", "/abort_request", {"rid": arrival.rid}))
        timer.start()
        try:
            return client.generate(arrival)
        finally:
            timer.join()

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, enumerate(arrivals)))


def judge(
    results: list[Result], arrivals: list[Arrival], oracle: Oracle, max_input: int, tolerance: float = 0.0
) -> Counter[str]:
    """How many answers are `right`, `wrong`, `aborted`, `rejected` or `failed`.

    Aborted counts as wrong where the tokens before the end were; rejected is an input longer than `max_input` tokens
    that got an error. A token is right whose score is at most `tolerance` below the best one's.
    """
    verdicts: Counter[str] = Counter()
    for result, arrival in zip(results, arrivals, strict=True):
        if len(arrival.prompt) > max_input:
            verdicts["rejected" if result.status == 400 else "wrong"] += 1
            continue
        whole = result.finish not in (None, "abort")
        right = oracle.accepts(
            list(arrival.prompt), arrival.sampling, result.tokens, arrival.adapter, tolerance=tolerance, whole=whole
        )
        if result.status != 200:
            verdicts["failed"] += 1
        else:
            verdicts["wrong" if not right else "right" if whole else "aborted"] += 1
    return verdicts


def workload(name: str, seed: int, count: int, context_len: int) -> list[Arrival]:
    """The bundled workloads.

    `demo` has long prompts and no aborts, `mixed` shorter ones and aborts; `too-long` has a few inputs that the front
    end takes and the scheduler rejects.
    """
    if name == "demo":
        return random_workload(seed, count, context_len=context_len, max_tail=120, abort_share=0.0)
    arrivals = random_workload(seed, count, context_len=context_len, abort_share=0.15 if name == "mixed" else 0.0)
    if name == "too-long":
        for index in range(count // 4, count, max(1, count // 4)):
            arrivals[index] = replace(
                arrivals[index], prompt=(97,) * (context_len - 1), sampling=SamplingParams(max_new_tokens=1)
            )
    return arrivals


def run(host: str, port: int, name: str, seed: int, count: int, concurrency: int) -> int:
    """Sends a bundled workload and prints a summary; 0 if no answer was wrong, 1 if one was, 2 without a server."""
    client = Client(host, port)
    try:
        _, info = client.call("GET", "/server_info")
    except OSError as error:
        print(f"no server answers at {host}:{port}: {error}", file=sys.stderr)
        return 2
    config = EngineConfig(**info["config"])
    arrivals = workload(name, seed, count, config.context_len)
    results = send(client, arrivals, concurrency)
    oracle, tolerance = Oracle(config.model_seed, hybrid=config.hybrid), info["tolerance"]
    verdicts = judge(results, arrivals, oracle, config.max_input_len, tolerance)
    parts = (f"{verdicts[verdict]} {verdict}" for verdict in ("right", "wrong", "aborted", "rejected", "failed"))
    print(f"{len(results)} requests: {', '.join(parts)}")
    return 1 if verdicts["wrong"] or verdicts["failed"] else 0
