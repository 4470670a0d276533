"""Writing request rows: the slots of a matched prefix, then the newly allocated ones, into `req_to_token`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from .backend import Backend, on_device, resolve

_INDEX_DTYPES = (torch.int32, torch.int64)


def write_rows(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    prefix_slots: torch.Tensor,
    prefix_offsets: torch.Tensor,
    new_slots: torch.Tensor,
    new_offsets: torch.Tensor,
    *,
    backend: Backend | None = None,
) -> None:
    """Writes, for every request i of a batch, its slots into the first cells of its row, in place.

    With P = prefix_slots[prefix_offsets[i] : prefix_offsets[i + 1]] and
    N = new_slots[new_offsets[i] : new_offsets[i + 1]], the cells [0, len(P)) of row rows[i] become P and the cells
    [len(P), len(P) + len(N)) become N; all others stay. Of a row that is named twice each cell takes one of the values,
    nobody says which.

    req_to_token    [R, ctx] int32, cells of a row contiguous
    rows            [B] int32 or int64, row of each request, in [0, R)
    prefix_slots    [sum of prefix lengths] int32 or int64, requests one after the other
    prefix_offsets  [B + 1] int32 or int64, from 0 to len(prefix_slots), never falling
    new_slots       [sum of new lengths] int32 or int64
    new_offsets     [B + 1] int32 or int64, from 0 to len(new_slots), never falling

    Raises TypeError and ValueError for a wrong dtype, shape, layout or device. Values are checked on a CPU
    (ValueError); on a GPU that would make the host wait, so there offsets must be right, and rows and cells outside the
    table are left out. The backend is chosen by device; RuntimeError for one that cannot run here.
    """
    batch = _check_layout(req_to_token, rows, prefix_slots, prefix_offsets, new_slots, new_offsets)
    if req_to_token.device.type == "cpu":
        _check_values(req_to_token, rows, prefix_slots, prefix_offsets, new_slots, new_offsets)
    chosen = resolve(backend, req_to_token.device, cuda=True)
    if chosen is Backend.TORCH:
        write_rows_reference(req_to_token, rows, prefix_slots, prefix_offsets, new_slots, new_offsets)
        return
    num_rows, ctx = req_to_token.shape
    if batch == 0 or ctx == 0:
        return
    if chosen is Backend.CUDA:
        from .cuda_ext import write_rows_cuda

        write_rows_cuda(req_to_token, rows, prefix_slots, prefix_offsets, new_slots, new_offsets)
        return

    from .row_write_kernel import BLOCK, MAX_PROGRAMS_PER_ROW, write_rows_kernel

    # Lengths may live on the GPU, so the grid follows the longest row there can be, not the longest there is.
    grid = (batch, min(-(-ctx // BLOCK), MAX_PROGRAMS_PER_ROW))
    with on_device(req_to_token.device):
        write_rows_kernel[grid](
            req_to_token,
            req_to_token.stride(0),
            num_rows,
            ctx,
            rows,
            prefix_slots,
            prefix_offsets,
            new_slots,
            new_offsets,
            BLOCK=BLOCK,
            enable_fp_fusion=True,  # nothing to fuse; keeps Triton 3.9 from warning about its default
        )


def write_rows_reference(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    prefix_slots: torch.Tensor,
    prefix_offsets: torch.Tensor,
    new_slots: torch.Tensor,
    new_offsets: torch.Tensor,
) -> None:
    """What `write_rows` computes, request by request, unchecked; on a GPU it waits for the lengths."""
    prefix_at: list[int] = prefix_offsets.tolist()
    new_at: list[int] = new_offsets.tolist()
    for i, row in enumerate(rows.tolist()):
        cells = req_to_token[row]
        prefix = prefix_slots[prefix_at[i] : prefix_at[i + 1]]
        new = new_slots[new_at[i] : new_at[i + 1]]
        cells[: len(prefix)] = prefix
        cells[len(prefix) : len(prefix) + len(new)] = new


def _check_layout(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    prefix_slots: torch.Tensor,
    prefix_offsets: torch.Tensor,
    new_slots: torch.Tensor,
    new_offsets: torch.Tensor,
) -> int:
    """Checks what a tensor's header says; returns the batch size."""
    if req_to_token.dtype != torch.int32:
        raise TypeError(f"req_to_token must be int32, not {req_to_token.dtype}")
    if req_to_token.dim() != 2:
        raise ValueError(f"req_to_token must have shape [rows, ctx], not {list(req_to_token.shape)}")
    if req_to_token.shape[1] > 1 and req_to_token.stride(1) != 1:
        raise ValueError(f"the cells of a req_to_token row must be contiguous, not {req_to_token.stride(1)} apart")
    for name, tensor in (
        ("rows", rows),
        ("prefix_slots", prefix_slots),
        ("prefix_offsets", prefix_offsets),
        ("new_slots", new_slots),
        ("new_offsets", new_offsets),
    ):
        if tensor.dtype not in _INDEX_DTYPES:
            raise TypeError(f"{name} must be int32 or int64, not {tensor.dtype}")
        if tensor.dim() != 1:
            raise ValueError(f"{name} must have one dimension, not shape {list(tensor.shape)}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous: call .contiguous() on it")
        if tensor.device != req_to_token.device:
            raise ValueError(f"{name} is on {tensor.device} but req_to_token on {req_to_token.device}")
    batch = len(rows)
    for name, offsets in (("prefix_offsets", prefix_offsets), ("new_offsets", new_offsets)):
        if len(offsets) != batch + 1:
            raise ValueError(f"{name} has {len(offsets)} entries; {batch} rows need {batch + 1}")
    return batch


def _check_values(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    prefix_slots: torch.Tensor,
    prefix_offsets: torch.Tensor,
    new_slots: torch.Tensor,
    new_offsets: torch.Tensor,
) -> None:
    """Checks what only the contents of CPU tensors say."""
    num_rows, ctx = req_to_token.shape
    prefix_lens = _lengths("prefix", prefix_offsets, len(prefix_slots))
    new_lens = _lengths("new", new_offsets, len(new_slots))
    row_ids: list[int] = rows.tolist()
    for i, (row, prefix_len, new_len) in enumerate(zip(row_ids, prefix_lens, new_lens, strict=True)):
        if not 0 <= row < num_rows:
            raise ValueError(f"rows[{i}] is {row}, but req_to_token has the rows 0 to {num_rows - 1}")
        if prefix_len + new_len > ctx:
            raise ValueError(
                f"request {i} (row {row}) brings {prefix_len} prefix and {new_len} new slots, "
                f"but a row has only {ctx} cells"
            )


def _lengths(name: str, offsets: torch.Tensor, count: int) -> Sequence[int]:
    """The length of every segment, after checking that the offsets run from 0 to `count` and never fall."""
    at: list[int] = offsets.tolist()
    if at[0] != 0 or at[-1] != count:
        raise ValueError(
            f"{name}_offsets runs from {at[0]} to {at[-1]}; with {count} {name} slots it must from 0 to {count}"
        )
    lengths = [end - begin for begin, end in pairwise(at)]
    for i, length in enumerate(lengths):
        if length < 0:
            raise ValueError(f"{name}_offsets falls from {at[i]} to {at[i + 1]} at request {i}")
    return lengths
