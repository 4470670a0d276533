"""A tiny random Llama: its configuration and a byte tokenizer, for `--load-format dummy`. `model.py FOLDER`."""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]


def write(folder: Path) -> Path:
    """Writes the model; the weights are made up when it is loaded."""
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
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 512,
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": False, "use_cache": True, "initializer_range": 0.02, **ends,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    return folder


if __name__ == "__main__":
    import sys

    write(Path(sys.argv[1]))
