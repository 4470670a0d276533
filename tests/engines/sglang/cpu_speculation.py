"""What speculative decoding lacks on a CPU, as a plugin of SGLang: its kernels, attention over drafts, and overlap.

SGLang's own workers draft, verify and extend; the kernels here do in plain torch what SGLang's do. Two are others:
drafts by n-grams are one chain, and how far drafts are followed is drawn at random, since models with made-up weights
agree on nothing. What is tested is what the engine takes, writes and gives back."""

from __future__ import annotations

import random
import sys
import types
from typing import Any


def register() -> None:
    """SGLang calls this in each of its processes, before it looks at its arguments and before the scheduler is made."""
    from sglang.srt.arg_groups import speculative_hook

    speculative_hook._disable_overlap_schedule_for_cpu = lambda arguments: None
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    kernels: Any = types.ModuleType("sgl_kernel.speculative")
    kernels.reconstruct_indices_from_tree_mask = chain
    sys.modules["sgl_kernel.speculative"] = kernels
    from sglang.kernels.ops.speculative import cache_locs, eagle, multi_layer_eagle, spec_tree
    from sglang.srt.managers import overlap_utils
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.speculative import ngram_worker
    from sglang.srt.speculative.draft_utils import DraftBackendFactory

    places = {
        "assign_draft_cache_locs_contiguous_cpu": (draft_locations, cache_locs),
        "assign_extend_cache_locs_cpu": (locations, cache_locs),
        "fill_bonus_tokens_cpu": (bonus_tokens, eagle),
        "fill_accept_out_cache_loc_cpu": (accepted_locations, eagle),
        "rotate_input_ids_cpu": (rotate, multi_layer_eagle),
        "sgl_build_tree_kernel_efficient_cpu": (build_tree, spec_tree),
        "sgl_verify_tree_greedy_cpu": (judge, spec_tree),
    }
    for name, (stand_in, module) in places.items():
        setattr(module, name, stand_in)
    ngram_worker.reconstruct_indices_from_tree_mask_func = chain
    overlap_utils.gather_spec_extras = gather
    MHATokenToKVPool._init_kv_copy_and_warmup = lambda self: None
    MHATokenToKVPool._move_kv_cache_impl = move
    DraftBackendFactory.create_decode_backend = lambda self: steps(self)
    DraftBackendFactory.create_draft_extend_backend = lambda self: None
    attend_to_drafts()
    one_head_each()


def one_head_each() -> None:
    """SGLang's plain Llama head may be one of several, each for a draft of its own."""
    from sglang.srt.models.llama_eagle import LlamaForCausalLMEagle

    make = LlamaForCausalLMEagle.__init__

    def __init__(self: Any, *arguments: Any, draft_model_idx: int = 0, **named: Any) -> None:
        make(self, *arguments, **named)

    LlamaForCausalLMEagle.__init__ = __init__


# -- attention in plain torch


def steps(factory: Any) -> Any:
    """The backends of the draft model's steps; None where it takes a single one."""
    import torch
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    if factory.speculative_num_steps <= 1:
        return None

    class Step(TorchNativeAttnBackend):  # type: ignore[misc]
        """Attention of one step: each branch sees its request's prefix, and what it drafted itself."""

        def forward_decode(
            self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
        ) -> Any:
            from sglang.srt.mem_cache.memory_pool import KVWriteLoc

            self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
            table, lengths = branches(self.req_to_token_pool.req_to_token, forward_batch, factory, self.number + 1)
            return self._run_sdpa_forward_decode(
                q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
                q.new_empty(q.shape[0], layer.tp_q_head_num, layer.v_head_dim),
                self.token_to_kv_pool.get_key_buffer(layer.layer_id),
                self.token_to_kv_pool.get_value_buffer(layer.layer_id),
                table, torch.arange(len(lengths)), torch.tensor(lengths), scaling=layer.scaling,
                enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
            ).view(q.shape[0], -1)  # fmt: skip

    class Steps:
        """What the draft worker asks of the backends of its steps together."""

        def __init__(self) -> None:
            self.attn_backends = [Step(factory.draft_model_runner) for _ in range(factory.speculative_num_steps - 1)]
            for number, backend in enumerate(self.attn_backends):
                backend.number = number

        def init_forward_metadata(self, forward_batch: Any) -> None:
            """Nothing is planned ahead."""

        def __getattr__(self, name: str) -> Any:
            return getattr(self.attn_backends[0], name)

    return Steps()


def branches(req_to_token: Any, batch: Any, factory: Any, drafted: int) -> tuple[Any, Any]:
    """For each branch of each request the slots that it sees, and how many."""
    import torch

    rows, lengths = [], []
    for row, length in zip(batch.req_pool_indices.tolist(), batch.seq_lens.tolist(), strict=True):
        for branch in range(factory.topk):
            first = length + branch * factory.speculative_num_steps
            rows.append(torch.cat((req_to_token[row, :length], req_to_token[row, first : first + drafted])))
            lengths.append(length + drafted)
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths


def attend_to_drafts() -> None:
    """The target model sees a request's drafts as one chain behind what it has."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    run = TorchNativeAttnBackend._run_sdpa_forward_extend
    extend = TorchNativeAttnBackend.forward_extend

    def forward_extend(
        self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *rest: Any, **named: Any
    ) -> Any:
        if not forward_batch.forward_mode.is_target_verify():
            return extend(self, q, k, v, layer, forward_batch, *rest, **named)
        from sglang.srt.mem_cache.memory_pool import KVWriteLoc

        self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        width = forward_batch.spec_info.draft_token_num
        before = forward_batch.seq_lens
        return run(
            self,
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            q.new_empty(q.shape[0], layer.tp_q_head_num, layer.v_head_dim),
            self.token_to_kv_pool.get_key_buffer(layer.layer_id),
            self.token_to_kv_pool.get_value_buffer(layer.layer_id),
            self.req_to_token_pool.req_to_token, forward_batch.req_pool_indices, before + width, before,
            before.new_full(before.shape, width), scaling=layer.scaling,
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num, causal=True,
        ).view(q.shape[0], -1)  # fmt: skip

    TorchNativeAttnBackend.forward_extend = forward_extend


# -- kernels


def locations(rows: Any, table: Any, begin: Any, end: Any, out: Any, width: int) -> None:
    """The slots of each row's piece, one behind the other."""
    taken = 0
    for row, first, last in zip(rows.tolist(), begin.tolist(), end.tolist(), strict=True):
        out[taken : taken + last - first] = table[row, first:last]
        taken += last - first


def draft_locations(rows: Any, table: Any, lengths: Any, out: Any, width: int, topk: int, count: int) -> None:
    """The slots behind what each row has, `count` for each branch."""
    locations(rows, table, lengths, lengths + topk * count, out, width)


def bonus_tokens(accepted: Any, lengths: Any, out: Any, stride: int) -> None:
    """The last accepted token of each request."""
    for number, length in enumerate(lengths.tolist()):
        out[number] = accepted.reshape(-1)[stride * number + length - 1]


def accepted_locations(index: Any, slots: Any, out: Any) -> None:
    """The slots of what is accepted, without gaps."""
    kept = index.reshape(-1)
    kept = kept[kept >= 0].long()
    out[: kept.numel()] = slots[kept]


def gather(indices: Any, *buffers: Any) -> tuple[Any, ...]:
    """What the step before left for these rows."""
    return tuple(None if buffer is None else buffer[indices] for buffer in buffers)


def move(pool: Any, target: Any, source: Any) -> None:
    """Keys and values of the source slots go to the target slots."""
    for buffer in (*pool.k_buffer, *pool.v_buffer):
        buffer[target] = buffer[source]


def rotate(tokens: Any, begins: Any, lengths: Any, last: Any, select: Any = None) -> None:
    """Each request's tokens move up by one, and a new one follows."""
    for number, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
        tokens[begin : begin + length - 1] = tokens[begin + 1 : begin + length].clone()
        where = begin + length - 1 if select is None else int(select[number])
        tokens[where] = last.reshape(-1)[number]


def chain(
    mask: Any, lengths: Any, positions: Any, index: Any, child: Any, sibling: Any, count: int, width: int
) -> None:
    """The drafts of each request are one chain behind what it has."""
    import torch

    positions.copy_((lengths[:, None] + torch.arange(width)).reshape(-1))
    index.copy_(torch.arange(count * width).reshape(count, width))
    child.copy_(torch.tensor([*range(1, width), -1]).expand(count, width))
    sibling.fill_(-1)


def build_tree(
    parents: Any, chosen: Any, lengths: Any, mask: Any, positions: Any, index: Any, child: Any, sibling: Any,
    topk: int, depth: int, width: int, mode: int,
) -> None:  # fmt: skip
    """Each request's tree of drafts, by first child and next sibling; the first node is what was accepted last."""
    for request, length in enumerate(lengths.tolist()):
        level = [0] * width
        index[request] = index.new_tensor(range(request * width, (request + 1) * width))
        place = {int(number): node + 1 for node, number in enumerate(chosen[request].tolist())}
        for node in range(1, width):
            of = int(chosen[request, node - 1]) // topk
            parent = 0 if of == 0 else place[int(parents[request, of])]
            level[node] = level[parent] + 1
        for node in range(width - 1, 0, -1):
            of = int(chosen[request, node - 1]) // topk
            parent = 0 if of == 0 else place[int(parents[request, of])]
            sibling[request, node] = child[request, parent]
            child[request, parent] = node
        positions[request * width : (request + 1) * width] = positions.new_tensor([length + each for each in level])


def judge(
    *, predicts: Any, accept_index: Any, accept_token_num: Any, candidates: Any, retrive_index: Any,
    retrive_next_token: Any, retrive_next_sibling: Any, target_predict: Any,
) -> None:  # fmt: skip
    """Follows each tree of drafts for a random while, and adds what the target model says there."""
    for request in range(candidates.shape[0]):
        node, count = 0, 0
        accept_index[request, 0] = retrive_index[request, 0]
        while count + 1 < accept_index.shape[1] and random.random() < 0.7:
            following = int(retrive_next_token[request, node])
            if following < 0:
                break
            while int(retrive_next_sibling[request, following]) >= 0 and random.random() < 0.5:
                following = int(retrive_next_sibling[request, following])
            predicts[retrive_index[request, node]] = int(candidates[request, following])
            node, count = following, count + 1
            accept_index[request, count] = retrive_index[request, node]
        predicts[retrive_index[request, node]] = int(target_predict[request, node])
        accept_token_num[request] = count
