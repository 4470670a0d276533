"""What makes each of the founding bugs happen, and sound loads beside them. Written for a server with five rows, chunks
of 64 tokens and mixed chunks. Requests that must arrive together are sent in one call."""

from __future__ import annotations

import threading
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..sglang import load

ROWS = 5
CONTEXT = 2048
ARGUMENTS = (
    "--max-running-requests", str(ROWS), "--chunked-prefill-size", "64", "--context-length", str(CONTEXT),
    "--max-total-tokens", "8192", "--enable-mixed-chunk",
)  # fmt: skip


def ask(port: int, requests: dict[str, tuple[list[int], int | None]]) -> Any:
    """Sends requests (name: prompt and output length) in one call, so that they stand in the queue together. What a
    server answers that turns one of them away, or dies, is not looked at."""
    body = {
        "rid": list(requests),
        "input_ids": [ids for ids, _ in requests.values()],
        "sampling_params": [
            {} if count is None else {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
            for _, count in requests.values()
        ],
    }
    try:
        return load.post(port, "/generate", body)
    except (OSError, urllib.error.HTTPError) as error:
        return error


@contextmanager
def busy(port: int, count: int) -> Iterator[None]:
    """For the duration, this many requests are being decoded without end: they keep their rows, and the server is
    never idle."""
    over = threading.Event()

    def keep(number: int) -> None:
        turn = 0
        while not over.is_set():
            ask(port, {f"keeper-{number}-{turn}": ([400 + number, 20, 30, 40], 1500)})
            turn += 1

    threads = [threading.Thread(target=keep, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            while thread.is_alive():
                try:
                    load.post(port, "/abort_request", {"rid": "", "abort_all": True})
                except OSError:
                    break  # the server is gone
                thread.join(0.5)


def sound(port: int) -> tuple[int, list[str]]:
    """More requests than rows, on prefixes that the cache has, some of them aborted. No two prompts are equal."""
    load.warm_up(port)
    return load.run(port, 18, ends=18)


def churn(port: int) -> None:
    """Short answers and a queue: a row whose request has finished is handed on while the batch in flight, mixed of a
    prefill and a decode step too many, still reads it."""
    ask(port, {f"short-{number}": ([260 + number] * 6, 1 + number % 4) for number in range(32)})


def twins(port: int) -> None:
    """Equal prompts side by side: the second publication finds its tokens in the cache, and points its row at them."""
    prompt = [7 + i % 90 for i in range(30)]
    ask(port, {f"twin-{number}": (prompt, 12) for number in range(4)})


def aborts_between_chunks(port: int, count: int = 6) -> list[int]:
    """Prompts of many chunks, each aborted a while after it was sent; how many tokens each was answered with."""
    generated: list[int] = []

    def send(number: int) -> None:
        prompt = [(5 + number + i) % 250 for i in range(700)]
        answer = ask(port, {f"chunked-{number}": (prompt, 40)})
        generated.append(int(answer[0]["meta_info"].get("completion_tokens", 0)) if isinstance(answer, list) else 0)

    for number in range(count):
        thread = threading.Thread(target=send, args=(number,), daemon=True)
        thread.start()
        time.sleep(0.04 * (number + 1))
        load.post(port, "/abort_request", {"rid": f"chunked-{number}"})
        thread.join(load.SECONDS)
    return generated


def recycled_row(port: int) -> None:
    """A is prefilled in chunks; with its last one B begins, on a prefix of the cache. All other rows are taken, so that
    the row which B gets can only be the one that A has just given back (sgl-project/sglang#17850)."""
    prefix = [5 + i % 200 for i in range(40)]
    ask(port, {"prefix": (prefix, 1)})
    with busy(port, ROWS - 2):
        load.post(port, "/generate", {"input_ids": [9, 8, 7], "sampling_params": {"max_new_tokens": 2}})
        ask(port, {"A": ([300 + i % 150 for i in range(200)], 8), "B": (prefix + list(range(210, 220)), 8)})


TOO_LONG = [1] * (CONTEXT - 3)
"""The tokenizer's process turns prompts of CONTEXT tokens away, the scheduler those of CONTEXT - 6: this one is queued
as aborted, shortened to one token."""


def over_long(port: int) -> None:
    """A prompt that is aborted in the queue, and prefilled nevertheless (sgl-project/sglang#10871)."""
    ask(port, {"over-long": (TOO_LONG, None)})


def wrong_slot(port: int, *, clean: bool = False) -> None:
    """As A's last chunk, a prompt that is aborted in the queue and X are prefilled in one batch: what is given back for
    the aborted one is counted from the batch's end, as if those after it had one token each; X, of which the cache has
    nothing, has thirty. `clean`: without the aborted one, and other prompts."""
    name, shift = ("clean", 30) if clean else ("faulty", 0)
    aborted = {} if clean else {"aborted": (TOO_LONG, None)}
    ask(
        port,
        {
            f"A {name}": ([310 + shift + i % 150 for i in range(200)], 4),
            **aborted,
            f"X {name}": ([15 + shift + i for i in range(30)], 60),
        },
    )
