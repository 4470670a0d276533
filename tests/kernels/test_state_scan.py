"""The selective scan and the state update on every backend that this process has, against float64."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from kernel_rows import ERROR, relative_error, same_bits
from kvsan.kernels import (
    Backend,
    selective_scan,
    selective_scan_reference,
    state_update,
    state_update_reference,
)

pytest.importorskip("triton")

LENGTHS = {
    "empty": [],
    "one token": [1],
    "no token": [0],
    "several": [3, 0, 9, 1],
}


class Scan:
    """Requests that scan tokens from random states; every slot that is nobody's is NaN."""

    def __init__(
        self,
        lengths: list[int],
        channels: int = 70,
        size: int = 5,
        *,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=draw)

        batch, tokens = len(lengths), sum(lengths)
        self.slots = torch.randperm(batch + 4, generator=draw)[:batch] + 1
        self.states = torch.full((batch + 6, channels, size), float("nan"))
        self.states[self.slots] = normal(batch, channels, size)
        self.fresh = torch.zeros(batch, dtype=torch.bool)
        self.offsets = torch.tensor([0, *accumulate(lengths)], dtype=torch.int64)
        self.x, self.delta = normal(tokens, channels).to(dtype), normal(tokens, channels).exp().to(dtype)
        self.a = -normal(channels, size).exp()
        self.b, self.c = normal(tokens, size).to(dtype), normal(tokens, size).to(dtype)
        self.d = normal(channels)

    def data(self) -> tuple[torch.Tensor, ...]:
        return self.x, self.delta, self.a, self.b, self.c, self.d

    def scanned(self, device: torch.device, backend: Backend) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs, and the pool afterwards."""
        arguments = (self.states, self.slots, self.fresh, self.offsets, *self.data())
        states, *rest = (each.to(device, copy=True) for each in arguments)
        out = selective_scan(states, *rest, backend=backend)
        return out.cpu(), states.cpu()

    def updated(self, device: torch.device, backend: Backend) -> tuple[torch.Tensor, torch.Tensor]:
        states, *rest = (each.to(device, copy=True) for each in (self.states, self.slots, *self.data()))
        out = state_update(states, *rest, backend=backend)
        return out.cpu(), states.cpu()

    def untouched(self, states: torch.Tensor, *but: int) -> bool:
        """Whether every slot that no request has, or that is named here, is what it was."""
        mine = set(self.slots.tolist()) - set(but)
        others = [slot for slot in range(len(states)) if slot not in mine]
        return same_bits(states[others], self.states[others])


CASES = [
    *((lengths, (70, 5), torch.float32) for lengths in LENGTHS),
    *(("several", size, torch.float32) for size in ((16, 1), (64, 16), (3, 130))),
    *(("several", (70, 5), dtype) for dtype in (torch.float16, torch.bfloat16)),
]


@pytest.mark.parametrize(("lengths", "size", "dtype"), CASES, ids=str)
def test_the_scan_agrees_with_float64(
    lengths: str, size: tuple[int, int], dtype: torch.dtype, device: torch.device, backend: Backend
) -> None:
    scan = Scan(LENGTHS[lengths], *size, dtype=dtype)
    out, states = scan.scanned(device, backend)
    exact, last = selective_scan_reference(scan.states, scan.slots, scan.fresh, scan.offsets, *scan.data())
    assert out.dtype == dtype
    assert relative_error(out, exact) <= ERROR[dtype]
    assert relative_error(states[scan.slots], last) <= ERROR[torch.float32]
    assert scan.untouched(states)


@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize(("batch", "size"), [(0, (70, 5)), (1, (16, 1)), (5, (70, 5)), (2, (3, 130))], ids=str)
def test_the_update_agrees_with_float64(
    batch: int, size: tuple[int, int], dtype: torch.dtype, device: torch.device, backend: Backend
) -> None:
    scan = Scan([1] * batch, *size, dtype=dtype)
    out, states = scan.updated(device, backend)
    exact, last = state_update_reference(scan.states, scan.slots, *scan.data())
    assert relative_error(out, exact) <= ERROR[dtype]
    assert relative_error(states[scan.slots], last) <= ERROR[torch.float32]
    assert scan.untouched(states)


def test_a_fresh_request_starts_from_zeros_whatever_its_slot_holds(device: torch.device, backend: Backend) -> None:
    scan = Scan([4, 4])
    scan.fresh[0] = True
    scan.states[scan.slots[0]] = float("nan")
    dirty = scan.scanned(device, backend)
    scan.states[scan.slots[0]] = 0.0
    scan.fresh[0] = False
    clean = scan.scanned(device, backend)
    assert same_bits(dirty[0], clean[0]) and same_bits(dirty[1][scan.slots], clean[1][scan.slots])


def test_a_fresh_request_without_tokens_leaves_zeros(device: torch.device, backend: Backend) -> None:
    scan = Scan([0])
    scan.fresh[0] = True
    _, states = scan.scanned(device, backend)
    assert (states[scan.slots[0]] == 0).all()


def test_a_negative_slot_starts_from_zeros_and_keeps_nothing(device: torch.device, backend: Backend) -> None:
    scan = Scan([1, 1])
    dropped = int(scan.slots[1])
    scan.states[dropped] = 0.0
    expected = [scan.scanned(device, backend), scan.updated(device, backend)]
    scan.states[dropped] = float("nan")
    scan.slots[1] = -1
    for (out, _), (got, states) in zip(
        expected, [scan.scanned(device, backend), scan.updated(device, backend)], strict=True
    ):
        assert same_bits(got, out)
        assert scan.untouched(states)


def test_two_chunks_are_one_scan(device: torch.device, backend: Backend) -> None:
    """To the bit, but on torch, which keeps float64 within a chunk and float32 between two."""
    whole = Scan([11])
    out, states = whole.scanned(device, backend)
    parts = []
    for begin, end in ((0, 4), (4, 11)):
        part = Scan([11])
        part.offsets = torch.tensor([0, end - begin])
        part.x, part.delta, part.b, part.c = (each[begin:end] for each in (whole.x, whole.delta, whole.b, whole.c))
        part.states = whole.states
        got, whole.states = part.scanned(device, backend)
        parts.append(got)
    if backend is Backend.TORCH:
        assert relative_error(torch.cat(parts), out) <= ERROR[torch.float32]
    else:
        assert same_bits(torch.cat(parts), out) and same_bits(whole.states, states)


def test_a_scan_of_one_token_is_an_update(device: torch.device, backend: Backend) -> None:
    scan = Scan([1, 1, 1])
    for a, b in zip(scan.scanned(device, backend), scan.updated(device, backend), strict=True):
        assert same_bits(a, b)


def test_one_layer_of_a_pool_of_all_layers(device: torch.device, backend: Backend) -> None:
    scan = Scan([1, 1])
    _, expected = scan.updated(device, backend)
    layers = torch.full((len(scan.states), 2, 70, 5), float("nan"), device=device)
    layers[:, 1] = scan.states.to(device)
    state_update(layers[:, 1], *(each.to(device) for each in (scan.slots, *scan.data())), backend=backend)
    assert same_bits(layers[:, 1], expected) and layers[:, 0].isnan().all()


@pytest.mark.usefixtures("unchecked")
def test_a_slot_that_is_not_there_is_left_alone(device: torch.device, backend: Backend) -> None:
    scan = Scan([2, 2])
    scan.slots[0] = len(scan.states)
    out, states = scan.scanned(device, backend)
    scan.slots[0] = -1
    same_out, same_states = scan.scanned(device, backend)
    assert same_bits(out, same_out) and same_bits(states, same_states)


WRONG = {
    "states dtype": (TypeError, "states must be float32, not torch.float16", "states", torch.Tensor.half),
    "fresh dtype": (TypeError, "fresh must be bool", "fresh", torch.Tensor.int),
    "fresh count": (ValueError, "fresh must have 2 contiguous entries", "fresh", lambda t: t[:1]),
    "delta dtype": (TypeError, "delta must be float32, not torch.bfloat16", "delta", torch.Tensor.bfloat16),
    "a shape": (ValueError, r"a must have shape \[channels, N\] = \[70, 5\], not \[5, 70\]", "a", torch.Tensor.t),
    "b shape": (ValueError, r"b must have shape \[T, N\] = \[5, 5\]", "b", lambda t: t[:4]),
    "offsets": (ValueError, "offsets runs from 0 to 5; with 4 tokens", None, None),
    "slot": (ValueError, r"slots\[0\] is \d+, but the pool has the slots from 0 to 7", "slots", lambda t: t + 8),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_named(case: str) -> None:
    error, message, name, change = WRONG[case]
    scan = Scan([3, 2])
    if name is None:
        scan.x, scan.delta, scan.b, scan.c = (each[:4] for each in (scan.x, scan.delta, scan.b, scan.c))
    else:
        setattr(scan, name, change(getattr(scan, name)))
    with pytest.raises(error, match=message):
        selective_scan(scan.states, scan.slots, scan.fresh, scan.offsets, *scan.data())


def test_an_update_takes_one_token_a_slot() -> None:
    scan = Scan([2, 2])
    with pytest.raises(ValueError, match="x must have 2 tokens, one for each slot, not 4"):
        state_update(scan.states, scan.slots, *scan.data())
