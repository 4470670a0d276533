"""The registry of historical bugs: each is one switch, with the public change that fixed it."""

from __future__ import annotations

from dataclasses import dataclass

ROW_REALLOC = "row-realloc-between-chunks"
ABORT_KEEPS_ROW = "mixed-chunk-abort-keeps-row"
ABORT_STILL_LEAKS = "mixed-chunk-abort-still-leaks"
ABORT_DOUBLE_RELEASE = "mixed-chunk-abort-double-release"
EVICTS_LOCKED = "eviction-ignores-locks"
UNLOCKS_TWICE = "abort-unlocks-twice"
KEEPS_LOCK = "lock-kept-on-abort"
LATE_LOCK = "match-without-lock"
PADDING_STATE = "padding-slot-handed-out"
ROW_TWICE = "row-free-list-corrupt"
TWO_FREES = "two-frees-one-page"
WRONG_SLOT = "wrong-slot-freed-in-mixed-batch"
ADAPTER_NOT_IN_KEY = "adapter-missing-in-key"
RANK_ORDER = "rank-local-eviction-order"
TWO_KEYS = "one-page-two-keys"
SESSION_TAIL = "session-tail-overwritten"
EVICTABLE_DRIFTS = "evictable-size-drifts"
NEVER_UNLOCKS = "write-through-never-unlocks"
EVICT_UNDER_WRITE_BACK = "evict-under-write-back"
BACKUP_NOT_ORDERED = "backup-not-ordered"
LOAD_NOT_AWAITED = "load-back-not-awaited"
LOAD_NOT_FENCED = "load-back-not-fenced"
PREFETCH_TAIL = "prefetch-tail-freed-twice"
ABORT_FREES = "abort-frees-under-transfer"
ABORT_LEAKS = "abort-in-transfer-queue-leaks"
DECODE_BEFORE_END = "decode-reads-before-transfer-ends"
STALE_MAP = "stale-map-frees-foreign-slot"
TOMBSTONE_FREED = "tombstone-freed"
NESTED_GROUP = "free-group-not-flushed"


@dataclass(frozen=True, slots=True)
class Bug:
    """One switch: `finding` is the kind that must be found, in `pool` (None: it speaks of a node of the cache);
    `consequence` what users of the engine see; `page_sizes` those at which the bug can show."""

    name: str
    reference: str
    feature: str
    finding: str
    pool: str | None
    summary: str
    consequence: str
    page_sizes: tuple[int, ...] = (1, 16)


BUGS: dict[str, Bug] = {
    bug.name: bug
    for bug in (
        Bug(
            name=ROW_REALLOC,
            reference="sgl-project/sglang#17850",
            feature="chunked prefill",
            finding="race",
            pool="req_to_token",
            summary="A chunked request gives its row back between chunks; the next batch hands it to another request, "
            "whose mapping is written into it while the forward stream may still read it.",
            consequence="wrong tokens for the chunked request when the forward runs late",
        ),
        Bug(
            name=ABORT_KEEPS_ROW,
            reference="sgl-project/sglang#10871",
            feature="mixed chunk, abort",
            finding="leak",
            pool="req_to_token",
            summary="A request that the scheduler rejects finishes in its first prefill inside a mixed batch; only its "
            "token slot is given back.",
            consequence="one row less for each such request, until none is left and the server stalls",
        ),
        Bug(
            name=ABORT_STILL_LEAKS,
            reference="sgl-project/sglang#10871",
            feature="mixed chunk, abort",
            finding="leak",
            pool="kv",
            summary="A first attempt at the fix gives back the row of that request, but no longer its token slot.",
            consequence="one page less for each such request",
        ),
        Bug(
            name=ABORT_DOUBLE_RELEASE,
            reference="sgl-project/sglang#10871",
            feature="mixed chunk, abort, retraction",
            finding="double_free",
            pool="req_to_token",
            summary="A first attempt at the fix gives back the row of every request of a mixed batch that no longer "
            "runs, also of one that was retracted meanwhile and has given it back.",
            consequence="two requests share a row: wrong tokens",
        ),
        Bug(
            name=EVICTS_LOCKED,
            reference="sgl-project/sglang#38480",
            feature="prefix cache, eviction",
            finding="evict_locked",
            pool=None,
            summary="Eviction takes leaves that live requests have locked, as when a node that was split off lacks its "
            "lock.",
            consequence="wrong tokens once the slots are handed out again",
        ),
        Bug(
            name=UNLOCKS_TWICE,
            reference="bytedance-iaas/sglang#748",
            feature="prefix cache, abort",
            finding="lock_underflow",
            pool=None,
            summary="The abort of a request gives its lock back twice; the second takes another request's.",
            consequence="wrong tokens: the prefix of the next request that locks the node can be evicted while it runs",
        ),
        Bug(
            name=KEEPS_LOCK,
            reference="sgl-project/sglang#20049",
            feature="prefix cache, abort",
            finding="lock_leak",
            pool=None,
            summary="The abort of a request does not give its lock back; the path can never be evicted again.",
            consequence="stall: what is locked for good is missing, until a request that would fit waits for ever",
        ),
        Bug(
            name=LATE_LOCK,
            reference="vllm-project/vllm#33775",
            feature="prefix cache, admission",
            finding="use_after_free",
            pool="kv",
            summary="A matched prefix is locked only after the request has got its new slots, for which that very prefix "
            "may be evicted.",
            consequence="wrong tokens: the prefix's slots hold the new tokens' keys and values",
        ),
        Bug(
            name=PADDING_STATE,
            reference="sgl-project/sglang#17404",
            feature="recurrent states, padding lanes",
            finding="reserved_slot",
            pool="state",
            summary="State 0, which the padding lanes of a decode batch write, is handed out to a request.",
            consequence="wrong tokens for the request that has it",
        ),
        Bug(
            name=ROW_TWICE,
            reference="FlashML-org/FreeToken#204",
            feature="rows",
            finding="double_alloc",
            pool="req_to_token",
            summary="Two rows come back together; one is put into the free list twice, the other is lost. The totals "
            "are right.",
            consequence="wrong tokens: two requests share a row",
        ),
        Bug(
            name=TWO_FREES,
            reference="sgl-project/sglang#38941",
            feature="pages, overlap",
            finding="page_double_free",
            pool="kv",
            summary="A request that ends gives back its computed slots and those allocated beyond them in two calls, which "
            "meet in the middle of a page.",
            consequence="wrong tokens: the page is handed out twice",
            page_sizes=(16,),
        ),
        Bug(
            name=WRONG_SLOT,
            reference="sgl-project/sglang#10871",
            feature="mixed chunk, abort",
            finding="free_not_owner",
            pool="kv",
            summary="The slot of a request rejected in a mixed batch is looked up from the end of the batch, as if every "
            "later request had one token: another request's slot is given back, its own is not. The totals are right.",
            consequence="wrong tokens for the other request when its slot is handed out again",
        ),
        Bug(
            name=ADAPTER_NOT_IN_KEY,
            reference="vllm-project/vllm#30931",
            feature="prefix cache, adapters",
            finding="namespace_mixup",
            pool=None,
            summary="The cache's keys do not say with which adapter's weights keys and values were computed.",
            consequence="wrong tokens: a request goes on from another adapter's prefix",
        ),
        Bug(
            name=RANK_ORDER,
            reference="lightseekorg/tokenspeed#248",
            feature="tensor ranks, eviction",
            finding="rank_divergence",
            pool="kv",
            summary="Which of several leaves last used at the same time is evicted depends on an order that each process "
            "has for itself.",
            consequence="crash: once a prefix is cached on one rank alone, the ranks' batches differ",
        ),
        Bug(
            name=TWO_KEYS,
            reference="sgl-project/sglang#35270",
            feature="block diffusion, prefix cache",
            finding="alias",
            pool="kv",
            summary="A block that is not final is put into the cache; the next step puts the same slots in under the tokens "
            "that it has then.",
            consequence="wrong tokens for a prompt that matches what the block was before",
        ),
        Bug(
            name=SESSION_TAIL,
            reference="sgl-project/sglang#22862",
            feature="sessions, speculative decode",
            finding="orphan",
            pool="kv",
            summary="A session's next turn goes on behind what is computed; slots that the last turn's drafts got beyond it "
            "are overwritten in the row, and nothing else knows of them.",
            consequence="exhaustion: each turn loses what was allocated beyond its end",
        ),
        Bug(
            name=EVICTABLE_DRIFTS,
            reference="sgl-project/sglang#34823",
            feature="prefix cache, splits",
            finding="count_mismatch",
            pool="kv",
            summary="The split of a node counts its upper part to the evictable slots once more.",
            consequence="crash: the scheduler counts on slots that eviction cannot give",
        ),
        Bug(
            name=NEVER_UNLOCKS,
            reference="sgl-project/sglang#20049",
            feature="host tier, write-through",
            finding="lock_leak",
            pool=None,
            summary="A backup locks its node while the copy runs; its acknowledgement ends in a queue that no loop "
            "drains, and the lock stays.",
            consequence="the cache can no longer be evicted: waiting requests find no room and the server stalls",
        ),
        Bug(
            name=EVICT_UNDER_WRITE_BACK,
            reference="sgl-project/sglang#28468",
            feature="host tier, write-back",
            finding="free_in_flight",
            pool="kv",
            summary="An evicted node's slots are given back while the copy to the host still reads them.",
            consequence="wrong tokens for who loads the node back when the copy runs after the slots' next writer",
        ),
        Bug(
            name=BACKUP_NOT_ORDERED,
            reference="vllm-project/vllm#46278",
            feature="host tier, chunked prefill",
            finding="race",
            pool="kv",
            summary="The copy to the host does not wait for the forward that computes what it copies.",
            consequence="wrong tokens for who loads the chunk back when the forward runs late",
        ),
        Bug(
            name=LOAD_NOT_AWAITED,
            reference="sgl-project/sglang#22811",
            feature="host tier, load-back",
            finding="race",
            pool="kv",
            summary="A loaded prefix counts as cached from the moment its copy is queued; the forward reads it "
            "before it has landed.",
            consequence="wrong tokens for the request that hit the host tier when the copy runs late",
        ),
        Bug(
            name=LOAD_NOT_FENCED,
            reference="sgl-project/sglang#36738",
            feature="host tier, load-back, overlap",
            finding="race",
            pool="kv",
            summary="The overlapped loop gives a finished request's slots back while the step already launched still"
            " writes one; a load into these slots does not wait for that step.",
            consequence="wrong tokens for the loaded prefix when the forward runs late",
        ),
        Bug(
            name=PREFETCH_TAIL,
            reference="sgl-project/sglang#13483",
            feature="storage, prefetch",
            finding="double_free",
            pool="host",
            summary="The host slots of a prefetch's unfinished tail are given back by the reader and by who waits "
            "for it.",
            consequence="two nodes share host slots: wrong tokens for who loads one back",
        ),
        Bug(
            name=ABORT_FREES,
            reference="sgl-project/sglang#24527",
            feature="decode side, abort",
            finding="free_in_flight",
            pool="kv",
            summary="An abort gives pre-allocated slots back while the NIC still writes into them.",
            consequence="wrong tokens for the slots' next owner when the transfer lands late",
        ),
        Bug(
            name=ABORT_LEAKS,
            reference="sgl-project/sglang#8587",
            feature="decode side, abort",
            finding="leak",
            pool="req_to_token",
            summary="An abort drops a request from the transfer queue and gives back neither its row nor its slots.",
            consequence="a row and slots less for each such abort, until requests find none and the server stalls",
        ),
        Bug(
            name=DECODE_BEFORE_END,
            reference="sgl-project/sglang#39229",
            feature="decode side",
            finding="race",
            pool="kv",
            summary="A request counts as arrived when its metadata has: it decodes before its keys and values have "
            "landed.",
            consequence="wrong tokens after the first when the transfer lands late",
        ),
        Bug(
            name=NESTED_GROUP,
            reference="sgl-project/sglang#36646",
            feature="frees in groups",
            finding="leak",
            pool="kv",
            summary="Ending a request begins a group of frees inside the one that is open: what that one had queued is "
            "never carried out.",
            consequence="slots less whenever two requests end in one batch, until requests find none and the server "
            "stalls",
        ),
        Bug(
            name=STALE_MAP,
            reference="sgl-project/sglang#27586",
            feature="sliding window",
            finding="free_not_owner",
            pool="window",
            summary="A tombstone keeps its map entry; when it is recovered, the old window slot is given back through "
            "the entry, although it is another's by then.",
            consequence="two owners share a window slot: wrong tokens",
        ),
        Bug(
            name=TOMBSTONE_FREED,
            reference="sgl-project/sglang#38519",
            feature="sliding window",
            finding="invalid_free",
            pool="window",
            summary="A free through the map does not skip tombstones, whose entry is 0: the padding slot goes to the "
            "free list, once for each such free.",
            consequence="the padding slot is handed out, and more than once: wrong tokens",
        ),
    )
}
