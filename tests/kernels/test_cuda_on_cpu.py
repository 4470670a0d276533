"""The CUDA C++ kernels carried out on a CPU: their device code, compiled for the host with `cuda_on_cpu/device.h`.

It shows that indexing, reductions and barriers are right without a GPU; it does not show what a GPU's memory model or
16-bit arithmetic would.
"""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from kernel_rows import ERROR, Rows, relative_error
from kvsan.kernels import decode_attention_reference
from kvsan.kernels.cuda_ext import SOURCES
from test_decode_attention import HEADS
from test_row_write import CASES, Batch


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler: neither g++ nor clang++ is on PATH")
    here = Path(__file__).parent / "cuda_on_cpu"
    library = tmp_path_factory.mktemp("cuda_on_cpu") / "kernels.so"
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", SOURCES]
    ran = subprocess.run([*command, here / "harness.cpp", "-o", library], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ctypes.CDLL(str(library))


def call(function: ctypes._CFuncPtr, *arguments: torch.Tensor | int | float) -> None:
    """Calls with tensors as pointers, integers as int64 and floats as float."""
    converted: list[object] = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            converted.append(ctypes.c_void_p(argument.data_ptr()))
        else:
            converted.append(ctypes.c_int64(argument) if isinstance(argument, int) else ctypes.c_float(argument))
    assert function(*converted) == 0


def write_rows(kernels: ctypes.CDLL, table: torch.Tensor, batch: Batch, blocks: int) -> None:
    rows, prefix_slots, prefix_offsets, new_slots, new_offsets = batch.arguments()
    slots = (prefix_slots, prefix_offsets, new_slots, new_offsets)
    call(kernels.write_rows, table, table.stride(0), *table.shape, rows, len(rows), *slots, blocks)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("blocks", [1, 3])
def test_write_rows(case: str, blocks: int, kernels: ctypes.CDLL) -> None:
    batch = Batch(*CASES[case])
    table = batch.before.clone()
    write_rows(kernels, table, batch, blocks)
    assert torch.equal(table, batch.expected())


def test_write_rows_writes_nothing_outside_the_table(kernels: ctypes.CDLL) -> None:
    memory = torch.full((5, 16), -1, dtype=torch.int32)
    batch = Batch([-1, 3, 1], [4, 4, 10], [4, 4, 10], num_rows=3, ctx=16)
    write_rows(kernels, memory[1:4], batch, 1)
    slots = torch.cat([batch.prefix_slots[8:], batch.new_slots[8:]])[:16]
    assert torch.equal(memory[2], slots.to(torch.int32))
    memory[2] = -1
    assert (memory == -1).all()


def decode(kernels: ctypes.CDLL, rows: Rows, queries: torch.Tensor, row_ids: torch.Tensor) -> torch.Tensor:
    out = torch.full((*queries.shape[:2], rows.v_dim), float("nan"))
    pools = (rows.k_pool, rows.v_pool, rows.table, row_ids, rows.lens)
    strides = (rows.k_pool.stride(0), rows.v_pool.stride(0), rows.table.stride(0))
    sizes = (len(rows.k_pool), *rows.table.shape, *queries.shape[:2], rows.q_heads // rows.heads)
    scale = rows.dim**-0.5 * math.log2(math.e)
    call(kernels.decode_attention, out, queries, *pools, *strides, *sizes, rows.dim, rows.v_dim, scale)
    return out


def exact(rows: Rows, queries: torch.Tensor) -> torch.Tensor:
    pools = (rows.k_pool, rows.v_pool, rows.table, rows.rows, rows.lens)
    return decode_attention_reference(queries, *pools, rows.dim**-0.5)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("lengths", [[], [1], [0], [33, 1, 0, 64, 3]], ids=str)
def test_decode_attention(lengths: list[int], heads: str, kernels: ctypes.CDLL) -> None:
    rows = Rows(lengths, **HEADS[heads])
    queries = rows.normal(len(lengths), rows.q_heads, rows.dim)
    assert relative_error(decode(kernels, rows, queries, rows.rows), exact(rows, queries)) <= ERROR[torch.float32]


def test_decode_attention_reads_nothing_outside_table_and_pool(kernels: ctypes.CDLL) -> None:
    rows = Rows([20, 20, 20, 20])
    queries = rows.normal(4, 4, 16)
    row_ids = rows.rows.clone()
    row_ids[0], row_ids[1] = -1, len(rows.table)
    first = int(rows.rows[2])
    kept = rows.table[first].clone()
    rows.table[first, 3:6] = torch.tensor([-1, len(rows.k_pool), 2**31 - 1], dtype=torch.int32)
    out = decode(kernels, rows, queries, row_ids)
    assert (out[:2] == 0).all()
    rows.table[first, 3:17] = kept[6:20]
    rows.lens[2] = 17
    assert relative_error(out[2:], exact(rows, queries)[2:]) <= ERROR[torch.float32]


def test_a_barrier_that_some_threads_never_reach_is_found(kernels: ctypes.CDLL) -> None:
    assert kernels.half_a_warp_waits() == 1
