"""What the adapter does not follow in releases up to 0.5.15 it does not watch at all, and says which it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kvsan.hooks.adapters.sglang.older.begin import begin, obstacle
from kvsan.hooks.adapters.sglang.older.watch import OlderWatch
from kvsan.hooks.sanitizer import Sanitizer

from .test_sglang_limits import named

PARTS = {
    "req_to_token_pool": named("ReqToTokenPool", size=4),
    "token_to_kv_pool_allocator": named("TokenToKVPoolAllocator", page_size=1, size=8, available_size=lambda: 8),
    "tree_cache": named("RadixCache"),
    "disaggregation_mode": SimpleNamespace(value="null"),
    "spec_algorithm": SimpleNamespace(is_none=lambda: True),
    "model_config": SimpleNamespace(is_encoder_decoder=False),
    "dllm_config": None,
    "pp_size": 1,
}
"""As much of a plain scheduler as is looked at before it is watched."""


def scheduler(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**PARTS, **changes})


@pytest.mark.parametrize("plain", [scheduler(), scheduler(ps=SimpleNamespace(pp_size=1), pp_size=None)])
def test_a_plain_scheduler_is_followed(plain: SimpleNamespace) -> None:
    watch = OlderWatch(Sanitizer())
    watch.scheduler, watch.rows, watch.tree = plain, plain.req_to_token_pool, plain.tree_cache
    watch.kv = plain.token_to_kv_pool_allocator
    assert obstacle(watch) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"req_to_token_pool": named("HybridReqToTokenPool")}, "HybridReqToTokenPool"),
        ({"token_to_kv_pool_allocator": named("SWATokenToKVPoolAllocator", page_size=1)}, "SWATokenToKVPoolAllocator"),
        ({"tree_cache": named("SWARadixCache")}, "SWARadixCache"),
        ({"tree_cache": named("MambaRadixCache")}, "MambaRadixCache"),
        ({"tree_cache": named("HiRadixCache")}, "HiRadixCache"),
        ({"tree_cache": named("UnifiedRadixCache")}, "UnifiedRadixCache"),
        ({"tree_cache": named("StreamingSession")}, "StreamingSession"),
        ({"disaggregation_mode": SimpleNamespace(value="decode")}, "other servers"),
        ({"spec_algorithm": SimpleNamespace(is_none=lambda: False)}, "speculative decoding"),
        ({"pp_size": 2}, "pipeline stages"),
        ({"pp_size": None, "ps": SimpleNamespace(pp_size=2)}, "pipeline stages"),
        ({"enable_pdmux": True}, "prefill and decode side by side"),
        ({"dllm_config": object()}, "block diffusion"),
        ({"model_config": SimpleNamespace(is_encoder_decoder=True)}, "encoder slots"),
        (
            {"token_to_kv_pool_allocator": named("TokenToKVPoolAllocator", page_size=1, size=8, available_size=int)},
            "handed out before",
        ),
    ],
)
def test_what_is_not_followed_is_not_watched(changes: dict[str, Any], why: str) -> None:
    watch = OlderWatch(Sanitizer())
    begin(watch, scheduler(**changes), lambda device: pytest.fail("it is looked at no further"))
    assert watch.blind
    (failure,) = watch.san.report().failures
    assert why in failure.error
    assert "not followed in this release" in failure.error
    assert failure.cost == "nothing of SGLang is watched any more in this process"
