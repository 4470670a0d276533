"""What SGLang's attention in plain torch lacks: it translates token slots into window slots."""

import sys


def register():
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    for name in ("_run_sdpa_forward_extend", "_run_sdpa_forward_decode"):
        setattr(TorchNativeAttnBackend, name, translating(getattr(TorchNativeAttnBackend, name)))


def translating(original):
    def run(self, query, output, k_cache, v_cache, req_to_token, *rest, **named):
        pool = self.token_to_kv_pool
        if any(k_cache is each for each in pool.swa_kv_pool.k_buffer):
            req_to_token = pool.full_to_swa_index_mapping[req_to_token.long()]
        return original(self, query, output, k_cache, v_cache, req_to_token, *rest, **named)

    return run
