"""What the attention kernels compute, in plain torch and float64, request by request and unchecked."""

from __future__ import annotations

import torch


def decode_attention_reference(
    queries: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """`decode_attention` in float64, [B, q_heads, v_dim]; on a GPU it waits for rows and lengths."""
    out = queries.new_zeros((*queries.shape[:2], v_pool.shape[2]), dtype=torch.float64)
    for i, (row, length) in enumerate(zip(rows.tolist(), lens.tolist(), strict=True)):
        if length:
            keys, values = _context(k_pool, v_pool, req_to_token[row, :length], queries.shape[1])
            out[i] = _attend(queries[i : i + 1].double(), keys, values, length - 1, scale)[0]
    return out


def extend_attention_reference(
    queries: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    offsets: torch.Tensor,
    prefix_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """`extend_attention` in float64, [T, q_heads, v_dim]; on a GPU it waits for rows, offsets and lengths."""
    out = queries.new_zeros((*queries.shape[:2], v_pool.shape[2]), dtype=torch.float64)
    at: list[int] = offsets.tolist()
    for i, (row, prefix_len) in enumerate(zip(rows.tolist(), prefix_lens.tolist(), strict=True)):
        begin, end = at[i], at[i + 1]
        if begin < end:
            slots = req_to_token[row, : prefix_len + end - begin]
            keys, values = _context(k_pool, v_pool, slots, queries.shape[1])
            out[begin:end] = _attend(queries[begin:end].double(), keys, values, prefix_len, scale)
    return out


def _context(
    k_pool: torch.Tensor, v_pool: torch.Tensor, slots: torch.Tensor, q_heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [length, q_heads, dim] of the slots, each head as often as query heads share it."""
    group = q_heads // k_pool.shape[1]
    keys, values = (pool[slots.long()].double().repeat_interleave(group, 1) for pool in (k_pool, v_pool))
    return keys, values


def _attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: int, scale: float) -> torch.Tensor:
    """Queries [t, heads, dim], the first at position `first`, over keys and values [length, heads, dim]."""
    scores = torch.einsum("thd,nhd->htn", queries, keys) * scale
    positions = torch.arange(first, first + len(queries), device=queries.device)
    unseen = torch.arange(len(keys), device=queries.device) > positions[:, None]
    return torch.einsum("htn,nhd->thd", scores.masked_fill(unseen, float("-inf")).softmax(-1), values)
