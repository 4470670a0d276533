"""Real SGLang prefill servers, with SGLang's own stand-in for transfers, which takes a while. One has SGLang's test
switches on, by which handshakes and transfers fail and requests are computed again; one has a host tier; in one, faults
are armed."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from . import load
from .living import WHEN, Case, Living, comes_from, living, names, others
from .server import BARRIER, Served, free_port, serving, wait_for, write_own_plugin
from .test_live_host import TIER, from_host

PREFILL = ("--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "nixl", "--max-total-tokens", "900")
FAILING = {"SGLANG_TEST_DISAGG_FAILURE_PROB": "0.03", "SGLANG_TEST_FORCE_OPTIMISTIC_PREFILL_RETRY_PROB": "0.3"}
PAGE = 16
FULL = ("--level", "full")


def arguments(folder: Path) -> tuple[str, ...]:
    """A prefill server's own, and what it needs in its folder."""
    write_own_plugin(folder, "cpu_prefill")
    return (*PREFILL, "--disaggregation-bootstrap-port", str(free_port()))


def outcomes(port: int, count: int) -> list[str]:
    """Sends requests at once, prompts of one chunk and of several, and aborts every ninth; how each of them ended."""

    def one(number: int) -> str:
        body = load.body(number, count)
        try:
            answer = load.post(port, "/generate", body | {"text": body["text"] * (1 + number % 3)})
            return str(answer["meta_info"]["finish_reason"]["type"])
        except urllib.error.HTTPError as error:
            return f"status {error.code}"

    with ThreadPoolExecutor(count) as threads:
        answers = threads.map(one, range(count))
        for number in range(5, count, 9):
            time.sleep(0.1)
            load.post(port, "/abort_request", {"rid": f"abort-{number}"})
        return list(answers)


def prompts(port: int, count: int = 24) -> None:
    """Requests at once, some aborted: in the queue or while they are sent; all others are served."""
    ended = outcomes(port, count)
    assert {each for number, each in enumerate(ended) if number % 9 != 5} == {"length"}
    assert set(ended) <= {"length", "abort", "status 500"}


@pytest.mark.parametrize("when", WHEN)
def test_transfers_that_fail(when: str, windowed_model: Path, tmp_path: Path) -> None:
    """The model has a sliding window, which is sent with the last piece of a prompt."""
    write_own_plugin(tmp_path, "cpu_window")
    variables = {**BARRIER, **FAILING, **WHEN[when]}
    with serving(
        windowed_model, tmp_path, *arguments(tmp_path), "--disable-overlap-schedule", options=FULL, **variables
    ) as served:
        ended = outcomes(served.port, 40) + outcomes(served.port, 20)
        assert wait_for(lambda: flushed(served.port), 10)
    assert "length" in ended
    assert "status 500" in ended
    assert "exhausted optimistic prefill attempts" in served.log
    is_clean(served, "rows", "kv", "swa")


@pytest.mark.parametrize("when", WHEN)
def test_a_host_tier(when: str, model: Path, tmp_path: Path) -> None:
    write_own_plugin(tmp_path, "cpu_host")
    tier = (*TIER, "--hicache-write-policy", "write_back", "--page-size", str(PAGE), "--enable-cache-report")
    variables = {**BARRIER, **WHEN[when]}
    with serving(model, tmp_path, *arguments(tmp_path), *tier, **variables) as served:
        prompts(served.port)
        loaded = sum(from_host(served.port, number) for number in range(4))
        prompts(served.port)
        assert wait_for(lambda: flushed(served.port), 10)
    assert loaded > 0
    is_clean(served, "rows", "kv", "host")


def is_clean(served: Served, *pools: str) -> None:
    """Asserts that a stopped server's report has nothing but SGLang's own fault, that these pools were followed, and
    that after the last flush everything in them was free."""
    assert others(served) == []
    assert served.report["failures"] == []
    totals = {pool["pool"]: pool for pool in served.report["totals"]}
    assert set(totals) == set(pools)
    for pool in totals.values():
        assert pool["free"] == pool["size"] - pool["reserved"]
        assert pool["events"] > 50


def flushed(port: int) -> bool:
    try:
        return "flushed" in str(load.post(port, "/flush_cache", {}))
    except urllib.error.HTTPError:  # something still runs
        return False


@pytest.fixture(scope="module", params=WHEN)
def server(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    variables = WHEN[request.param]
    folder = tmp_path_factory.mktemp("server")
    with living(model, folder, *arguments(folder), "--page-size", str(PAGE), options=FULL, **variables) as it:
        yield it


def test_clean(server: Living) -> None:
    for _ in range(2):  # with the prompts of the first time in the cache
        prompts(server.port, 40)
        server.rest()
    server.nothing_is_wrong()


CASES = [
    Case("leak_page", "leak", "process_disagg_prefill_inflight_queue", traffic=prompts),
    Case("double_free", "double_free", "free_kv_row", traffic=prompts),
    Case("row_leak", "leak", "process_disagg_prefill_inflight_queue", traffic=prompts),
    Case("taken_for_sent", "free_in_flight", "process_disagg_prefill_inflight_queue", traffic=prompts),
    Case("sent_unwaited", "race", "maybe_send_cached_prefix_chunk", traffic=prompts),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault(case: Case, server: Living) -> None:
    first = names(server.strike(case.fault, case.traffic), case, PAGE)
    if case.kind == "free_in_flight":
        assert first.extra["access"] == "read"
        assert "send_kv_chunk" in comes_from(first), first
    server.serves_cleanly(prompts)


def test_the_report(server: Living) -> None:
    server.reports_what_was_told()
