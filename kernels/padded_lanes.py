"""Decoding with a fixed number of lanes, as a CUDA graph needs it: a batch fills the first lanes, padding the others.

A graph replays the same kernels on the same addresses, so a smaller batch cannot leave lanes out. A padding lane works
on row 0, slot 0 and length 1 instead: those are nobody's, so what it reads does not matter and what it writes harms no
one. What must never happen is that a lane beyond the batch keeps an index of an earlier, larger batch: it would write
into slots that have a new tenant. So `load` sets the index of every lane, each time.

On a CPU, and on a GPU before `capture`, `run` carries out the same step on all lanes without a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from .attention import decode_attention
from .backend import Backend
from .kv_store import store_kv
from .state_scan import state_update

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Field:
    """One input of a step: its shape behind the lanes, its dtype, and of an index what padding lanes have.

    Data of padding lanes (`padding` None) stays whatever it was.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    padding: int | None = None


class PaddedLanes:
    """A step over a fixed number of lanes, run or replayed for batches of up to that many requests.

    `step(inputs, out)` gets the tensors of the fields, [lanes, *shape] each, and the one for the result, [lanes, ...].
    It must read and write nothing but them and the pools, and wait for nothing.
    """

    def __init__(
        self,
        lanes: int,
        fields: Mapping[str, Field],
        out: Field,
        step: Callable[[Tensors, torch.Tensor], None],
        device: torch.device,
    ) -> None:
        self.lanes = lanes
        self._fields = dict(fields)
        self._step = step
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch = 0
        self.out = torch.zeros((lanes, *out.shape), dtype=out.dtype, device=device)
        self.inputs: dict[str, torch.Tensor] = {
            name: torch.full((lanes, *field.shape), field.padding or 0, dtype=field.dtype, device=device)
            for name, field in self._fields.items()
        }

    def load(self, **batch: torch.Tensor) -> None:
        """Copies a batch into the first lanes and makes the others padding.

        Each tensor is [n, *shape] with one n for all; TypeError for a missing or unknown name, ValueError for a batch
        that has too many requests or whose tensors differ in n.
        """
        if batch.keys() != self._fields.keys():
            raise TypeError(f"the step takes {', '.join(self._fields)}, not {', '.join(batch) or 'nothing'}")
        sizes = {len(tensor) for tensor in batch.values()}
        if len(sizes) != 1:
            raise ValueError(f"the batch's tensors must all have one entry a request, not {sorted(sizes)}")
        (count,) = sizes
        if count > self.lanes:
            raise ValueError(f"a batch of {count} requests does not fit into {self.lanes} lanes")
        for name, field in self._fields.items():
            self.inputs[name][:count].copy_(batch[name])
            if field.padding is not None:
                self.inputs[name][count:].fill_(field.padding)
        self._batch = count

    def capture(self) -> None:
        """Captures the step in a CUDA graph, which `run` replays from then on; RuntimeError without a CUDA device."""
        device = self.out.device
        if device.type != "cuda":
            raise RuntimeError(f"CUDA graphs need a CUDA device, and the lanes are on {device}")
        for name, field in self._fields.items():
            if field.padding is not None:
                self.inputs[name].fill_(field.padding)
        self._batch = 0
        with torch.cuda.device(device):
            # Kernels are compiled at their first launch, which a capture does not allow.
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._step(self.inputs, self.out)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step(self.inputs, self.out)
        self._graph = graph

    def run(self) -> torch.Tensor:
        """Carries out the step on all lanes; the results of the batch's, a view that the next run overwrites."""
        if self._graph is None:
            self._step(self.inputs, self.out)
        else:
            self._graph.replay()
        return self.out[: self._batch]


def attention_lanes(
    lanes: int,
    q_heads: int,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    req_to_token: torch.Tensor,
    *,
    scale: float | None = None,
    backend: Backend | None = None,
) -> PaddedLanes:
    """One attention layer's decode: stores each request's new key and value in its slot, then attends through its row,
    which names that slot at lens - 1 already.

    A batch has queries [n, q_heads, dim], keys [n, heads, dim], values [n, heads, v_dim], and slots, rows and lens [n]
    int64; `decode_attention` describes them and what is raised. The result is [n, q_heads, v_dim].
    """

    def step(inputs: Tensors, out: torch.Tensor) -> None:
        store_kv(k_pool, v_pool, inputs["keys"], inputs["values"], inputs["slots"], backend=storing)
        decode_attention(
            inputs["queries"],
            k_pool,
            v_pool,
            req_to_token,
            inputs["rows"],
            inputs["lens"],
            scale=scale,
            out=out,
            backend=backend,
        )

    storing = None if backend is Backend.CUDA else backend
    (heads, dim), v_dim, dtype = k_pool.shape[1:], v_pool.shape[2], k_pool.dtype
    fields = {
        "queries": Field((q_heads, dim), dtype),
        "keys": Field((heads, dim), dtype),
        "values": Field((heads, v_dim), dtype),
        "slots": Field((), torch.int64, padding=0),
        "rows": Field((), torch.int64, padding=0),
        "lens": Field((), torch.int64, padding=1),
    }
    return PaddedLanes(lanes, fields, Field((q_heads, v_dim), dtype), step, k_pool.device)


def state_lanes(
    lanes: int,
    states: torch.Tensor,
    a: torch.Tensor,
    d: torch.Tensor,
    dtype: torch.dtype,
    *,
    backend: Backend | None = None,
) -> PaddedLanes:
    """One state-space layer's decode: each request's state in its slot moves on by one token.

    A batch has slots [n] int64, x and delta [n, channels] and b and c [n, N] of the dtype given; `state_update`
    describes them and what is raised. The result is [n, channels].
    """

    def step(inputs: Tensors, out: torch.Tensor) -> None:
        x, delta, b, c = (inputs[name] for name in ("x", "delta", "b", "c"))
        state_update(states, inputs["slots"], x, delta, a, b, c, d, out=out, backend=backend)

    channels, size = a.shape
    fields = {
        "slots": Field((), torch.int64, padding=0),
        "x": Field((channels,), dtype),
        "delta": Field((channels,), dtype),
        "b": Field((size,), dtype),
        "c": Field((size,), dtype),
    }
    return PaddedLanes(lanes, fields, Field((channels,), dtype), step, states.device)
