"""What the launchers check before a kernel runs: headers of tensors everywhere, their contents on a CPU only.

Reading values that live on a GPU would make the host wait for it, so there the kernels leave out what is not there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

INDEX_DTYPES = (torch.int32, torch.int64)
DATA_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_DIM = 256


def check_data(
    name: str,
    tensor: torch.Tensor,
    words: str,
    device: torch.device,
    *,
    dtypes: Sequence[torch.dtype] = DATA_DTYPES,
    shape: Sequence[int] | None = None,
) -> None:
    """Checks a dense tensor: its dtype, its number of dimensions (those of `words`, such as "[n, heads, dim]"), its
    shape where one is given, that it is contiguous and where it lives; TypeError or ValueError."""
    _check_header(name, tensor, words, device, dtypes)
    if shape is not None and tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {words} = {list(shape)}, not {list(tensor.shape)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous: call .contiguous() on it")


def check_pool(
    name: str,
    pool: torch.Tensor,
    words: str,
    device: torch.device,
    *,
    dtypes: Sequence[torch.dtype] = DATA_DTYPES,
    shape: Sequence[int] | None = None,
) -> None:
    """As `check_data` for a pool: `shape` is that of one slot, and only a slot's own elements must be contiguous, so
    that one layer of a pool of all layers will do."""
    _check_header(name, pool, words, device, dtypes)
    if shape is not None and tuple(pool.shape[1:]) != tuple(shape):
        raise ValueError(f"a slot of {name} {words} must have shape {list(shape)}, not {list(pool.shape[1:])}")
    if pool.shape[0] and not pool[0].is_contiguous():
        raise ValueError(f"the elements of a slot of {name} must be contiguous")


def check_indices(name: str, tensor: torch.Tensor, count: int, device: torch.device) -> None:
    """Checks a vector of `count` slots, rows, lengths or offsets."""
    _check_header(name, tensor, "[n]", device, INDEX_DTYPES)
    if len(tensor) != count:
        raise ValueError(f"{name} must have {count} entries, not {len(tensor)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous: call .contiguous() on it")


def check_table(req_to_token: torch.Tensor, device: torch.device) -> None:
    """Checks the table of rows, [rows, ctx] int32 with the cells of a row contiguous."""
    _check_header("req_to_token", req_to_token, "[rows, ctx]", device, (torch.int32,))
    if req_to_token.shape[1] > 1 and req_to_token.stride(1) != 1:
        raise ValueError(f"the cells of a req_to_token row must be contiguous, not {req_to_token.stride(1)} apart")


def check_range(name: str, tensor: torch.Tensor, low: int, high: int, what: str) -> None:
    """Checks that the values of a CPU tensor lie in [low, high); ValueError names the first that does not."""
    wrong = ((tensor < low) | (tensor >= high)).nonzero()
    if len(wrong):
        at = int(wrong[0, 0])
        raise ValueError(f"{name}[{at}] is {int(tensor[at])}, but {what} from {low} to {high - 1}")


def check_offsets(name: str, offsets: torch.Tensor, count: int) -> None:
    """Checks that the values of a CPU tensor run from 0 to `count` and never fall."""
    begin, end = int(offsets[0]), int(offsets[-1])
    if begin != 0 or end != count:
        raise ValueError(f"{name} runs from {begin} to {end}; with {count} tokens it must from 0 to {count}")
    falls = (offsets[1:] < offsets[:-1]).nonzero()
    if len(falls):
        at = int(falls[0, 0])
        raise ValueError(f"{name} falls from {int(offsets[at])} to {int(offsets[at + 1])} at request {at}")


def check_row_cells(req_to_token: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor, num_slots: int) -> None:
    """Checks on a CPU that the first cells of each row, as many as its length says, name slots of the pool."""
    for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        cells = req_to_token[row, :length]
        wrong = ((cells < 0) | (cells >= num_slots)).nonzero()
        if len(wrong):
            cell = int(wrong[0, 0])
            raise ValueError(
                f"cell {cell} of row {row} (request {i}) names slot {int(cells[cell])}, "
                f"but the pool has the slots from 0 to {num_slots - 1}"
            )


def _check_header(
    name: str, tensor: torch.Tensor, words: str, device: torch.device, dtypes: Sequence[torch.dtype]
) -> None:
    if tensor.dtype not in dtypes:
        allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name} must be {allowed}, not {tensor.dtype}")
    if tensor.dim() != words.count(",") + 1:
        raise ValueError(f"{name} must have shape {words}, not {list(tensor.shape)}")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, but the others are on {device}")
