"""Decoding with padding lanes, as a CUDA graph replays it; on a CPU the same step runs without a graph."""

from __future__ import annotations

import pytest
import torch
from kernel_rows import ERROR, Rows, relative_error, same_bits
from kvsan.kernels import (
    Backend,
    PaddedLanes,
    attention_lanes,
    decode_attention_reference,
    state_lanes,
    state_update_reference,
)
from test_state_scan import Scan

pytest.importorskip("triton")

LANES = 6


class Decode:
    """Requests in a pool and lanes over it. Slot 0 is NaN, and so is every other slot that is nobody's."""

    def __init__(self, device: torch.device, backend: Backend) -> None:
        self.rows = Rows([33, 1, 40, 7, 20, 2, 9])
        self.k_pool, self.v_pool, self.table, self.row_ids = self.rows.pools(device)
        self.lanes = attention_lanes(LANES, 4, self.k_pool, self.v_pool, self.table, backend=backend)
        if device.type == "cuda" and backend is not Backend.TORCH:
            self.lanes.capture()

    def batch(self, *requests: int) -> dict[str, torch.Tensor]:
        """The last token of each request, whose key and value are not yet in its slot."""
        chosen = list(requests)
        lens = self.rows.lens[chosen]
        return {
            "queries": self.rows.normal(len(chosen), 4, 16),
            "keys": self.rows.normal(len(chosen), 2, 16),
            "values": self.rows.normal(len(chosen), 2, 16),
            "slots": self.rows.table[self.rows.rows[chosen], lens - 1].long(),
            "rows": self.rows.rows[chosen],
            "lens": lens,
        }

    def expect(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The exact result; leaves in `rows` what the pools must hold afterwards."""
        self.rows.k_pool[batch["slots"]], self.rows.v_pool[batch["slots"]] = batch["keys"], batch["values"]
        pools = (self.rows.k_pool, self.rows.v_pool, self.rows.table)
        return decode_attention_reference(batch["queries"], *pools, batch["rows"], batch["lens"], 0.25)

    def untouched(self) -> bool:
        """Whether every slot but the padding slot is as the batches so far leave it, and the table as it was."""
        pools = ((self.k_pool, self.rows.k_pool), (self.v_pool, self.rows.v_pool))
        return all(same_bits(now[1:], want[1:]) for now, want in pools) and same_bits(self.table, self.rows.table)


@pytest.fixture
def decode(device: torch.device, backend: Backend) -> Decode:
    return Decode(device, backend)


def test_padding_lanes_disturb_nobody(decode: Decode) -> None:
    for requests in ([0, 2, 3, 4, 6], [1, 5], [], [6, 5, 4, 3, 2, 1]):
        batch = decode.batch(*requests)
        exact = decode.expect(batch)
        decode.lanes.load(**batch)
        out = decode.lanes.run()
        assert out.shape == exact.shape
        assert relative_error(out, exact) <= ERROR[torch.float32]
        assert decode.untouched()


def test_nobodys_row_and_slot_may_hold_anything(decode: Decode) -> None:
    decode.table[0], decode.rows.table[0] = 5, 5
    decode.k_pool[0], decode.v_pool[0] = float("inf"), float("nan")
    batch = decode.batch(3)
    exact = decode.expect(batch)
    decode.lanes.load(**batch)
    assert relative_error(decode.lanes.run(), exact) <= ERROR[torch.float32]
    assert decode.untouched()


def test_an_index_left_by_a_larger_batch_writes_into_a_new_tenant(decode: Decode) -> None:
    """The twin with the bug: were the lanes beyond the batch not reset, a slot that has a new tenant would change."""
    first, second = decode.batch(0, 2, 3), decode.batch(4)
    decode.expect(first)
    decode.lanes.load(**first)
    decode.lanes.run()
    tenant = int(first["slots"][2])
    for pool in (decode.k_pool, decode.v_pool, decode.rows.k_pool, decode.rows.v_pool):
        pool[tenant] = 7.0
    decode.expect(second)

    decode.lanes.load(**second)
    decode.lanes.run()
    assert decode.untouched()

    decode.lanes.inputs["slots"][1:3].copy_(first["slots"][1:])
    decode.lanes.run()
    assert not decode.untouched()
    assert same_bits(decode.k_pool[tenant], first["keys"][2])


def test_states_move_on_in_their_slots_only(device: torch.device, backend: Backend) -> None:
    scan = Scan([1] * 7)
    states = scan.states.to(device, copy=True)
    lanes = state_lanes(LANES, states, scan.a.to(device), scan.d.to(device), torch.float32, backend=backend)
    if device.type == "cuda" and backend is not Backend.TORCH:
        lanes.capture()
    for requests in ([0, 1, 2, 3, 4], [6], [], [5, 4, 3, 2, 1, 0]):
        slots, x, delta, b, c = (each[requests] for each in (scan.slots, scan.x, scan.delta, scan.b, scan.c))
        exact, last = state_update_reference(states.cpu(), slots, x, delta, scan.a, b, c, scan.d)
        before = states.cpu().clone()
        lanes.load(slots=slots, x=x, delta=delta, b=b, c=c)
        out = lanes.run()
        assert relative_error(out, exact) <= ERROR[torch.float32]
        assert relative_error(states.cpu()[slots], last) <= ERROR[torch.float32]
        others = [slot for slot in range(1, len(states)) if slot not in slots.tolist()]
        assert same_bits(states.cpu()[others], before[others])


@pytest.fixture
def lanes() -> PaddedLanes:
    pool, table = torch.zeros(4, 2, 8), torch.zeros(3, 5, dtype=torch.int32)
    return attention_lanes(2, 2, pool, pool.clone(), table, backend=Backend.TORCH)


def test_a_batch_that_does_not_fit_is_refused(lanes: PaddedLanes) -> None:
    batch = {name: tensor[:1] for name, tensor in lanes.inputs.items()}
    with pytest.raises(ValueError, match="a batch of 3 requests does not fit into 2 lanes"):
        lanes.load(**{name: tensor.repeat(3, *[1] * (tensor.dim() - 1)) for name, tensor in batch.items()})
    with pytest.raises(ValueError, match=r"must all have one entry a request, not \[0, 1\]"):
        lanes.load(**batch | {"rows": batch["rows"][:0]})
    del batch["rows"]
    with pytest.raises(TypeError, match="the step takes queries, keys, values, slots, rows, lens, not queries"):
        lanes.load(**batch)


def test_a_capture_needs_a_gpu(lanes: PaddedLanes) -> None:
    with pytest.raises(RuntimeError, match="CUDA graphs need a CUDA device, and the lanes are on cpu"):
        lanes.capture()
