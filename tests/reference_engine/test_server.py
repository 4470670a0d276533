"""The server over HTTP: right tokens under mixed load, errors that cost nothing, disconnects, a graceful end."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from kvsan.reference_engine.client import judge, send
from kvsan.reference_engine.oracle import Oracle
from kvsan.reference_engine.request import SamplingParams
from kvsan.reference_engine.tokenizer import decode, encode
from kvsan.reference_engine.workload import random_workload

from .conftest import Served
from .test_protocol import BAD

Start = Callable[..., Served]


def wait_until_empty(served: Served, seconds: float = 20.0) -> dict[str, int]:
    """The totals once no row is taken and nothing is locked."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        totals = served.totals()
        if totals["rows_available"] == totals["rows"] and not totals["kv_protected"]:
            return totals
        time.sleep(0.02)
    raise AssertionError(f"rows or slots are still taken: {served.totals()}")


@pytest.mark.parametrize("page_size", [1, 16])
def test_hundreds_of_mixed_requests_get_the_right_tokens(page_size: int, start_server: Start, oracle: Oracle) -> None:
    served = start_server(
        *("--page-size", str(page_size), "--rows", "6", "--kv-tokens", "512", "--chunked-prefill-size", "32"),
        *("--mixed-chunk", "--schedule-policy", "random", "--seed", "7"),
    )
    arrivals = random_workload(page_size, 150)
    verdicts = judge(send(served.client, arrivals, concurrency=12), arrivals, oracle, max_input=250)
    assert verdicts["wrong"] == verdicts["failed"] == 0, verdicts
    assert verdicts["right"] > 110 and verdicts["aborted"] > 5, verdicts
    totals = wait_until_empty(served)
    assert totals["kv_available"] + totals["kv_evictable"] == totals["kv_tokens"]
    assert served.stop() == 0


def test_bad_input_gets_a_clear_error_and_costs_no_row_and_no_slot(start_server: Start) -> None:
    served = start_server("--context-len", "64", "--rows", "2", "--mixed-chunk")
    before = served.totals()
    for body, _ in BAD:
        status, answer = served.client.call("POST", "/generate", body)
        assert status == 400 and answer["error"]["message"], body
    for raw in (b"", b"{", b"[1]", b'"a"', b"\xff", b"[" * 100_000):
        status, answer = served.client.call("POST", "/v1/completions", raw)
        assert status == 400 and "body" in answer["error"]["message"], raw[:10]
    assert served.client.call("POST", "/generate", b" " * (1 << 20) + b"{}")[0] == 413
    assert served.client.call("GET", "/nowhere")[0] == 404
    assert served.client.call("GET", "/generate")[0] == 405
    assert served.client.call("POST", "/abort_request", {"rid": 5})[0] == 400
    assert served.client.call("POST", "/abort_request", {"rid": "nobody"}) == (200, {"rid": "nobody", "known": False})
    assert served.totals() == before
    # Short enough for the front end, too long for the scheduler.
    for _ in range(5):
        body = {"input_ids": [1] * 60, "sampling_params": {"max_new_tokens": 2}}
        status, answer = served.client.call("POST", "/generate", body)
        assert status == 400 and "at most 58" in answer["error"]["message"]
    assert wait_until_empty(served) == before
    assert served.client.call("POST", "/generate", {"text": "hi"})[0] == 200
    assert served.client.call("GET", "/health") == (200, {"status": "ok"})


def test_completion_streams_events_that_add_up(start_server: Start, oracle: Oracle) -> None:
    served = start_server()
    body = {"prompt": "stream this", "max_tokens": 12, "ignore_eos": True, "temperature": 0.9, "seed": 3}
    right = oracle.generate(encode("stream this"), SamplingParams(12, 0.9, 3, True))
    status, whole = served.client.call("POST", "/v1/completions", body)
    assert (status, whole["choices"][0]["text"]) == (200, decode(right))
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"] == {"prompt_tokens": 11, "completion_tokens": 12, "total_tokens": 23}
    events = stream(served, "/v1/completions", body)
    assert events[-1] == "[DONE]"
    pieces = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert len(pieces) == 12
    assert "".join(piece["text"] for piece in pieces) == decode(right)
    assert [piece["finish_reason"] for piece in pieces] == [None] * 11 + ["length"]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_goes_away_ends_its_request(streamed: bool, start_server: Start) -> None:
    served = start_server("--context-len", "4096", "--kv-tokens", "8192")
    prompt = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": streamed}
    connection = http.client.HTTPConnection("127.0.0.1", served.client.port, timeout=30)
    connection.request("POST", "/v1/completions", json.dumps(prompt))
    if streamed:
        assert connection.getresponse().readline().startswith(b"data: ")
    else:
        while served.totals()["rows_available"] == 8:
            time.sleep(0.01)
    begun = time.monotonic()
    connection.close()
    wait_until_empty(served)
    assert time.monotonic() - begun < 15
    assert served.client.call("POST", "/generate", {"text": "hi"})[0] == 200


def test_one_rid_at_a_time(start_server: Start) -> None:
    served = start_server("--context-len", "4096", "--kv-tokens", "8192")
    body: dict[str, Any] = {"text": "x", "rid": "same", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
    connection = http.client.HTTPConnection("127.0.0.1", served.client.port, timeout=30)
    connection.request("POST", "/generate", json.dumps(body))
    while served.totals()["rows_available"] == 8:
        time.sleep(0.01)
    assert served.client.call("POST", "/generate", body)[0] == 409
    assert served.client.call("POST", "/abort_request", {"rid": "same"}) == (200, {"rid": "same", "known": True})
    answer = json.loads(connection.getresponse().read())
    assert answer["meta_info"]["finish_reason"] == {"type": "abort"}
    wait_until_empty(served)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_also_in_the_middle_of_a_request(number: int, start_server: Start) -> None:
    served = start_server("--context-len", "4096", "--kv-tokens", "8192")
    with socket.create_connection(("127.0.0.1", served.client.port), timeout=30) as connection:
        body = json.dumps({"text": "x", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}})
        head = f"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        while served.totals()["rows_available"] == 8:
            time.sleep(0.01)
        begun = time.monotonic()
        assert served.stop(number) == 0
        assert time.monotonic() - begun < 15


def test_turns_of_a_session_and_its_end(start_server: Start, oracle: Oracle) -> None:
    served = start_server("--draft-tokens", "3")
    sampling = SamplingParams(6, ignore_eos=True)
    text: list[int] = []
    for turn in ("one turn", " and another", " and one more"):
        text += encode(turn)
        right = oracle.generate(text, sampling)
        params = {"max_new_tokens": 6, "ignore_eos": True}
        body = {"text": turn, "session_id": "s", "sampling_params": params}
        status, answer = served.client.call("POST", "/generate", body)
        assert (status, answer["output_ids"]) == (200, right)
        text += right
    assert served.client.call("POST", "/close_session", {"session_id": 1})[0] == 400
    assert served.client.call("POST", "/close_session", {"session_id": "s"}) == (200, {"session_id": "s"})
    assert served.client.call("POST", "/generate", {"text": "hi", "adapter": "a", "priority": 1})[0] == 200
    wait_until_empty(served)
    assert served.stop() == 0


def stream(served: Served, path: str, body: dict[str, Any]) -> list[str]:
    """The data of the server-sent events."""
    connection = http.client.HTTPConnection("127.0.0.1", served.client.port, timeout=30)
    connection.request("POST", path, json.dumps({**body, "stream": True}))
    response = connection.getresponse()
    assert response.headers["Content-Type"].startswith("text/event-stream")
    text = response.read().decode("ascii")
    connection.close()
    return [event.removeprefix("data: ") for event in text.split("\n\n") if event]
