"""Tiny random models: a configuration and a byte tokenizer, for `--load-format dummy`. `model.py FOLDER [window]`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]


WINDOW = 32
"""Tokens that a window layer of `WINDOWED` sees."""

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 10000.0, "mlp_bias": False}

WINDOWED = {
    "architectures": ["MellumForCausalLM"], "model_type": "mellum", "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"], "mlp_layer_types": ["dense", "dense"],
    "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("sliding_attention", "full_attention")
    },
    "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32, "norm_topk_prob": True,
}  # fmt: skip
"""A model whose first layer has a sliding window: half of its keys and values live in a second pool."""

EAGLE = {**LLAMA, "architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1}
EAGLE3 = {**EAGLE, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 512}
"""Models of one layer that draft from the hidden states of a `LLAMA`."""


def write(folder: Path, kind: dict[str, Any] = LLAMA) -> Path:
    """Writes a model of this kind; the weights are made up when it is loaded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bytes_only = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, [], unk_token="<unk>"))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_only, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        model_max_length=4096,
    )  # fmt: skip
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    config = {
        "torch_dtype": "bfloat16", "vocab_size": 512,
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "attention_bias": False,
        "tie_word_embeddings": False, "use_cache": True, "initializer_range": 0.02, **ends, **kind,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    return folder


if __name__ == "__main__":
    import sys

    write(Path(sys.argv[1]), WINDOWED if sys.argv[2:] == ["window"] else LLAMA)
