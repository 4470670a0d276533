"""What the installed release calls the functions that findings name; from 0.5.22 on those of the present one."""

from __future__ import annotations

from kvsan.hooks.adapters.sglang.between.records import OwnRecordsWatch
from kvsan.hooks.adapters.sglang.older.watch import OlderWatch
from kvsan.hooks.adapters.sglang.tables import installed

TABLE = installed()
RECORDS = not issubclass(TABLE.watch, (OlderWatch, OwnRecordsWatch))
"""Do requests keep records of what they hold? Up to 0.5.18 they do not, and their cache is a tree in Python."""
CHECKPOINTS = RECORDS and TABLE.since not in ("0.5.19", "0.5.20", "0.5.21")

PUBLISHES = {"checkpoint_into_tree"} if CHECKPOINTS else {"cache_unfinished_req", "cache_finished_req", "insert_req"}
CHECKPOINT = "checkpoint_into_tree" if CHECKPOINTS else "cache_unfinished_req"
LOCKS = {"lock"} if CHECKPOINTS else {"_req_inc_lock_ref", "cache_unfinished_req"}
MATCHES = "alloc_for_extend" if CHECKPOINTS else "_get_new_batch_prefill_raw"
GIVES_BACK = "free_kv_row" if RECORDS else "release_kv_cache"
EVICTS = "_evict_device_leaf" if RECORDS else "evict"
EVICTS_FOR = "evict_for_alloc" if RECORDS else "evict_from_tree_cache"

CORES = ("rust", "python") if RECORDS else ("",)
"""The prefix cache's cores; empty is `RadixCache`, which has none."""

_EARLIER = {"test_earlier_cache.py", "test_earlier_device.py"}
_SERVERS = {"test_page_1.py", "test_page_16.py", "test_no_cache.py", "test_python_core.py", "test_ways_in.py"}
_POOLS = {"test_pools.py", "test_beams.py"}
_FITTING = {
    "0.5.16": {*_SERVERS, *_EARLIER},
    "0.5.17": {*_SERVERS, *_EARLIER},
    "0.5.19": {*_SERVERS, *_POOLS, *_EARLIER, "test_sessions.py"},
    "0.5.20": {*_SERVERS, *_POOLS, *_EARLIER, "test_sessions.py"},
    "0.5.21": {*_SERVERS, *_POOLS, *_EARLIER, "test_sessions.py"},
    "0.5.22": {
        *_SERVERS, *_POOLS, "test_sessions.py", "test_cache.py", "test_host.py", "test_speculation.py",
        "test_disaggregation.py", "test_live_ranks.py",
    },
}  # fmt: skip


def unfit(files: set[str]) -> set[str]:
    """Those of the test files that are for other releases than the installed one."""
    return files - _FITTING.get(TABLE.since, files - _EARLIER)
