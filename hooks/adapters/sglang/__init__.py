"""The adapter for SGLang: `attach` puts the probes in place, `begin` takes a scheduler's pools under watch."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from kvsan import alone
from kvsan.ranks import Rank

from ... import current
from ...sanitizer import Sanitizer
from .. import readback
from ..probes import Probe, Resolved, install
from . import disaggregation, host, ranks, speculation, states, window
from .older.begin import begin as begin_older
from .older.watch import OlderWatch
from .table import DECODING, HOSTED, PREFILLING, SPECULATIVE, STATEFUL, WINDOWED
from .tables import installed_version, standing, stream_probes, table_for
from .watch import KV, ROWS, Watch

PLAIN = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")
"""The allocators whose slots are followed, alone or as the two under a sliding window's; others have maps and moves
that are not read yet."""
PARTS = {"full", "swa", "mamba"}
"""What the prefix cache may keep for a node: token slots, window slots, a recurrent state."""
PLAIN_ROWS = ("ReqToTokenPool", "HybridReqToTokenPool", "DecodeReqToTokenPool")
"""The row pools that hand rows out through the probes; of another one, every row would look as if nobody held it."""
ROLES = {"null": (), "prefill": PREFILLING, "decode": DECODING}
"""What part of a disaggregated service a server may have, null being the whole; and the probes that it needs."""

_watch: Watch | None = None
_found: list[Resolved] = []


def attach(scheduler_class: type) -> None:
    """Puts the probes in place, blind until `begin`; once."""
    global _watch
    if _watch is not None:
        return
    sanitizer = current()
    if not isinstance(sanitizer, Sanitizer):
        if os.environ.get("KVSAN") != "1":
            return
        sanitizer = alone.start()
    table = table_for(installed_version())
    _watch = table.watch(sanitizer)
    _found.extend(install(table.probes, _watch))


def begin(scheduler: Any) -> None:
    """The scheduler is made: its pools are declared, and the probes open their eyes. Nothing raised here gets out."""
    watch = _watch
    if watch is None or watch.scheduler is not None:
        return
    try:
        if said := standing(installed_version()):
            watch.note(f"{said}.")
        if isinstance(watch, OlderWatch):
            watch.found = _found
            begin_older(watch, scheduler, lambda device: _streams_in_place(watch, device))
        else:
            _begin(watch, scheduler)
    except Exception as error:
        watch.failed("beginning to watch the scheduler", error)


def _begin(watch: Watch, scheduler: Any) -> None:
    watch.scheduler = scheduler
    watch.rows = scheduler.req_to_token_pool
    watch.kv = allocator = scheduler.token_to_kv_pool_allocator
    watch.window = window.watched(allocator)
    if watch.window is not None:
        watch.kv = allocator.full_attn_allocator
    watch.states = states.watched(watch.rows)
    watch.tree = scheduler.tree_cache
    watch.host = host.watched(watch.tree)
    watch.page = int(watch.kv.page_size)
    if type(watch.rows).__name__ not in PLAIN_ROWS:
        watch.give_up(f"the rows of a {type(watch.rows).__name__} are not followed yet")
        return
    if why := _unfollowed(watch):
        watch.give_up(why)
        return
    device = str(scheduler.device).partition(":")[0]
    if not _streams_in_place(watch, device):
        return
    watch.name_streams()
    watch.ahead = speculation.obstacle(scheduler.spec_algorithm) is None and not _lacking(SPECULATIVE)
    watch.slots = _can_read_slots(watch, device)
    san = watch.san
    if (rank := _rank_of(watch, scheduler)) is not None:
        san.set_rank(group=rank.group, number=rank.number)
    san.pool(ROWS, kind="row", size=int(watch.rows.req_to_token.shape[0]), reserved=[0])
    if watch.slots:
        size = (int(watch.kv.size) // watch.page + 1) * watch.page
        san.pool(KV, kind="kv", size=size, page=watch.page, reserved=np.arange(watch.page))
        watch.node_of = np.zeros(size, np.int64)
        if watch.window is not None:
            window.declare(watch, watch.window)
        if watch.states is not None:
            states.declare(watch, watch.states)
        if watch.host is not None:
            host.declare(watch, watch.host)
    else:
        san.pool(KV, kind="kv", size=1, reserved=[0])
    watch.found = _found
    watch.blind = False
    watch.check()


def _rank_of(watch: Watch, scheduler: Any) -> Rank | None:
    """Which of several ranks the scheduler is; that it cannot be said is no reason to watch nothing."""
    try:
        return ranks.rank_of(scheduler)
    except Exception as error:
        watch.note(f"SGLang: which rank this is could not be read ({error!r}), so that kvsan check compares none.")
        return None


def _unfollowed(watch: Watch) -> str | None:
    """What is done to rows unseen, if there is something: then nothing can be watched."""
    scheduler, role = watch.scheduler, _mode(watch.scheduler)
    if role not in ROLES:
        return f"a server whose part in a disaggregated service is {role} is not followed yet"
    if lacks := _lacking(ROLES[role]):
        return f"kvsan does not read {lacks} in this release, without which {role} servers are not followed"
    if not scheduler.spec_algorithm.is_none() and (lacks := _lacking(SPECULATIVE)):
        return f"kvsan does not read {lacks} in this release, without which speculative decoding is not followed"
    if getattr(scheduler.server_args, "pp_size", 1) > 1:  # their loop has no barrier after a forward's reads of rows
        return "pipeline stages are not followed yet"
    if getattr(scheduler, "enable_pdmux", False):  # nor has theirs, which also launches a prefill in pieces
        return "the loop that prefills and decodes side by side (--enable-pdmux) is not followed yet"
    if not watch.sessions and scheduler.server_args.enable_streaming_session:
        return "streaming sessions are not followed in this release"
    return None


def _mode(scheduler: Any) -> str:
    """What part of a disaggregated service this server is."""
    return str(getattr(scheduler.disaggregation_mode, "value", "null"))


def _streams_in_place(watch: Watch, device: str) -> bool:
    """Puts the last probes in place, which depend on the device; are all there that are needed?"""
    _found.extend(install(stream_probes(device), watch))
    return _in_place(watch)


def _in_place(watch: Watch) -> bool:
    """Did every probe find its place that sound servers would be accused without? What is missing is told."""
    lost = [each for each in _found if not each.found and not each.probe.older]
    for each in lost:
        watch.complain("SGLang adapter", each.error, f"not seen: {each.probe.lost} ({each.probe.events})")
    if any(each.probe.needed for each in lost):
        watch.give_up("this release of SGLang lacks places that kvsan must see; kvsan doctor sglang names them")
        return False
    return True


def _can_read_slots(watch: Watch, device: str) -> bool:
    """Lowers the level to `rows` where slots cannot be followed, and says why."""
    if watch.san.options.level == "rows":
        return False
    why = _obstacle(watch, device)
    if why is None:
        watch.read_late(device)
        if (name := watch.scheduler.spec_algorithm.name) in speculation.ALIKE:
            watch.note(f"SGLang: drafts by {name} are followed as EAGLE's are; no server that drafts so was run.")
        return True
    watch.watch_rows_only(why)
    return False


def _obstacle(watch: Watch, device: str) -> str | None:
    """Why slots cannot be followed. What was not seen to be silent on a sound server is not judged by guesswork."""
    scheduler, allocator, tree = watch.scheduler, watch.kv, type(watch.tree).__name__
    outer = scheduler.token_to_kv_pool_allocator
    if device != "cpu" and device not in readback.DEVICES:
        return f"slot ids are on the device ({device}), and reading them would make the scheduler wait for it"
    if device != "cpu" and getattr(scheduler, "enable_async_d2h_copy", False):
        return "in confidential computing every copy from the device makes the scheduler wait for it"
    if type(allocator).__name__ not in PLAIN:
        return f"the slots of a {type(outer).__name__} are not followed yet"
    if tree not in watch.caches:
        return f"what a {tree} holds is not followed yet"
    parts = {str(part.name).lower() for part in getattr(watch.tree, "tree_components", ())}
    if not parts <= PARTS:
        return f"what the cache keeps beside token slots ({', '.join(sorted(parts - PARTS))}) is not followed yet"
    if getattr(scheduler.server_args, "dcp_size", 1) > 1:  # SGLang's own totals at idle are not compared there either
        return "a cache whose pages several ranks share (--dcp-size) is not followed yet"
    if allocator.page_size != watch.tree.page_size:
        return "the allocator's pages are larger than the cache's"
    if not scheduler.spec_algorithm.is_none():
        if why := speculation.obstacle(scheduler.spec_algorithm):
            return why
        if getattr(scheduler.server_args, "enable_streaming_session", False):
            return "what a session's turn took ahead for drafts and did not need is not followed yet"
    if getattr(watch.tree, "linker", None) is not None:
        return "a store that is linked to the cache is not followed yet"
    if getattr(scheduler, "enable_hierarchical_cache", False) and watch.host is None:
        return "the host tier was not ready with the scheduler"
    if getattr(scheduler, "dllm_config", None) is not None:
        return "block diffusion is not followed yet"
    if getattr(scheduler.model_config, "is_encoder_decoder", False):
        return "encoder slots are not followed yet"
    if int(allocator.available_size()) != int(allocator.size) // watch.page * watch.page:
        return "slots were handed out before the scheduler was ready"
    if watch.window is not None:
        if lacks := _lacking(WINDOWED):
            return f"kvsan does not read {lacks} in this release, without which a sliding window is not followed"
        if why := window.obstacle(watch.window):
            return why
    if (role := _mode(scheduler)) != "null" and (why := disaggregation.obstacle(watch, role)):
        return why
    if watch.states is not None:
        if lacks := _lacking(STATEFUL):
            return f"kvsan does not read {lacks} in this release, without which recurrent states are not followed"
        if why := states.obstacle(watch.states):
            return why
    if watch.host is not None:
        if lacks := _lacking(HOSTED):
            return f"kvsan does not read {lacks} in this release, without which the host tier is not followed"
        if why := host.obstacle(watch, watch.host):
            return why
    return None


def _lacking(probes: tuple[Probe, ...]) -> str:
    """Which of these places this release does not have, or its table leaves out; empty if all are read."""
    read = {each.probe for each in _found if each.found}
    lost = [each.where for each in probes if each not in read]
    more = f" and {len(lost) - 1} further places" if len(lost) > 1 else ""
    return f"{lost[0]}{more}" if lost else ""
