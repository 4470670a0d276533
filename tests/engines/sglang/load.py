"""A bounded load on a local SGLang server: shared prefixes, mixed lengths, aborts, streaming sessions."""

from __future__ import annotations

import itertools
import json
import threading
import time
import urllib.request
from typing import Any

PREFIX = "The quick brown fox jumps over the lazy dog. " * 6
SECONDS = 90.0
_turns = itertools.count()


def post(port: int, path: str, body: dict[str, Any], timeout: float = SECONDS) -> Any:
    """One request; the answer as JSON, or as text."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        text = answer.read().decode()
    try:
        return json.loads(text)
    except ValueError:
        return text


def body(number: int, ends: int, tokens: int = 20, *, apart: bool = False) -> dict[str, Any]:
    """Request `number`: five prefix lengths and `ends` ends or, `apart`, a long prompt that begins like no other; seven
    output lengths that are multiples of `tokens`; every ninth will be aborted."""
    alike = PREFIX[: 60 + (number % 5) * 40] + f" {number % ends} is the end"
    result: dict[str, Any] = {
        "text": f"{number} " + PREFIX if apart else alike,
        "sampling_params": {
            "max_new_tokens": (1 + number % 7) * tokens,
            "temperature": 0.8 if number % 2 else 0,
            "ignore_eos": True,
        },
    }
    if number % 9 == 5:
        result["rid"] = f"abort-{number}"
    return result


def warm_up(port: int) -> None:
    """Puts the common prefix into the cache."""
    post(port, "/generate", {"text": PREFIX, "sampling_params": {"max_new_tokens": 1}})


def run(
    port: int, count: int, *, pause: float = 0.01, ends: int = 4, tokens: int = 20, apart: bool = False
) -> tuple[int, list[str]]:
    """Sends `count` requests at once, aborts some; how many were answered, and the errors. With few `ends` there are
    equal prompts, which are computed side by side and published twice. `tokens`, `apart`: see `body`."""
    done: list[Any] = []
    errors: list[str] = []
    turn = next(_turns)  # 0.5.12 takes the id of an aborted request never again

    def one(number: int) -> None:
        request = body(number, ends, tokens, apart=apart)
        if "rid" in request:
            request["rid"] += f"-{turn}"
        try:
            done.append(post(port, "/generate", request))
        except Exception as error:
            errors.append(f"{number}: {error!r}")

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(count)]
    for number, thread in enumerate(threads):
        thread.start()
        time.sleep(pause)
        if number % 9 == 6:
            post(port, "/abort_request", {"rid": f"abort-{number - 1}-{turn}"})
    for thread in threads:
        thread.join(SECONDS)
    return len(done), errors


def sessions(port: int, count: int = 2, turns: int = 3) -> int:
    """Streaming sessions of a few turns each, one of them closed; how many turns were answered."""
    answered = 0
    for number in range(count):
        session = post(port, "/open_session", {"capacity_of_str_len": 4096, "streaming": True})
        rid = None
        for turn in range(turns):
            parameters = {"id": session, "rid": rid} if rid is not None else {"id": session}
            answer = post(
                port,
                "/generate",
                {
                    "text": f"Session {number}, turn {turn}: " + PREFIX[:60],
                    "session_params": parameters,
                    "sampling_params": {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True},
                },
            )
            rid = answer["meta_info"]["id"]
            answered += 1
        if number % 2 == 0:
            post(port, "/close_session", {"session_id": session})
    return answered


if __name__ == "__main__":
    import sys

    arguments = [int(each) for each in sys.argv[1:]]
    print(*run(arguments[0], arguments[1] if len(arguments) > 1 else 24))
    if len(arguments) > 2:
        print("session turns:", sessions(arguments[0], arguments[2]))
