"""What a prefill server lacks on a CPU without a network, as a plugin of SGLang: its own stand-in for transfers, which it
takes on a decode server only, and events for sends that begin before a forward has ended."""

from __future__ import annotations

import sys


def register() -> None:
    """SGLang calls this in each of its processes, before the scheduler is made."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    import torch
    from sglang.srt.disaggregation import prefill

    of_backend = prefill.get_kv_class
    prefill.get_kv_class = lambda backend, kind: of_backend(prefill.TransferBackend.FAKE, kind)
    torch.cuda.Event = torch.cpu.Event
