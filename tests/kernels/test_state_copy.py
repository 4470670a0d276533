"""Copying states on every backend that this process has."""

from __future__ import annotations

import pytest
import torch
from kernel_rows import same_bits
from kvsan.kernels import Backend, copy_states

pytest.importorskip("triton")


def pool(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random bits, NaNs with all their payloads among them."""
    size = torch.tensor([], dtype=dtype).element_size()
    draw = torch.Generator().manual_seed(len(shape))
    raw = torch.randint(256, (*shape[:-1], shape[-1] * size), generator=draw, dtype=torch.uint8)
    return raw.view(dtype)


LANES = {
    "none": ([], [], []),
    "one": ([3], [5], [True]),
    "one source, several targets": ([3, 3, 3], [5, 6, 0], [True] * 3),
    "masked": ([1, 2, 3], [4, 4, 6], [False, True, False]),
    "negative": ([-1, 2, 3], [4, -2, 6], [True] * 3),
    "padding": ([2, 0, 0, 0], [7, 0, 0, 0], [True] * 4),
    "garbage behind the mask": ([99, 2, -5], [1, 7, 1 << 40], [False, True, False]),
}


CASES = [
    *((lanes, (9, 16), torch.float32) for lanes in LANES),
    *(("negative", shape, dtype) for shape in ((9, 2, 3, 5), (9, 3000)) for dtype in (torch.float32, torch.bfloat16)),
]


@pytest.mark.parametrize(("lanes", "shape", "dtype"), CASES, ids=str)
def test_copies_the_lanes_of_the_mask_and_nothing_else(
    lanes: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, backend: Backend
) -> None:
    before = pool(*shape, dtype=dtype)
    expected = before.clone()
    for source, target, masked in zip(*LANES[lanes], strict=True):
        if masked and source >= 0 and target >= 0:
            expected[target] = before[source]
    states = before.to(device, copy=True)
    sources, targets, mask = LANES[lanes]
    copy_states(
        states,
        torch.tensor(sources, dtype=torch.int64, device=device),
        torch.tensor(targets, dtype=torch.int64, device=device),
        torch.tensor(mask, dtype=torch.bool, device=device),
        backend=backend,
    )
    assert same_bits(states, expected)


def test_one_layer_of_a_pool_of_all_layers(device: torch.device, backend: Backend) -> None:
    before = pool(6, 3, 20)
    states = before.to(device, copy=True)
    copy_states(
        states[:, 1], *torch.tensor([[2], [4]], device=device), torch.tensor([True], device=device), backend=backend
    )
    before[4, 1] = before[2, 1].clone()
    assert same_bits(states, before)


@pytest.mark.usefixtures("unchecked")
def test_a_slot_that_is_not_there_copies_nothing(device: torch.device, backend: Backend) -> None:
    before = pool(6, 20)
    states = before.to(device, copy=True)
    slots = torch.tensor([[6, 2, 3], [1, 6, 5]], device=device)
    copy_states(states, *slots, torch.ones(3, dtype=torch.bool, device=device), backend=backend)
    before[5] = before[3].clone()
    assert same_bits(states, before)


WRONG = {
    "sources": (ValueError, r"sources\[1\] is 6, but the pool has the slots from 0 to 5", ([1, 6], [2, 3])),
    "targets": (ValueError, r"targets\[0\] is 8", ([1, 3], [8, 4])),
    "one target twice": (ValueError, "slot 4 is a target, but another lane writes it", ([1, 3], [4, 4])),
    "a chain": (ValueError, "slot 3 is a target, but another lane reads it", ([1, 3], [3, 4])),
    "counts": (ValueError, "targets must have 2 entries, not 1", ([1, 3], [4])),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_slots_are_named(case: str) -> None:
    error, message, (sources, targets) = WRONG[case]
    with pytest.raises(error, match=message):
        copy_states(
            pool(6, 4), torch.tensor(sources), torch.tensor(targets), torch.ones(len(sources), dtype=torch.bool)
        )


def test_a_wrong_mask_is_named() -> None:
    slots = torch.tensor([1])
    with pytest.raises(TypeError, match=r"mask must be bool, not torch.int64"):
        copy_states(pool(6, 4), slots, slots + 1, slots)
    with pytest.raises(ValueError, match="mask must have 1 contiguous entries"):
        copy_states(pool(6, 4), slots, slots + 1, torch.tensor([True, False]))
