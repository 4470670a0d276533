"""What a prefill server lacks on a CPU without a network, as a plugin of SGLang: SGLang's own stand-in for transfers,
which it refuses here, and events for sends that begin before a forward has ended. Transfers take a while."""

from __future__ import annotations

import sys
import time
from typing import Any

SECONDS = 0.03
"""How long the other side reads."""


def register() -> None:
    """SGLang calls this in each of its processes, before the scheduler is made."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    import torch
    from sglang.srt.disaggregation.base import KVPoll
    from sglang.srt.disaggregation.fake import FakeKVSender
    from sglang.srt.disaggregation.prefill import PrefillBootstrapQueue, TransferBackend

    torch.cuda.Event = torch.cpu.Event
    begin, send, poll = PrefillBootstrapQueue.__init__, FakeKVSender.send, FakeKVSender.poll

    def begin_with_stand_in(queue: Any, *, scheduler: Any, transfer_backend: Any, **named: Any) -> None:
        scheduler.transfer_backend = TransferBackend.FAKE
        begin(queue, scheduler=scheduler, transfer_backend=scheduler.transfer_backend, **named)

    def send_slowly(sender: Any, *args: Any, **named: Any) -> None:
        sender.arrives = time.monotonic() + SECONDS
        send(sender, *args, **named)

    def poll_patiently(sender: Any) -> int:
        under_way = sender.has_sent and sender.conclude_state is None and time.monotonic() < sender.arrives
        return KVPoll.Transferring if under_way else poll(sender)

    PrefillBootstrapQueue.__init__ = begin_with_stand_in
    FakeKVSender.send, FakeKVSender.poll = send_slowly, poll_patiently
