"""What SGLang's host tier lacks on a CPU, as a plugin of it: copies in plain torch, and nothing to pin."""

from __future__ import annotations

import sys
from typing import Any


def register() -> None:
    """SGLang calls this in each of its processes, before the scheduler is made."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.mem_cache.pool_host import base, common, mha

    for module in (base, common, mha):
        for name in ("_cuda_host_register", "_cuda_host_unregister"):
            if hasattr(module, name):
                setattr(module, name, lambda *arguments, **named: None)
    for pool in list(vars(mha).values()):
        if isinstance(pool, type) and issubclass(pool, base.HostKVCache) and pool is not base.HostKVCache:
            pool.backup_from_device_all_layer = write_out
            pool.load_to_device_per_layer = bring_back


def write_out(host: Any, device: Any, host_indices: Any, device_indices: Any, backend: str) -> None:
    """Token slots of every layer to the host."""
    for layer in range(host.layer_num):
        host.k_data_refs[layer][host_indices] = device.k_buffer[layer][device_indices]
        host.v_data_refs[layer][host_indices] = device.v_buffer[layer][device_indices]


def bring_back(
    host: Any, device: Any, host_indices: Any, device_indices: Any, layer: int, backend: str, *, is_draft: bool = False
) -> None:
    """One layer of them back."""
    device.k_buffer[layer][device_indices] = host.k_data_refs[layer][host_indices]
    device.v_buffer[layer][device_indices] = host.v_data_refs[layer][host_indices]
