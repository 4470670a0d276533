"""The command line: the registry of bugs, bad options, and the bundled client."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest
from kvsan.reference_engine.__main__ import main
from kvsan.reference_engine.compute import TOLERANCE

from kvsan.findings import KINDS

from .conftest import Served


def test_bugs_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bugs", "--format", "json"]) == 0
    listed = {bug["name"]: bug for bug in json.loads(capsys.readouterr().out)}
    assert listed["row-realloc-between-chunks"]["reference"] == "sgl-project/sglang#17850"
    assert listed["mixed-chunk-abort-keeps-row"]["reference"] == "sgl-project/sglang#10871"
    for bug in listed.values():
        assert bug["finding"] in KINDS
        assert bug["feature"] and bug["summary"] and bug["consequence"].startswith(bug["effect"])


def test_bugs_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bugs"]) == 0
    said = capsys.readouterr().out
    assert "row-realloc-between-chunks  (sgl-project/sglang#17850)" in said
    assert "    needs        --mixed-chunk\n" in said


@pytest.mark.parametrize(
    ("bug", "options", "lacks"),
    [
        ("mixed-chunk-abort-keeps-row", [], "--mixed-chunk"),
        ("mixed-chunk-abort-keeps-row", ["--mixed-chunk"], None),
        ("abort-in-transfer-queue-leaks", [], "--prealloc-rows 2"),
        ("prefetch-tail-freed-twice", ["--host-tokens", "64"], "--storage"),
        ("evict-under-write-back", [], "--host-tokens 256 --host-write back"),
        ("row-realloc-between-chunks", [], None),
    ],
)
def test_what_a_bug_needs_is_said(
    bug: str, options: list[str], lacks: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--bug", bug, *options, "--port", str(taken.getsockname()[1])]) == 2
    warned = f"the bug {bug} needs {lacks}, without which nothing of it shows\n"
    said = capsys.readouterr().err
    assert said.startswith(warned) if lacks is not None else "needs" not in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bug", "nothing"], "invalid choice: 'nothing'"),
        (["--loop", "sideways"], "invalid choice: 'sideways'"),
        (["--rows", "0"], "rows: 0 is not a positive number"),
        (["--page-size", "16", "--kv-tokens", "100"], "kv_tokens: 100 is not a multiple of page_size 16"),
        (["--profile-sizes", "-1"], "profile_sizes: -1 is negative"),
        (["--profile-sizes", "1", "--profile-chunks", "9"], "profile_chunks: 9 chunks are more than 250 tokens"),
        (["--compute", "kernels", "--window", "8"], "compute: 'kernels' is not there with window: use 'exact'"),
        (["--cuda-graph"], "cuda_graph: only the kernels decode so, that is with compute 'kernels'"),
        (["--context-len", "5000"], "context_len: 5000 is not in 7..4096"),
    ],
)
def test_bad_options(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", *options])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("workload", "summary"),
    [
        ("demo", "30 right, 0 wrong, 0 aborted"),
        ("mixed", " 0 wrong"),
        ("too-long", "26 right, 0 wrong, 0 aborted, 4 rej"),
    ],
)
def test_client(
    workload: str, summary: str, start_server: Callable[..., Served], capsys: pytest.CaptureFixture[str]
) -> None:
    served = start_server("--rows", "4")
    port = str(served.client.port)
    assert main(["client", "--port", port, "--workload", workload, "--count", "30"]) == 0
    assert summary in capsys.readouterr().out


@pytest.mark.parametrize("options", [(), ("--cuda-graph", "--hybrid")])
def test_client_of_a_server_on_kernels(
    options: tuple[str, ...], start_server: Callable[..., Served], capsys: pytest.CaptureFixture[str]
) -> None:
    """The client takes tokens within the tolerance that the server names."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    served = start_server("--rows", "4", "--compute", "kernels", *options)
    _, info = served.client.call("GET", "/server_info")
    assert (info["compute"], info["tolerance"]) == ("kernels", TOLERANCE)
    assert main(["client", "--port", str(served.client.port), "--workload", "mixed", "--count", "30"]) == 0
    assert " 0 wrong" in capsys.readouterr().out


def test_client_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert main(["client", "--port", str(unused.getsockname()[1])]) == 2
    assert "no server answers at 127.0.0.1:" in capsys.readouterr().err


def test_serve_on_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen on 127.0.0.1:" in capsys.readouterr().err
