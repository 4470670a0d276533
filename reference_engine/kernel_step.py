"""One batch on the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from kvsan.kernels import copy_states, extend_attention, selective_scan, store_kv

from .batch import Batch, Item
from .kernel_model import Adapted, Scanned, to_device
from .model import noise
from .tokenizer import VOCABULARY
from .weights import DIM, SCALE

if TYPE_CHECKING:
    from .kernel_compute import KernelCompute


class KernelStep:
    """Captured rows are a page table: row 0 is padding's, row i + 1 that of item i."""

    def __init__(self, compute: KernelCompute, batch: Batch) -> None:
        self._compute = compute
        self._batch = batch
        self._captured = torch.empty(0)
        self._host = torch.empty(0)

    def capture(self) -> None:
        rows = self._compute.indices([0, *(item.row for item in self._batch.items)])
        self._captured = self._compute.rows.index_select(0, rows)

    def run(self) -> None:
        from .kernel_compute import decodes_only

        self._draw(self._decode() if decodes_only(self._batch) else self._extend())

    def drawn(self) -> list[list[int]]:
        tokens = iter(self._host.tolist())
        return [[next(tokens)] if item.draws else [] for item in self._batch.items]

    def _decode(self) -> torch.Tensor:
        """The scores behind every item, [items, VOCABULARY]."""
        compute, items = self._compute, self._batch.items
        inputs = {
            "rows": [item.row for item in items],
            "captured": list(range(1, len(items) + 1)),
            "slots": [item.slots[0] for item in items],
            "lens": [item.upto for item in items],
        }
        if compute.states:
            inputs["states"] = [item.state.slot for item in items if item.state is not None]
        tensors = {name: compute.indices(numbers) for name, numbers in inputs.items()}
        lanes = compute.lanes_for(self._batch)
        if lanes is not None:
            scores = compute.decode_in_lanes(lanes, tensors, self._captured)
        else:
            scores = torch.empty((len(items), VOCABULARY), device=compute.place)
            compute.decode(tensors, scores, self._captured)
        for layer in compute.states:
            self._copy_states(layer, [(item.state.slot, item.state.track) for item in items if item.state is not None])
        return scores

    def _extend(self) -> torch.Tensor:
        """The scores behind the items that draw, [draws, VOCABULARY]; prefills, chunks and decodes alike."""
        compute, items = self._compute, self._batch.items
        tokens: list[int] = []
        adapted: list[Adapted] = []
        offsets = [0]
        for item in items:
            tokens += [0] if item.tokens is None else item.tokens
            if item.request.adapter is not None:
                adapted.append(Adapted(offsets[-1], len(tokens), item.request.adapter))
            offsets.append(len(tokens))
        inputs = compute.indices(tokens)
        decodes = [number for number, item in enumerate(items) if item.tokens is None]
        if decodes:
            rows = compute.indices([items[number].row for number in decodes])
            inputs[compute.indices([offsets[number] for number in decodes])] = compute.last_drawn[rows]
        positions = compute.indices([position for item in items for position in range(item.start, item.upto)])
        slots = compute.indices([slot for item in items for slot in item.slots])
        rows = compute.indices(range(1, len(items) + 1))
        cuts, starts = compute.indices(offsets), compute.indices([item.start for item in items])
        for layer in compute.states:
            sources = [(item.state.source, item.state.slot) for item in items if item.state is not None]
            self._copy_states(layer, [(source or None, target) for source, target in sources])

        def mix(layer: int, mixed: torch.Tensor) -> torch.Tensor:
            if layer in compute.states:
                return self._scan(layer, Scanned.of(mixed), offsets)
            queries, keys, values = compute.heads(mixed)
            store_kv(compute.keys[layer], compute.values[layer], keys, values, slots)
            pools = compute.keys[layer], compute.values[layer], self._captured
            return extend_attention(queries, *pools, rows, cuts, starts, scale=SCALE).view(-1, DIM)

        hidden = compute.model.forward(inputs, positions, mix, adapted)
        last = [end - 1 for item, end in zip(items, offsets[1:], strict=True) if item.draws]
        return compute.model.logits(hidden[compute.indices(last)])

    def _scan(self, layer: int, scanned: Scanned, offsets: list[int]) -> torch.Tensor:
        """The recurrent layer's outputs [tokens, DIM]; every item's tokens up to where its state is tracked first, then
        the copies of these states, then the rest."""
        items = self._batch.items
        cuts = [
            begin + item.state.track_at - item.start if item.state is not None and item.state.track is not None else end
            for item, begin, end in zip(items, offsets, offsets[1:], strict=False)
        ]
        out = torch.empty_like(scanned.x)
        self._scan_parts(layer, scanned, list(zip(items, offsets, cuts, strict=False)), out, first=True)
        self._copy_states(layer, [(item.state.slot, item.state.track) for item in items if item.state is not None])
        rest = [part for part in zip(items, cuts, offsets[1:], strict=True) if part[1] < part[2]]
        if rest:
            self._scan_parts(layer, scanned, rest, out, first=False)
        return out

    def _scan_parts(
        self, layer: int, scanned: Scanned, parts: list[tuple[Item, int, int]], out: torch.Tensor, *, first: bool
    ) -> None:
        """Scans the tokens [begin, end) of each item, from zeros where an item's first part is to begin so."""
        compute = self._compute
        uses = [item.state for item, _, _ in parts if item.state is not None]
        tokens = compute.indices([token for _, begin, end in parts for token in range(begin, end)])
        offsets = [0]
        for _, begin, end in parts:
            offsets.append(offsets[-1] + end - begin)
        fresh = to_device(torch.tensor([first and use.source == 0 for use in uses]), compute.place)
        x, delta, b, c = (each[tokens] for each in (scanned.x, scanned.delta, scanned.b, scanned.c))
        out[tokens] = selective_scan(
            compute.states[layer],
            compute.indices([use.slot for use in uses]),
            fresh,
            compute.indices(offsets),
            x,
            delta,
            compute.model.rates(layer),
            b,
            c,
            compute.model.skip(layer),
        )

    def _copy_states(self, layer: int, pairs: list[tuple[int | None, int | None]]) -> None:
        """Copies states from slot to slot, where there are both."""
        both = [(source, target) for source, target in pairs if source is not None and target is not None]
        if both:
            sources, targets = (self._compute.indices(slots) for slots in zip(*both, strict=True))
            copy_states(self._compute.states[layer], sources, targets, torch.ones_like(sources, dtype=torch.bool))

    def _draw(self, scores: torch.Tensor) -> None:
        """Draws on the device; what an item that draws nothing has as its last token does not matter."""
        compute, items = self._compute, self._batch.items
        drawing = [item for item in items if item.draws]
        if any(item.request.sampling.temperature > 0.0 for item in drawing):
            added = np.stack([_noise(item) for item in drawing])
            scores = scores + to_device(torch.from_numpy(added).float(), compute.place)
        tokens = scores.argmax(1)
        if drawing:
            compute.last_drawn[compute.indices([item.row for item in drawing])] = tokens
        self._host = torch.empty_like(tokens, device="cpu", pin_memory=tokens.is_cuda)
        self._host.copy_(tokens, non_blocking=True)


def _noise(item: Item) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    sampling = item.request.sampling
    if sampling.temperature > 0.0:
        return noise(sampling.temperature, sampling.seed, item.upto, VOCABULARY)
    return np.zeros(VOCABULARY)
