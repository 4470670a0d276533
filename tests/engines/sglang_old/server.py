"""An old SGLang server on a CPU, unmodified, under `kvsan run`. These releases know no plugins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ..install_sglang import ROOT
from ..sglang.server import BOOT_SECONDS, STOP_SECONDS, free_port, healthy, wait_for

PATIENCE_SECONDS = 4.0

KERNELS = textwrap.dedent(
    '''
    """Stands in for SGLang's kernels, which need a GPU: every name and every module imports, and fails when called.
    `sgl_kernel.scalar_type` alone is not there; SGLang then makes its own."""

    import importlib.abc
    import importlib.machinery
    import sys

    __version__ = "0.3.21"
    __path__ = []


    def lacking(module):
        def __getattr__(name):
            if name.startswith("__"):
                raise AttributeError(name)

            def missing(*arguments, **named):
                raise NotImplementedError(f"{module}.{name} needs a GPU")

            return missing

        return __getattr__


    class Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name, path=None, target=None):
            if name.startswith("sgl_kernel.") and name != "sgl_kernel.scalar_type":
                return importlib.machinery.ModuleSpec(name, self, is_package=True)

        def exec_module(self, module):
            module.__getattr__ = lacking(module.__name__)


    sys.meta_path.append(Modules())
    __getattr__ = lacking("sgl_kernel")
    '''
)

ARRIVAL = textwrap.dedent(
    '''
    """Lets the tests' faults in as soon as the scheduler is imported; some of these releases know no plugins."""

    import importlib.util
    import sys


    class Arrival:
        def find_spec(self, name, path=None, target=None):
            if name != "sglang.srt.managers.scheduler":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                from tests.engines.sglang import slow_device
                from tests.engines.sglang_old import faults

                faults.register()
                slow_device.register()

            spec.loader.exec_module = exec_module
            return spec


    sys.meta_path.insert(0, Arrival())
    '''
)


@dataclass
class Served:
    """A server; `stop` ends it, and then its report is there."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes]
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Is the server still running?"""
        return self.process.poll() is None

    @property
    def log(self) -> str:
        """What the server and kvsan have printed so far."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The report's findings, in the order of their events."""
        return sorted(self.report["findings"], key=lambda finding: int(finding["at"]))

    def stop(self) -> None:
        """Ends the server as a person would: SIGTERM, then SIGKILL, as these releases wait for ever for requests that
        were aborted in the queue. What is left of its session goes too if that takes too long. Once."""
        if self.report:
            return
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
            if not wait_for(lambda: not self.alive, PATIENCE_SECONDS):
                for server in psutil.Process(self.process.pid).children():
                    server.kill()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        self.report = json.loads((self.folder / "report.json").read_text(encoding="utf-8"))


ON_A_CPU = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
"""What these releases need on a CPU, without the network."""


def write_kernels(folder: Path) -> Path:
    """A folder with the stand-in for SGLang's kernels."""
    kernels = folder / "stand_ins" / "sgl_kernel"
    kernels.mkdir(parents=True, exist_ok=True)
    (kernels / "__init__.py").write_text(KERNELS, encoding="utf-8")
    return kernels.parent


def write_arrival(stand_ins: Path) -> None:
    """Lets the faults into servers that find this folder."""
    (stand_ins / "sitecustomize.py").write_text(ARRIVAL, encoding="utf-8")


@contextmanager
def serving(
    model: Path, folder: Path, *arguments: str, options: tuple[str, ...] = (), **variables: str
) -> Iterator[Served]:
    """A server under `kvsan run` for the duration."""
    port = free_port()
    command = [
        sys.executable, "-m", "kvsan", "run", "--report", str(folder / "report.json"), *options, "--",
        sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--load-format", "dummy",
        "--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native",
        "--sampling-backend", "pytorch", "--skip-server-warmup", "--host", "127.0.0.1", "--port", str(port), *arguments,
    ]  # fmt: skip
    stand_ins = write_kernels(folder)
    write_arrival(stand_ins)
    found_first = os.pathsep.join([str(stand_ins), str(ROOT)])
    ports = {"SGLANG_GRPC_PORT": str(free_port())}  # 0.5.13 would take one 10000 above, which there may not be
    variables = {**os.environ, **ON_A_CPU, **ports, "PYTHONPATH": found_first, **variables}
    with (folder / "log").open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=variables, start_new_session=True
        )
    served = Served(port, folder, process)
    try:
        if not wait_for(lambda: not served.alive or healthy(port), BOOT_SECONDS) or not served.alive:
            raise AssertionError(f"the server did not come up:\n{served.log[-3000:]}")
        yield served
    finally:
        served.stop()


def frames(access: dict[str, Any]) -> list[str]:
    """The functions of an access's stack, innermost first."""
    return [frame["function"].rsplit(".", 1)[-1] for frame in access["stack"]]
