"""What an engine computes on, and the one place where that is chosen.

`exact` is NumPy in float64, equal to the oracle's to the bit. `kernels` is torch and `kvsan.kernels` in float32, equal
within a tolerance: Triton on a GPU; on a CPU plain torch, or Triton's interpreter where TRITON_INTERPRET asks for it.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from .batch import Batch
from .config import EngineConfig
from .policies import make_policy
from .probe import Probe
from .row_writer import RowWrite
from .shards import Shard
from .streams import Device, SimulatedDevice

if TYPE_CHECKING:
    import torch

Slots = npt.NDArray[np.int64]

TOLERANCE = 1e-4
"""How far below the best score of the exact arithmetic the score of a token that the kernels draw may be. Scores are up
to 10 or so; in float32 their errors were up to 1e-5, and the best two are usually 0.3 apart."""

GRAPH_LANES = 4
"""A captured decode runs with a multiple of so many lanes; those beyond its batch are on row 0 and slot 0."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows, cells of a row, token slots and recurrent states, each with what is reserved."""

    rows: int
    width: int
    slots: int
    states: int


class Step(Protocol):
    """A batch on the forward stream: first `capture`, then `run`."""

    def capture(self) -> None:
        """Reads the batch's rows; from here on they may be written again."""

    def run(self) -> None:
        """Computes the batch: stores its keys, values and states, and draws its tokens."""

    def drawn(self) -> list[list[int]]:
        """The tokens of each item; the host has seen the end of `run`."""


class Compute(Protocol):
    """Owns what is behind rows, token slots and states, and computes batches on it.

    `write_rows` and `prime` are work for a stream. `tolerance` is how far below the best score of the exact arithmetic
    the score of a drawn token may be.
    """

    name: str
    tolerance: float

    def write_rows(self, writes: list[RowWrite]) -> None:
        """Writes rows, in order."""

    def prime(self, row: int, token: int) -> None:
        """Makes the token, drawn elsewhere, the input of the row's next decode."""

    def step(self, batch: Batch) -> Step:
        """The batch, to be queued."""

    def pads(self, batch: Batch) -> bool:
        """Whether lanes beyond the batch write the padding slots."""


def choose(
    config: EngineConfig, sizes: Sizes, address: Callable[[int, Slots], Slots], shard: Shard, probe: Probe
) -> tuple[Device, Compute]:
    """The streams and what runs on them.

    `address(layer, slots)` says where a layer keeps the token slots. ValueError for kernels that cannot do what is
    asked for, RuntimeError for kernels without torch.
    """
    simulated = SimulatedDevice(make_policy(config.schedule_policy, config.seed), probe)
    if config.compute == "exact" or (config.compute == "auto" and not _suits_kernels(config, shard)):
        from .exact import Exact

        return simulated, Exact(config, sizes, address, shard)
    if shard.world > 1:
        raise ValueError("compute: 'kernels' computes all heads, not those of one of several tensor ranks")
    if importlib.util.find_spec("torch") is None:
        raise RuntimeError("compute: 'kernels' needs torch: pip install 'kvsan[engine]'")
    import torch

    from .kernel_compute import KernelCompute

    # A schedule that is not CUDA's own needs simulated streams, and so does a CPU.
    place = _place() if config.schedule_policy == "in-order" else torch.device("cpu")
    if place.type == "cpu":
        torch.set_num_threads(1)  # tensors this small are slower when they are shared out
        return simulated, KernelCompute(config, sizes, place)
    from .cuda_streams import CudaDevice

    device = CudaDevice(probe)
    compute = KernelCompute(config, sizes, place)
    device.synchronize()  # the streams begin behind what the default stream has set up
    return device, compute


def _suits_kernels(config: EngineConfig, shard: Shard) -> bool:
    """Whether there is a GPU, and the kernels can do what is asked for."""
    if config.beyond_kernels or config.schedule_policy != "in-order" or shard.world > 1:
        return False
    if importlib.util.find_spec("torch") is None:
        return False
    try:
        ctypes.CDLL("libcuda.so.1")  # spares those without a GPU the import of torch
    except OSError:
        return False
    return _place().type == "cuda"


def _place() -> torch.device:
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
