"""What engines that have a plugin system call. Inert unless `KVSAN=1`: nothing is imported and nothing wrapped."""

from __future__ import annotations

import os


def sglang() -> None:
    """The entry point of the group `sglang.srt.plugins`; SGLang calls it once in each of its processes."""
    if os.environ.get("KVSAN") != "1":
        return
    from kvsan import arrival

    arrival.watch()
