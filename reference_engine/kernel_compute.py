"""Computing with torch and the Triton kernels of `kvsan.kernels`, in float32.

What is read and written is what SGLang's forward reads and writes: a batch captures its rows as a page table, and the
kernels find keys and values through that. Nothing waits for the device: tokens are drawn there, feed the next batch
there, and reach the host behind the batch's end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from kvsan.kernels import PaddedLanes, decode_attention, state_update, store_kv, write_rows
from kvsan.kernels.padded_lanes import Field, Tensors

from .batch import Batch
from .compute import GRAPH_LANES, TOLERANCE, Sizes
from .config import EngineConfig
from .kernel_model import KernelModel, Scanned, to_device
from .kernel_step import KernelStep
from .row_writer import RowWrite
from .tokenizer import VOCABULARY
from .weights import DIM, HEAD_DIM, HEADS, LAYERS, SCALE, STATE_DIM, Weights


class KernelCompute:
    """`rows` is [rows, width] int32; `keys` and `values` are [slots, HEADS, HEAD_DIM] of each layer, `states` [states,
    DIM, STATE_DIM] of each recurrent one, all float32; `last_drawn` [rows] int64."""

    name = "kernels"
    tolerance = TOLERANCE

    def __init__(self, config: EngineConfig, sizes: Sizes, place: torch.device) -> None:
        self.place = place
        self.model = KernelModel(Weights(config.model_seed, hybrid=config.hybrid), place)
        kv_shape = (sizes.slots, HEADS, HEAD_DIM)
        self.keys = [torch.zeros(kv_shape, device=place) for _ in range(LAYERS)]
        self.values = [torch.zeros(kv_shape, device=place) for _ in range(LAYERS)]
        states_shape = (sizes.states, DIM, STATE_DIM)
        self.states = {
            layer: torch.full(states_shape, float("nan"), device=place) for layer in self.model.recurrent_layers
        }
        self.last_drawn = torch.zeros(sizes.rows, dtype=torch.int64, device=place)
        cells = torch.zeros((sizes.rows + 1) * sizes.width, dtype=torch.int32, device=place)
        self.rows = cells[: sizes.rows * sizes.width].view(sizes.rows, sizes.width)
        # A view with a row from every cell on, so that what `write_rows` writes can begin anywhere in a row.
        self._from_cell = cells.as_strided((sizes.rows * sizes.width, sizes.width), (1, 1))
        self._graph_rows = torch.zeros_like(self.rows)
        self._lanes = self._make_lanes(sizes.rows - 1) if config.cuda_graph else []

    def write_rows(self, writes: list[RowWrite]) -> None:
        together: list[RowWrite] = []
        ends: dict[int, int] = {}
        for write in writes:
            if write.position < ends.get(write.row, 0):  # cells that were written before take the later slots
                self._write_rows(together)
                together, ends = [], {}
            together.append(write)
            ends[write.row] = write.position + len(write.slots)
        self._write_rows(together)

    def prime(self, row: int, token: int) -> None:
        self.last_drawn[row] = token

    def step(self, batch: Batch) -> KernelStep:
        return KernelStep(self, batch)

    def pads(self, batch: Batch) -> bool:
        lanes = self.lanes_for(batch)
        return lanes is not None and lanes.lanes > len(batch.items)

    def indices(self, numbers: Sequence[int]) -> torch.Tensor:
        """As a tensor of int64 on the device."""
        return to_device(torch.tensor(numbers, dtype=torch.int64), self.place)

    def lanes_for(self, batch: Batch) -> PaddedLanes | None:
        """The captured decode that the batch runs in, if there is one."""
        fitting = (lanes for lanes in self._lanes if lanes.lanes >= len(batch.items))
        return next(fitting, None) if decodes_only(batch) else None

    def decode(self, inputs: Tensors, out: torch.Tensor, captured: torch.Tensor) -> None:
        """Computes one token of each of n requests, the last one drawn for its row, and writes its scores to `out`
        [n, VOCABULARY].

        `inputs` are [n] int64: `rows`, `captured` (the request's row of the page table `captured`), `slots` of the
        tokens' keys and values, `lens` of the contexts, and `states` where there are recurrent layers.
        """

        def mix(layer: int, mixed: torch.Tensor) -> torch.Tensor:
            if layer in self.states:
                scanned = Scanned.of(mixed)
                parameters = self.model.rates(layer), scanned.b, scanned.c, self.model.skip(layer)
                return state_update(self.states[layer], inputs["states"], scanned.x, scanned.delta, *parameters)
            queries, keys, values = self.heads(mixed)
            store_kv(self.keys[layer], self.values[layer], keys, values, inputs["slots"])
            pools = self.keys[layer], self.values[layer], captured
            return decode_attention(queries, *pools, inputs["captured"], inputs["lens"], scale=SCALE).view(-1, DIM)

        hidden = self.model.forward(self.last_drawn[inputs["rows"]], inputs["lens"] - 1, mix)
        out.copy_(self.model.logits(hidden))

    def decode_in_lanes(self, lanes: PaddedLanes, batch: Tensors, captured: torch.Tensor) -> torch.Tensor:
        """As `decode`, in the lanes; the scores are overwritten by the next such decode."""
        self._graph_rows[: len(captured)].copy_(captured)
        lanes.load(**batch)
        return lanes.run()

    @staticmethod
    def heads(mixed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values, [tokens, HEADS, HEAD_DIM] each."""
        return tuple(part.reshape(-1, HEADS, HEAD_DIM).contiguous() for part in mixed.chunk(3, 1))

    def _write_rows(self, writes: list[RowWrite]) -> None:
        """Writes cells no two of which are the same."""
        offsets = [0]
        for write in writes:
            offsets.append(offsets[-1] + len(write.slots))
        nothing, no_offsets = self.indices([]), self.indices([0] * len(offsets))
        begins = self.indices([write.row * self.rows.shape[1] + write.position for write in writes])
        slots = self.indices([slot for write in writes for slot in write.slots])
        write_rows(self._from_cell, begins, nothing, no_offsets, slots, self.indices(offsets))

    def _make_lanes(self, requests: int) -> list[PaddedLanes]:
        """Decodes of the usual numbers of lanes, up to those that so many requests fit into."""
        names = ["rows", "captured", "slots", *(["states"] if self.states else [])]
        fields = {name: Field((), torch.int64, padding=0) for name in names}
        fields["lens"] = Field((), torch.int64, padding=1)
        scores = Field((VOCABULARY,), torch.float32)

        def step(inputs: Tensors, out: torch.Tensor) -> None:
            self.decode(inputs, out, self._graph_rows)

        made = []
        for size in range(GRAPH_LANES, requests + GRAPH_LANES, GRAPH_LANES):
            lanes = PaddedLanes(size, fields, scores, step, self.place)
            if self.place.type == "cuda":
                lanes.capture()
            made.append(lanes)
        return made


def decodes_only(batch: Batch) -> bool:
    """Whether every item is a decode of the last drawn token, from its state as it is and without an adapter."""
    return all(
        item.tokens is None and item.request.adapter is None and (item.state is None or item.state.source is None)
        for item in batch.items
    )
