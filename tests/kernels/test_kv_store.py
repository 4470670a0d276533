"""Storing keys and values on every backend that this process has."""

from __future__ import annotations

import pytest
import torch
from kernel_rows import same_bits
from kvsan.kernels import Backend, store_kv

pytest.importorskip("triton")

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


class Store:
    def __init__(
        self, slots: list[int], heads: int = 2, dim: int = 8, v_dim: int = 8, dtype: torch.dtype = torch.float32
    ) -> None:
        draw = torch.Generator().manual_seed(len(slots))
        self.k_pool = torch.randn(12, heads, dim, generator=draw).to(dtype)
        self.v_pool = torch.randn(12, heads, v_dim, generator=draw).to(dtype)
        self.keys = torch.randn(len(slots), heads, dim, generator=draw).to(dtype)
        self.values = torch.randn(len(slots), heads, v_dim, generator=draw).to(dtype)
        self.slots = torch.tensor(slots, dtype=torch.int64)

    def arguments(self) -> list[torch.Tensor]:
        return [self.k_pool, self.v_pool, self.keys, self.values, self.slots]

    def stored(self, device: torch.device, backend: Backend) -> tuple[torch.Tensor, torch.Tensor]:
        k_pool, v_pool, *rest = (each.to(device, copy=True) for each in self.arguments())
        store_kv(k_pool, v_pool, *rest, backend=backend)
        return k_pool.cpu(), v_pool.cpu()

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Token by token, from the definition."""
        k_pool, v_pool = self.k_pool.clone(), self.v_pool.clone()
        for token, slot in enumerate(self.slots.tolist()):
            if 0 <= slot < len(k_pool):
                k_pool[slot], v_pool[slot] = self.keys[token], self.values[token]
        return k_pool, v_pool


CASES = [
    *((slots, (2, 8, 8), torch.float32) for slots in ([], [5], [-1, 4, -3], [-1, -1])),
    *(([3, 11, 0, 7], (3, 24, 40), dtype) for dtype in DTYPES),
    ([-1, 2, 9], (8, 192, 128), torch.float16),
]


@pytest.mark.parametrize(("slots", "shape", "dtype"), CASES, ids=str)
def test_stores_each_token_in_its_slot_and_nothing_else(
    slots: list[int], shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, backend: Backend
) -> None:
    store = Store(slots, *shape, dtype=dtype)
    for pool, expected in zip(store.stored(device, backend), store.expected(), strict=True):
        assert same_bits(pool, expected)


def test_padding_lanes_share_slot_0(device: torch.device, backend: Backend) -> None:
    store = Store([4, 0, 0, 9, 0])
    for pool, expected in zip(store.stored(device, backend), store.expected(), strict=True):
        assert same_bits(pool[1:], expected[1:])


def test_one_layer_of_a_pool_of_all_layers(device: torch.device, backend: Backend) -> None:
    store = Store([3, 8])
    layers = torch.full((12, 3, 2, 8), -1.0, device=device)
    store_kv(layers[:, 1], layers[:, 2], *(each.to(device) for each in store.arguments()[2:]), backend=backend)
    assert same_bits(layers[[3, 8], 1], store.keys) and same_bits(layers[[3, 8], 2], store.values)
    layers[[3, 8], 1:] = -1.0
    assert (layers == -1.0).all()


@pytest.mark.usefixtures("unchecked")
def test_a_slot_that_is_not_there_stores_nothing(device: torch.device, backend: Backend) -> None:
    store = Store([12, 4, 1 << 40])
    for pool, expected in zip(store.stored(device, backend), store.expected(), strict=True):
        assert same_bits(pool, expected)


WRONG = {
    "pool dtype": (
        TypeError,
        "k_pool must be float16 or bfloat16 or float32, not torch.float64",
        0,
        torch.Tensor.double,
    ),
    "pool sizes": (ValueError, "k_pool has 12 slots, but v_pool 11", 1, lambda t: t[:11]),
    "pool layout": (ValueError, "elements of a slot of k_pool must be contiguous", 0, lambda t: t.transpose(1, 2)),
    "keys dtype": (TypeError, "keys must be float32, not torch.float16", 2, torch.Tensor.half),
    "keys shape": (ValueError, r"keys must have shape \[n, heads, dim\] = \[3, 2, 8\]", 2, lambda t: t[:2]),
    "values layout": (ValueError, "values must be contiguous", 3, lambda t: t.repeat(1, 1, 2)[:, :, ::2]),
    "slots dtype": (TypeError, "slots must be int32 or int64", 4, torch.Tensor.float),
    "slots shape": (ValueError, r"slots must have shape \[n\]", 4, lambda t: t[:, None]),
    "slots device": (ValueError, "slots is on meta", 4, lambda t: t.to("meta")),
    "slot too large": (ValueError, r"slots\[2\] is 15, but the pool has the slots from 0 to 11", 4, lambda t: t + 5),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_named(case: str) -> None:
    error, message, position, change = WRONG[case]
    arguments = Store([1, 5, 10]).arguments()
    arguments[position] = change(arguments[position])
    with pytest.raises(error, match=message):
        store_kv(*arguments)


def test_there_is_no_cuda_version() -> None:
    with pytest.raises(RuntimeError, match="no version in CUDA"):
        store_kv(*Store([1]).arguments(), backend=Backend.CUDA)
