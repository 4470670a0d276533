"""Pools and rows for the attention tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

ERROR = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""The largest error against float64, relative to the largest result, by the dtype of inputs and results."""


def relative_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest absolute error over the largest absolute value; NaN in either makes it NaN."""
    if exact.numel() == 0:
        return 0.0
    error = (got.cpu().double() - exact.cpu().double()).abs().max()
    return float(error / exact.abs().max().clamp(min=1e-300).cpu())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.cpu().contiguous().view(torch.uint8), b.cpu().contiguous().view(torch.uint8))


@dataclass
class Rows:
    """Requests of the given lengths in rows of a table, their tokens in random slots.

    Every slot that is nobody's is NaN, and the cells behind a request's last name one or are -7 by turns, so that
    reading them shows. Row 0, the padding row, names slot 0, the padding slot.
    """

    lengths: Sequence[int]
    q_heads: int = 4
    heads: int = 2
    dim: int = 16
    v_dim: int = 16
    dtype: torch.dtype = torch.float32
    ctx: int = 160
    seed: int = 0
    draw: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.draw = torch.Generator().manual_seed(self.seed)
        count = sum(self.lengths)
        num_slots, num_rows = count + 20, len(self.lengths) + 3
        slots = torch.randperm(num_slots - 2, generator=self.draw)[:count] + 2
        self.rows = torch.randperm(num_rows - 1, generator=self.draw)[: len(self.lengths)] + 1
        self.lens = torch.tensor(self.lengths, dtype=torch.int64)
        self.table = torch.full((num_rows, self.ctx), -7, dtype=torch.int32)
        self.table[:, ::2] = 1
        self.table[0] = 0
        for row, own in zip(self.rows.tolist(), slots.split(list(self.lengths)), strict=True):
            self.table[row, : len(own)] = own.to(torch.int32)
        self.k_pool = self._pool(num_slots, self.dim, slots)
        self.v_pool = self._pool(num_slots, self.v_dim, slots)

    def _pool(self, num_slots: int, dim: int, slots: torch.Tensor) -> torch.Tensor:
        pool = torch.full((num_slots, self.heads, dim), float("nan"), dtype=self.dtype)
        pool[slots] = self.normal(len(slots), self.heads, dim)
        return pool

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.draw).to(self.dtype)

    def pools(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """k_pool, v_pool, req_to_token and rows, as the launchers take them."""
        return tuple(each.to(device, copy=True) for each in (self.k_pool, self.v_pool, self.table, self.rows))
