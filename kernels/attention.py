"""Paged attention through rows: decode (one query a request) and extend (several, causal, behind a prefix).

Both read the keys and values of a request's tokens from the slots that its row of `req_to_token` names, compute in
float32 and round once at the end. `tests/kernels` compares them with `decode_attention_reference` and
`extend_attention_reference`, which are plain torch in float64.
"""

from __future__ import annotations

import math

import torch

from .attention_reference import decode_attention_reference, extend_attention_reference
from .backend import Backend, on_device, resolve
from .checks import (
    DATA_DTYPES,
    MAX_HEAD_DIM,
    check_data,
    check_indices,
    check_offsets,
    check_pool,
    check_range,
    check_row_cells,
    check_table,
)

_LOG2_E = math.log2(math.e)


def decode_attention(
    queries: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    lens: torch.Tensor,
    *,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    backend: Backend | None = None,
) -> torch.Tensor:
    """Softmax attention of one query of each request over the tokens in the first lens[i] cells of row rows[i].

    queries       [B, q_heads, dim] float16, bfloat16 or float32; dim at most 256
    k_pool        [slots, heads, dim] of the queries' dtype, the elements of a slot contiguous; q_heads is a multiple of
                  heads, and query head h reads head h // (q_heads // heads)
    v_pool        [slots, heads, v_dim], as k_pool; v_dim at most 256
    req_to_token  [rows, ctx] int32, the cells of a row contiguous
    rows, lens    [B] int32 or int64; the length counts the query's own token; of length 0 the result is zeros
    scale         what scores are multiplied with, by default dim ** -0.5
    out           [B, q_heads, v_dim] of the queries' dtype, to be written and returned; by default a new tensor

    Raises TypeError and ValueError for a wrong dtype, shape, layout or device, and on a CPU ValueError for rows,
    lengths and cells outside what they index; on a GPU a row outside the table gives zeros, and a cell outside the pool
    counts as empty. RuntimeError for a backend that cannot run here.
    """
    batch, device = len(rows), queries.device
    out = _check_layout(queries, k_pool, v_pool, req_to_token, rows, out, batch)
    check_indices("lens", lens, batch, device)
    if device.type == "cpu":
        check_range("rows", rows, 0, len(req_to_token), "req_to_token has the rows")
        check_range("lens", lens, 0, req_to_token.shape[1] + 1, "a row holds lengths")
        check_row_cells(req_to_token, rows, lens, len(k_pool))
    scale = queries.shape[2] ** -0.5 if scale is None else scale
    chosen = resolve(backend, device, cuda=True)
    if chosen is Backend.TORCH:
        return out.copy_(decode_attention_reference(queries, k_pool, v_pool, req_to_token, rows, lens, scale))
    if out.numel() == 0:
        return out
    if chosen is Backend.CUDA:
        from .cuda_ext import decode_attention_cuda

        decode_attention_cuda(out, queries, k_pool, v_pool, req_to_token, rows, lens, scale)
        return out

    from .attention_kernel import decode_attention_kernel

    heads = k_pool.shape[1]
    group = queries.shape[1] // heads
    with on_device(device):
        decode_attention_kernel[(batch, heads)](
            out,
            queries,
            k_pool,
            v_pool,
            req_to_token,
            rows,
            lens,
            k_pool.stride(0),
            v_pool.stride(0),
            req_to_token.stride(0),
            len(k_pool),
            *req_to_token.shape,
            scale * _LOG2_E,
            GROUP=group,
            BLOCK_M=max(16, _power_of_two(group)),
            **_blocks(k_pool, v_pool, chosen),
            enable_fp_fusion=True,
        )
    return out


def extend_attention(
    queries: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    offsets: torch.Tensor,
    prefix_lens: torch.Tensor,
    *,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    backend: Backend | None = None,
) -> torch.Tensor:
    """Causal softmax attention of each request's new tokens over its prefix and the new tokens up to their own.

    Query j of request i is queries[offsets[i] + j]; it stands at position p = prefix_lens[i] + j and sees the tokens in
    the cells [0, p] of row rows[i]. The new tokens' keys and values are in the pools already (see `store_kv`).

    queries            [T, q_heads, dim] float16, bfloat16 or float32; dim at most 256
    k_pool, v_pool, req_to_token, scale, out  as in `decode_attention`
    rows, prefix_lens  [B] int32 or int64
    offsets            [B + 1] int32 or int64, from 0 to T, never falling

    Raises what `decode_attention` raises; on a GPU offsets must be right.
    """
    batch, tokens, device = len(rows), len(queries), queries.device
    out = _check_layout(queries, k_pool, v_pool, req_to_token, rows, out, tokens)
    check_indices("offsets", offsets, batch + 1, device)
    check_indices("prefix_lens", prefix_lens, batch, device)
    ctx = req_to_token.shape[1]
    if device.type == "cpu":
        check_offsets("offsets", offsets, tokens)
        check_range("rows", rows, 0, len(req_to_token), "req_to_token has the rows")
        check_range("prefix_lens", prefix_lens, 0, ctx + 1, "a row holds lengths")
        lengths = prefix_lens + offsets[1:] - offsets[:-1]
        check_range("prefix_lens + new lengths", lengths, 0, ctx + 1, "a row holds lengths")
        check_row_cells(req_to_token, rows, lengths, len(k_pool))
    scale = queries.shape[2] ** -0.5 if scale is None else scale
    chosen = resolve(backend, device)
    if chosen is Backend.TORCH:
        reference = extend_attention_reference(queries, k_pool, v_pool, req_to_token, rows, offsets, prefix_lens, scale)
        return out.copy_(reference)
    if batch == 0 or out.numel() == 0:
        return out

    from .attention_kernel import MAX_PROGRAMS_PER_REQUEST, extend_attention_kernel

    heads = k_pool.shape[1]
    group = queries.shape[1] // heads
    padded = _power_of_two(group)
    block_m = max(32, padded)
    # Lengths may live on the GPU, so the grid follows the most queries that a request can have.
    tiles = -(-min(tokens, ctx) // (block_m // padded))
    with on_device(device):
        extend_attention_kernel[(batch, heads, min(tiles, MAX_PROGRAMS_PER_REQUEST))](
            out,
            queries,
            k_pool,
            v_pool,
            req_to_token,
            rows,
            offsets,
            prefix_lens,
            tokens,
            k_pool.stride(0),
            v_pool.stride(0),
            req_to_token.stride(0),
            len(k_pool),
            *req_to_token.shape,
            scale * _LOG2_E,
            GROUP=group,
            GROUP_PADDED=padded,
            BLOCK_M=block_m,
            **_blocks(k_pool, v_pool, chosen),
            enable_fp_fusion=True,
        )
    return out


def _check_layout(
    queries: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    out: torch.Tensor | None,
    count: int,
) -> torch.Tensor:
    """Checks what a tensor's header says; returns the tensor for the result."""
    device = queries.device
    check_data("queries", queries, "[n, q_heads, dim]", device, dtypes=DATA_DTYPES)
    check_pool("k_pool", k_pool, "[slots, heads, dim]", device, dtypes=(queries.dtype,))
    check_pool("v_pool", v_pool, "[slots, heads, dim]", device, dtypes=(queries.dtype,))
    check_table(req_to_token, device)
    check_indices("rows", rows, len(rows), device)
    if len(queries) != count:
        raise ValueError(f"queries must have {count} entries, one for each row, not {len(queries)}")
    if k_pool.shape[:2] != v_pool.shape[:2]:
        raise ValueError(f"slots and heads differ: k_pool {list(k_pool.shape)}, v_pool {list(v_pool.shape)}")
    q_heads, dim = queries.shape[1:]
    heads, v_dim = k_pool.shape[1], v_pool.shape[2]
    if k_pool.shape[2] != dim:
        raise ValueError(f"queries have dim {dim}, but the keys of k_pool {k_pool.shape[2]}")
    if not (1 <= dim <= MAX_HEAD_DIM and 1 <= v_dim <= MAX_HEAD_DIM):
        raise ValueError(f"dim must be from 1 to {MAX_HEAD_DIM}; keys have {dim}, values {v_dim}")
    if heads == 0 or q_heads % heads:
        raise ValueError(f"the queries' {q_heads} heads are no multiple of the {heads} heads of the pools")
    shape = (count, q_heads, v_dim)
    if out is None:
        return queries.new_empty(shape)
    check_data("out", out, "[n, q_heads, v_dim]", device, dtypes=(queries.dtype,), shape=shape)
    return out


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _blocks(k_pool: torch.Tensor, v_pool: torch.Tensor, backend: Backend) -> dict[str, int | bool]:
    """The constants that follow from the pools; a matrix product takes 16 elements at least."""
    dim, v_dim = k_pool.shape[2], v_pool.shape[2]
    wide = k_pool.dtype == torch.float32
    return {
        "DIM": dim,
        "V_DIM": v_dim,
        "BLOCK_D": max(16, _power_of_two(dim)),
        "BLOCK_V": max(16, _power_of_two(v_dim)),
        "BLOCK_N": 32,
        # The interpreter multiplies bfloat16 as the integers that it keeps them in.
        "WIDE": wide or (backend is Backend.INTERPRETER and k_pool.dtype == torch.bfloat16),
    }
