"""A real SGLang server on a CPU for a test: started under `kvsan run`, put under load, stopped; then its report."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvsan.findings import Finding
from kvsan.serialize import finding_from_dict

HERE = Path(__file__).parent
BOOT_SECONDS = 240.0
STOP_SECONDS = 45.0
BARRIER = {"SGLANG_ENABLE_WAR_BARRIER": "1"}
"""On a GPU the barrier is always on."""
STRICT = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}
"""SGLang's own checks in every iteration."""
NOT_FATAL = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "0"}
"""SGLang's own check of its totals warns, and does not end the scheduler."""


@dataclass
class Served:
    """A living server; `stop` ends it, and then its status, log and report are there."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes]
    wrapped: bool
    status: int | None = None
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def log(self) -> str:
        """What the server and kvsan have printed so far."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    @property
    def findings(self) -> list[Finding]:
        """What the report says was found."""
        return [finding_from_dict(each) for each in self.report["findings"]]

    def first(self, kind: str) -> Finding:
        """The report's first finding of a kind."""
        return next(finding for finding in self.findings if finding.kind == kind)

    def stop(self) -> None:
        """Ends the server as a person would, and what is left of its session if that takes too long; once."""
        if self.status is not None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.status = self.process.wait(10)
        if self.wrapped:
            self.report = json.loads((self.folder / "report.json").read_text(encoding="utf-8"))


def environment(folder: Path, **more: str) -> dict[str, str]:
    """What SGLang needs on a CPU, without the network, and with the faults of these tests as its plugin."""
    stand_ins = write_stand_ins(folder)
    return {
        **os.environ,
        "PYTHONPATH": str(stand_ins),
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def write_stand_ins(folder: Path) -> Path:
    """A folder with a `sgl_kernel` that only a CPU can use, and the faults as a plugin that SGLang finds."""
    result = folder / "stand_ins"
    (result / "sgl_kernel").mkdir(parents=True, exist_ok=True)
    (result / "sgl_kernel" / "__init__.py").write_text(_KERNELS, encoding="utf-8")
    write_own_plugin(folder, "faults")
    write_own_plugin(folder, "cpu_pages")
    write_own_plugin(folder, "slow_device")
    earlier = (HERE / "earlier_faults.py").read_text(encoding="utf-8")
    (result / "kvsan_test_earlier_faults.py").write_text(earlier, encoding="utf-8")
    return result


def write_own_plugin(folder: Path, name: str) -> None:
    """Puts the module of that name, which lies here, where a server of this folder looks for SGLang's plugins."""
    write_plugin(folder, name, (HERE / f"{name}.py").read_text(encoding="utf-8"))


def write_plugin(folder: Path, name: str, code: str) -> None:
    """Puts a module with a `register()` where a server of this folder looks for SGLang's plugins."""
    stand_ins, module = folder / "stand_ins", f"kvsan_test_{name}"
    plugin = stand_ins / f"{module}-0.dist-info"
    plugin.mkdir(parents=True, exist_ok=True)
    (stand_ins / f"{module}.py").write_text(code, encoding="utf-8")
    (plugin / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kvsan-test-{name}\nVersion: 0\n", encoding="utf-8")
    (plugin / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {module}:register\n", encoding="utf-8")


_KERNELS = textwrap.dedent(
    '''
    """Stands in for SGLang's kernels, which need a GPU: what it imports on a CPU is there, and fails when called."""

    __version__ = "0.4.10"


    def assign_req_to_token_pool_cpu(rows, table, begin, end, slots, width):
        taken = 0
        for row, first, last in zip(rows.tolist(), begin.tolist(), end.tolist()):
            table[row, first:last] = slots[taken : taken + last - first].to(table.dtype)
            taken += last - first


    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*arguments, **named):
            raise NotImplementedError(f"{name} needs a GPU")

        return missing
    '''
)


def status(served: Served, *options: str) -> dict[str, Any]:
    """What the one engine of a living server, which is under `kvsan run`, answers to `kvsan status`."""
    got = subprocess.run(
        [sys.executable, "-m", "kvsan", "status", str(served.process.pid), "--format", "json", *options],
        text=True, capture_output=True, env=environment(served.folder), timeout=60,
    )  # fmt: skip
    assert (got.returncode, got.stderr) == (0, "")
    (process,) = json.loads(got.stdout)["processes"]
    return dict(process)


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel gives to connections: a server binds it much later."""
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def command(model: Path, port: int, *arguments: str) -> list[str]:
    """The server's command."""
    return [
        sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--device", "cpu",
        "--load-format", "dummy", "--attention-backend", "torch_native", "--max-running-requests", "8",
        "--skip-server-warmup", "--sleep-on-idle", "--chunked-prefill-size", "64", "--enable-mixed-chunk",
        "--host", "127.0.0.1", "--port", str(port), *arguments,
    ]  # fmt: skip


@contextmanager
def serving(
    model: Path, folder: Path, *arguments: str, wrapped: bool = True, options: tuple[str, ...] = (), **variables: str
) -> Iterator[Served]:
    """A server for the duration, under `kvsan run` with these options or (not `wrapped`) by itself."""
    port = free_port()
    wrapper = [sys.executable, "-m", "kvsan", "run", "--report", str(folder / "report.json"), *options, "--"]
    kvsan = wrapper if wrapped else []
    with (folder / "log").open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [*kvsan, *command(model, port, *arguments)],
            stdout=output, stderr=subprocess.STDOUT, env=environment(folder, **variables), start_new_session=True,
        )  # fmt: skip
    served = Served(port, folder, process, wrapped)
    try:
        if (
            not wait_for(lambda: process.poll() is not None or healthy(port), BOOT_SECONDS)
            or process.poll() is not None
        ):
            raise AssertionError(f"the server did not come up:\n{served.log[-3000:]}")
        yield served
    finally:
        served.stop()


def healthy(port: int) -> bool:
    """Does the server on the port answer?"""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def wait_for(what: Callable[[], bool], seconds: float) -> bool:
    """Does it become true in time?"""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.2)
    return what()
