"""What speculative decoding by n-grams lacks on a CPU, as a plugin of SGLang: its kernels, and who judges the drafts.

How many drafts are accepted is drawn at random, and attention over drafts gives nothing: what is tested is what the
engine takes, writes and gives back."""

from __future__ import annotations

import random
import sys
import types
from typing import Any


def register() -> None:
    """SGLang calls this in each of its processes, before the scheduler is made."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    kernels: Any = types.ModuleType("sgl_kernel.speculative")
    kernels.reconstruct_indices_from_tree_mask = reconstruct
    sys.modules["sgl_kernel.speculative"] = kernels
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.speculative import ngram_worker

    MHATokenToKVPool._init_kv_copy_and_warmup = lambda self: None
    ngram_worker.reconstruct_indices_from_tree_mask_func = reconstruct
    ngram_worker.assign_extend_cache_locs_func = locations
    ngram_worker.eagle_sample = accept
    ngram_worker.move_accept_tokens_to_target_kvcache = lambda *arguments, **named: None  # drafts are one chain
    attend = TorchNativeAttnBackend.forward_extend

    def forward_extend(
        self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *rest: Any, **named: Any
    ) -> Any:
        if not forward_batch.forward_mode.is_target_verify():
            return attend(self, q, k, v, layer, forward_batch, *rest, **named)
        from sglang.srt.mem_cache.memory_pool import KVWriteLoc

        self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        return q.new_zeros((q.shape[0], layer.tp_q_head_num * layer.v_head_dim))

    TorchNativeAttnBackend.forward_extend = forward_extend


def reconstruct(
    tree_mask: Any, seq_lens: Any, positions: Any, index: Any, next_token: Any, sibling: Any, count: int, width: int
) -> None:
    """The drafts of each request are one chain behind what it has."""
    import torch

    positions.copy_((seq_lens[:, None] + torch.arange(width)).reshape(-1))
    index.copy_(torch.arange(count * width).reshape(count, width))
    next_token.fill_(-1)
    sibling.fill_(-1)


def locations(
    *, req_pool_indices: Any, req_to_token: Any, start_offset: Any, end_offset: Any, batch_size: int, **named: Any
) -> Any:
    """The slots that each row has for its drafts."""
    import torch

    pieces = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    return torch.cat([req_to_token[row, begin:end] for row, begin, end in pieces]).to(torch.int64)


def accept(verify: Any, batch: Any, logits: Any, *arguments: Any, **named: Any) -> tuple[Any, Any, Any]:
    """Tokens, how many of each request's drafts are accepted, and where they stand."""
    import torch

    width, count = verify.draft_token_num, len(batch.reqs)
    lengths = torch.tensor([random.randint(1, width) for _ in range(count)], dtype=torch.int32)
    index = torch.arange(count * width).reshape(count, width)
    return torch.randint(5, 250, (count * width,)), lengths, index
