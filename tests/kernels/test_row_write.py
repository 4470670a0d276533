"""The row write on every backend that this process has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")

from kvsan.kernels import Backend, choose, write_rows, write_rows_reference  # noqa: E402
from kvsan.kernels.backend import interpreter_requested  # noqa: E402

pytest.importorskip("triton")

HAS_CUDA_VERSION = True


def device_of(backend: Backend) -> torch.device:
    return torch.device("cuda" if backend in (Backend.TRITON, Backend.CUDA) else "cpu")


def offsets_of(lengths: Sequence[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=dtype)


class Batch:
    """A batch of random requests; row i of the table was -(i + 1) before."""

    def __init__(
        self,
        rows: Sequence[int],
        prefix_lens: Sequence[int],
        new_lens: Sequence[int],
        *,
        num_rows: int = 8,
        ctx: int = 64,
        seed: int = 0,
        dtype: torch.dtype = torch.int64,
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.before = -(torch.arange(num_rows, dtype=torch.int32) + 1)[:, None].repeat(1, ctx)
        self.rows = torch.tensor(rows, dtype=dtype)
        self.prefix_slots = torch.randint(2**31 - 1, (sum(prefix_lens),), generator=draw, dtype=torch.int64).to(dtype)
        self.prefix_offsets = offsets_of(prefix_lens, dtype)
        self.new_slots = torch.randint(2**31 - 1, (sum(new_lens),), generator=draw, dtype=torch.int64).to(dtype)
        self.new_offsets = offsets_of(new_lens, dtype)

    def arguments(self, device: torch.device | str = "cpu") -> tuple[torch.Tensor, ...]:
        tensors = (self.rows, self.prefix_slots, self.prefix_offsets, self.new_slots, self.new_offsets)
        return tuple(tensor.to(device) for tensor in tensors)

    def written(self, backend: Backend) -> torch.Tensor:
        device = device_of(backend)
        table = self.before.to(device, copy=True)
        write_rows(table, *self.arguments(device), backend=backend)
        return table.cpu()

    def expected(self) -> torch.Tensor:
        """Cell by cell, from the definition."""
        table = self.before.clone()
        for i, row in enumerate(self.rows.tolist()):
            prefix = self.prefix_slots[self.prefix_offsets[i] : self.prefix_offsets[i + 1]].tolist()
            new = self.new_slots[self.new_offsets[i] : self.new_offsets[i + 1]].tolist()
            for cell, slot in enumerate(prefix + new):
                table[row, cell] = slot
        return table


CASES = {
    "one row": ([3], [5], [4]),
    "empty prefix": ([3, 1], [0, 0], [4, 7]),
    "nothing new": ([3, 1], [4, 7], [0, 0]),
    "mixed": ([7, 0, 2, 5], [0, 9, 3, 0], [6, 0, 1, 0]),
    "a full row": ([0], [40], [24]),
    "a full row of prefix": ([7], [64], [0]),
    "only empty requests": ([1, 2], [0, 0], [0, 0]),
    "empty batch": ([], [], []),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_writes_prefix_then_new_slots_and_nothing_else(case: str, dtype: torch.dtype, backend: Backend) -> None:
    batch = Batch(*CASES[case], dtype=dtype)
    assert torch.equal(batch.written(backend), batch.expected())


@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_the_reference_on_random_batches(seed: int, backend: Backend) -> None:
    draw = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=draw))

    num_rows, ctx = number(1, 12), number(1, 1500)
    rows = torch.randperm(num_rows, generator=draw)[: number(0, num_rows)].tolist()
    prefix_lens = [number(0, ctx) * number(0, 1) for _ in rows]
    new_lens = [number(0, ctx - prefix) for prefix in prefix_lens]
    batch = Batch(rows, prefix_lens, new_lens, num_rows=num_rows, ctx=ctx, seed=seed)

    reference = batch.before.clone()
    write_rows_reference(reference, *batch.arguments())
    written = batch.written(backend)

    assert torch.equal(written, reference)
    untouched = [row for row in range(num_rows) if row not in rows]
    assert torch.equal(written[untouched], batch.before[untouched])


def test_a_row_longer_than_one_round_of_its_programs(backend: Backend) -> None:
    batch = Batch([1, 0], [700, 9000], [8500, 17], num_rows=2, ctx=9301)
    assert torch.equal(batch.written(backend), batch.expected())


def test_a_table_that_is_a_slice_of_a_wider_one(backend: Backend) -> None:
    batch = Batch([2, 0], [3, 1], [4, 0], num_rows=4, ctx=16)
    wide = torch.full((4, 40), -9, dtype=torch.int32, device=device_of(backend))
    wide[:, 8:24] = batch.before.to(wide.device)
    write_rows(wide[:, 8:24], *batch.arguments(wide.device), backend=backend)
    assert torch.equal(wide[:, 8:24].cpu(), batch.expected())
    assert (wide[:, :8] == -9).all() and (wide[:, 24:] == -9).all()


def test_the_kernel_writes_nothing_outside_the_table(backend: Backend) -> None:
    """Where values cannot be checked, the kernel itself leaves out what is not there."""
    if backend not in (Backend.INTERPRETER, Backend.TRITON):
        pytest.skip("this test launches the Triton kernel")
    from kvsan.kernels.row_write_kernel import write_rows_kernel

    device = device_of(backend)
    memory = torch.full((5, 16), -1, dtype=torch.int32, device=device)
    table = memory[1:4]
    batch = Batch([-1, 3, 1], [4, 4, 10], [4, 4, 10], num_rows=3, ctx=16)
    write_rows_kernel[(3, 1)](table, 16, 3, 16, *batch.arguments(device), BLOCK=16)
    slots = torch.cat([batch.prefix_slots[8:], batch.new_slots[8:]])[:16]
    assert torch.equal(table[1].cpu(), slots.to(torch.int32))
    memory[2] = -1
    assert (memory == -1).all()


WRONG = {
    "table dtype": (TypeError, "req_to_token must be int32, not torch.int64", {0: lambda t: t.long()}),
    "table shape": (ValueError, r"shape \[rows, ctx\], not \[128\]", {0: lambda t: t.flatten()}),
    "table layout": (ValueError, "contiguous, not 16 apart", {0: lambda t: t.reshape(8, 16).t()}),
    "rows dtype": (TypeError, "rows must be int32 or int64, not torch.float32", {1: lambda t: t.float()}),
    "rows shape": (ValueError, r"rows must have one dimension, not shape \[2, 1\]", {1: lambda t: t[:, None]}),
    "slots layout": (
        ValueError,
        "prefix_slots must be contiguous",
        {2: lambda t: torch.stack([t, t], 1)[:, 0]},
    ),
    "device": (ValueError, "new_slots is on meta but req_to_token on cpu", {4: lambda t: t.to("meta")}),
    "too few offsets": (ValueError, "prefix_offsets has 2 entries; 2 rows need 3", {3: lambda t: t[:2]}),
    "offsets end": (ValueError, "new_offsets runs from 0 to 6; with 7 new slots", {5: lambda t: t - (t == 7).long()}),
    "offsets fall": (
        ValueError,
        "prefix_offsets falls from 9 to 5 at request 1",
        {3: lambda t: torch.tensor([0, 9, 5])},
    ),
    "row too large": (ValueError, r"rows\[1\] is 8, but req_to_token has the rows 0 to 7", {1: lambda t: t + 3}),
    "row negative": (ValueError, r"rows\[0\] is -1", {1: lambda t: t - 3}),
    "too long": (ValueError, "brings 5 prefix and 7 new slots, but a row has only 11 cells", {0: lambda t: t[:, :11]}),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_named(case: str) -> None:
    error, message, changes = WRONG[case]
    batch = Batch([2, 5], [0, 5], [0, 7], ctx=16)
    arguments = [batch.before, *batch.arguments()]
    for position, change in changes.items():
        arguments[position] = change(arguments[position])
    kept = arguments[0].clone()
    with pytest.raises(error, match=message):
        write_rows(*arguments)
    assert torch.equal(arguments[0], kept)


def test_a_backend_that_cannot_run_here_says_what_to_do() -> None:
    arguments = (Batch([1], [1], [1]).before, *Batch([1], [1], [1]).arguments())
    if interpreter_requested():
        with pytest.raises(RuntimeError, match="unset it to compile"):
            write_rows(*arguments, backend=Backend.TRITON)
    else:
        with pytest.raises(RuntimeError, match="set TRITON_INTERPRET=1"):
            write_rows(*arguments, backend=Backend.INTERPRETER)
        with pytest.raises(RuntimeError, match="the tensors are on cpu"):
            write_rows(*arguments, backend=Backend.TRITON)


def test_the_backend_follows_the_device_and_the_environment() -> None:
    on_cpu = Backend.INTERPRETER if interpreter_requested() else Backend.TORCH
    on_gpu = Backend.INTERPRETER if interpreter_requested() else Backend.TRITON
    assert choose(torch.device("cpu")) is on_cpu
    assert choose(torch.device("cuda:0")) is on_gpu
