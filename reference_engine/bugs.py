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
PROFILING_BY_HAND = "profiling-frees-by-hand"
REUSE_FROM_LENGTH = "reuse-inferred-from-length"
CAPTURE_BEFORE_PUBLICATION = "capture-before-publication"
PUBLICATION_REMAPS = "publication-remaps-captured"
STATE_NOT_CLEARED = "state-not-cleared"
DONATED_NOT_REPLACED = "donated-state-not-replaced"
STATE_WITH_ROW = "state-released-with-row"
STAYS_REGISTERED = "retraction-keeps-registration"


EFFECTS = ("wrong tokens", "crash", "exhaustion", "stall", "latent")
"""What users of the engine see of a bug, in a word; latent: nothing."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a finding must point: who acts (None: an event without an owner, such as an eviction; `*` stands for any
    end of the name), and functions of its stack, the innermost first."""

    owner: str | None
    functions: tuple[str, ...]

    def __str__(self) -> str:
        return f"in {' < '.join(self.functions)}" + (f", by {self.owner}" if self.owner is not None else "")


def at(owner: str | None, *functions: str) -> Site:
    """A site."""
    return Site(owner, functions)


@dataclass(frozen=True, slots=True)
class Bug:
    """One switch: `finding` is the kind that must be found, in `pool` (None: it concerns no slots, or a node of the
    cache), committed at `site`, in collision with `earlier` (of a leak: where what leaks came from); `page_sizes` are
    those at which the bug can show.

    `consequence` says what users of the engine see: one of `EFFECTS`, and when; for a latent bug, why nothing.
    """

    name: str
    reference: str
    feature: str
    finding: str
    pool: str | None
    site: Site
    summary: str
    consequence: str
    earlier: Site | None = None
    page_sizes: tuple[int, ...] = (1, 16)

    @property
    def effect(self) -> str:
        """The consequence in a word, one of `EFFECTS`."""
        return self.consequence.partition(":")[0]


BUGS: dict[str, Bug] = {
    bug.name: bug
    for bug in (
        Bug(
            name=ROW_REALLOC,
            reference="sgl-project/sglang#17850",
            feature="chunked prefill",
            finding="race",
            pool="req_to_token",
            site=at("other", "RowWriter.write", "Scheduler._launch"),
            earlier=at("victim", "Forward.launch"),
            summary="A chunked request gives its row back between chunks; the next batch hands it to another request, "
            "whose mapping is written into it while the forward stream may still read it.",
            consequence="wrong tokens: of the chunked request, when the forward runs late",
        ),
        Bug(
            name=ABORT_KEEPS_ROW,
            reference="sgl-project/sglang#10871",
            feature="mixed chunk, abort",
            finding="leak",
            pool="req_to_token",
            site=at("too-long", "Scheduler._tell_end", "Scheduler._end_rejected"),
            earlier=at("too-long", "RowPool.take", "Holdings.claim_row"),
            summary="A request that the scheduler rejects finishes in its first prefill inside a mixed batch; only its "
            "token slot is given back.",
            consequence="exhaustion: one row less for each such request, until there is one and requests run one after "
            "the other",
        ),
        Bug(
            name=ABORT_STILL_LEAKS,
            reference="sgl-project/sglang#10871",
            feature="mixed chunk, abort",
            finding="leak",
            pool="kv",
            site=at("too-long", "Scheduler._tell_end", "Scheduler._end_rejected"),
            earlier=at("too-long", "KvPool.extend", "Scheduler._prefill"),
            summary="A first attempt at the fix gives back the row of that request, but no longer its token slot.",
            consequence="exhaustion: one page less for each such request, until requests find none and the "
            "server stalls",
        ),
        Bug(
            name=ABORT_DOUBLE_RELEASE,
            reference="sgl-project/sglang#10871",
            feature="mixed chunk, abort, retraction",
            finding="double_free",
            pool="req_to_token",
            site=at("retracted", "RowPool.give_back", "Scheduler._process_items"),
            earlier=at("retracted", "RowPool.give_back", "Scheduler._retract"),
            summary="A first attempt at the fix gives back the row of every request of a mixed batch that no longer "
            "runs, also of one that was retracted meanwhile and has given it back.",
            consequence="wrong tokens: two requests share a row",
        ),
        Bug(
            name=PROFILING_BY_HAND,
            reference="sgl-project/sglang#37167",
            feature="pipeline stages, profiling of prefills",
            finding="record_contract",
            pool=None,
            site=at("profile-*", "Holdings.tell_record", "_release_by_hand"),
            summary="The profiling pass gives back its rows and slots by hand and knows nothing of a prefix or a state "
            "that stands in the cache by then: the record still protects it, and so does a lock.",
            consequence="stall: the profiled prefixes can never be evicted, and requests that need their pages wait "
            "for ever",
        ),
        Bug(
            name=REUSE_FROM_LENGTH,
            reference="sgl-project/sglang#37167",
            feature="KV record, retraction",
            finding="stale_row",
            pool="req_to_token",
            site=at("victim", "Holdings.claim_row", "Scheduler._admit"),
            earlier=at("victim", "RowPool.give_back", "Scheduler._retract"),
            summary="Whether a request has a row is inferred from its committed length, which its release did not "
            "zero: a retracted request goes on with the row that it has given back.",
            consequence="wrong tokens: the row is given back twice, and two later requests share it",
        ),
        Bug(
            name=CAPTURE_BEFORE_PUBLICATION,
            reference="sgl-project/sglang#39765",
            feature="tracked states, overlap",
            finding="stale_capture",
            pool="kv",
            site=at("victim", "KvPool.give_back", "Holdings.publish"),
            earlier=at("victim", "Forward.launch"),
            summary="The next decode captures its rows before the result of the prefill goes into the cache, which "
            "swaps the request's slots for the tree's and frees the duplicates.",
            consequence="latent: both slots hold the same keys and values to the bit, and whoever is given a freed "
            "slot writes it behind the decode on the forward stream",
        ),
        Bug(
            name=PUBLICATION_REMAPS,
            reference="sgl-project/sglang#38140",
            feature="radix cache, overlap",
            finding="stale_capture",
            pool="kv",
            site=at("victim", "KvPool.give_back", "Holdings.publish"),
            earlier=at("victim", "Forward.launch"),
            summary="A cached prompt's last page is computed again in fresh slots; the first decode has captured them "
            "when the insertion finds the page in the tree, remaps the row and frees them.",
            consequence="latent: both slots hold the same keys and values to the bit, and whoever is given a freed "
            "slot writes it behind the decode on the forward stream",
        ),
        Bug(
            name=STATE_NOT_CLEARED,
            reference="sgl-project/sglang#17404",
            feature="recurrent states, deferred clearing",
            finding="uninit_read",
            pool="state",
            site=at("victim", "Forward._tell_data", "Forward.launch"),
            summary="The clearing of a new request's state is put off to the forward stream, and left out there: the "
            "first batch begins from what the slot's last tenant left.",
            consequence="wrong tokens: of every request that does not begin from a cached state",
        ),
        Bug(
            name=DONATED_NOT_REPLACED,
            reference="sgl-project/sglang#26941",
            feature="recurrent states, donation to the cache",
            finding="free_not_owner",
            pool="state",
            site=at("donor", "StatePool.give_back", "Holdings.release"),
            earlier=at("donor", "StatePool.take", "States.start"),
            summary="A tracked state goes to the cache and no fresh slot takes its place: the request keeps the "
            "reference and gives the cache's state back at its end.",
            consequence="wrong tokens: of requests that begin from the cached state when its slot is another's",
        ),
        Bug(
            name=STATE_WITH_ROW,
            reference="sgl-project/sglang#12693",
            feature="recurrent states, abort",
            finding="leak",
            pool="state",
            site=at("aborted", "Scheduler._tell_end", "Scheduler.abort"),
            earlier=at("aborted", "StatePool.take", "States.start"),
            summary="States are given back with the row only; a request that was matched and waits for room has states "
            "and no row when it is aborted.",
            consequence="exhaustion: three states less for each such request, until there are those of one and "
            "requests run one after the other",
        ),
        Bug(
            name=STAYS_REGISTERED,
            reference="sgl-project/sglang#30674",
            feature="sparse attention, retraction",
            finding="leak",
            pool="sparse",
            site=at("victim", "Scheduler._tell_end", "Scheduler._end"),
            earlier=at("victim", "Sparse.begin", "Holdings.claim_row"),
            summary="A retracted request does not unregister with the sparse attention; it registers anew when it goes "
            "on, and the buffers of the first time are lost.",
            consequence="exhaustion: the buffers of one row less for each retraction, until there are those of one and "
            "requests run one after the other",
        ),
        Bug(
            name=EVICTS_LOCKED,
            reference="sgl-project/sglang#38480",
            feature="prefix cache, eviction",
            finding="evict_locked",
            pool=None,
            site=at(None, "RadixCache._remove", "RadixCache.evict"),
            earlier=at("victim", "RadixCache.lock", "Holdings.publish"),
            summary="Eviction takes leaves that live requests have locked, as when a node that was split off lacks its "
            "lock.",
            consequence="wrong tokens: once the slots are handed out again",
        ),
        Bug(
            name=UNLOCKS_TWICE,
            reference="bytedance-iaas/sglang#748",
            feature="prefix cache, abort",
            finding="lock_underflow",
            pool=None,
            site=at("gone", "RadixCache.unlock", "AbortUnlocksTwice.release"),
            summary="The abort of a request gives its lock back twice; the second takes another request's.",
            consequence="wrong tokens: the prefix of the next request that locks the node can be evicted while it runs",
        ),
        Bug(
            name=KEEPS_LOCK,
            reference="sgl-project/sglang#20049",
            feature="prefix cache, abort",
            finding="lock_leak",
            pool=None,
            site=at("gone", "Scheduler._tell_end", "Scheduler.abort"),
            earlier=at("gone", "RadixCache.lock", "Holdings.publish"),
            summary="The abort of a request does not give its lock back; the path can never be evicted again.",
            consequence="stall: what is locked for good is missing, until a request that would fit waits for ever",
        ),
        Bug(
            name=LATE_LOCK,
            reference="vllm-project/vllm#33775",
            feature="prefix cache, admission",
            finding="use_after_free",
            pool="kv",
            site=at("victim", "RadixCache.attach", "MatchesWithoutLock._hold_late"),
            earlier=at("victim", "KvPool.extend", "MatchesWithoutLock.extend"),
            summary="A matched prefix is locked only after the request has got its new slots, for which that very "
            "prefix may be evicted.",
            consequence="wrong tokens: the prefix's slots hold the new tokens' keys and values",
        ),
        Bug(
            name=PADDING_STATE,
            reference="sgl-project/sglang#17404",
            feature="recurrent states, padding lanes",
            finding="reserved_slot",
            pool="state",
            site=at("victim", "StatePool.take", "States.start"),
            summary="State 0, which the padding lanes of a decode batch write, is handed out to a request.",
            consequence="wrong tokens: of the request that has it",
        ),
        Bug(
            name=ROW_TWICE,
            reference="FlashML-org/FreeToken#204",
            feature="rows",
            finding="double_alloc",
            pool="req_to_token",
            site=at("d", "RowPool.take", "Holdings.claim_row"),
            earlier=at("c", "RowPool.take", "Holdings.claim_row"),
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
            site=at("first", "KvPool.give_back", "Holdings.release"),
            earlier=at("first", "KvPool.give_back", "FreesTailApart._own_after_insert"),
            summary="A request that ends gives back its computed slots and those allocated beyond them in two calls, "
            "which meet in the middle of a page.",
            consequence="wrong tokens: the page is handed out twice",
            page_sizes=(16,),
        ),
        Bug(
            name=WRONG_SLOT,
            reference="sgl-project/sglang#10871",
            feature="mixed chunk, abort",
            finding="free_not_owner",
            pool="kv",
            site=at("too-long", "KvPool.give_back", "FreesByPlaceFromTheEnd._end_rejected"),
            earlier=at("victim", "KvPool.extend", "Scheduler._prefill"),
            summary="The slot of a request rejected in a mixed batch is looked up from the end of the batch, as if "
            "every later request had one token: another request's slot is given back, its own is not. The totals are "
            "right.",
            consequence="wrong tokens: of the other request when its slot is handed out again",
        ),
        Bug(
            name=ADAPTER_NOT_IN_KEY,
            reference="vllm-project/vllm#30931",
            feature="prefix cache, adapters",
            finding="namespace_mixup",
            pool=None,
            site=at("victim", "RadixCache.match", "Holdings.find_prefix"),
            earlier=at("first", "KvPool.tell_insert", "Holdings._insert"),
            summary="The cache's keys do not say with which adapter's weights keys and values were computed.",
            consequence="wrong tokens: a request goes on from another adapter's prefix",
        ),
        Bug(
            name=RANK_ORDER,
            reference="lightseekorg/tokenspeed#248",
            feature="tensor ranks, eviction",
            finding="rank_divergence",
            pool="kv",
            site=at(None, "RadixCache._remove", "RadixCache.evict"),
            earlier=at(None, "RadixCache._remove", "RadixCache.evict"),
            summary="Which of several leaves last used at the same time is evicted depends on an order that each "
            "process has for itself.",
            consequence="crash: once a prefix is cached on one rank alone, the ranks' batches differ",
        ),
        Bug(
            name=TWO_KEYS,
            reference="sgl-project/sglang#35270",
            feature="block diffusion, prefix cache",
            finding="alias",
            pool="kv",
            site=at("first", "KvPool.tell_insert", "KeysTheUnfinished.refined"),
            earlier=at("first", "KvPool.tell_insert", "KeysTheUnfinished.refined"),
            summary="A block that is not final is put into the cache; the next step puts the same slots in under the "
            "tokens that it has then.",
            consequence="wrong tokens: for a prompt that matches what the block was before",
        ),
        Bug(
            name=SESSION_TAIL,
            reference="sgl-project/sglang#22862",
            feature="sessions, speculative decode",
            finding="orphan",
            pool="kv",
            site=at("second", "RowWriter.write", "Scheduler._launch"),
            earlier=at("first", "KvPool.extend", "Scheduler._extend"),
            summary="A session's next turn goes on behind what is computed; slots that the last turn's drafts got "
            "beyond it are overwritten in the row, and nothing else knows of them.",
            consequence="exhaustion: each turn loses what was allocated beyond its end, until requests find no room "
            "and the server stalls",
        ),
        Bug(
            name=EVICTABLE_DRIFTS,
            reference="sgl-project/sglang#34823",
            feature="prefix cache, splits",
            finding="count_mismatch",
            pool="kv",
            site=at(None, "Scheduler._checkpoint"),
            summary="The split of a node counts its upper part to the evictable slots once more.",
            consequence="crash: the scheduler counts on slots that eviction cannot give",
        ),
        Bug(
            name=NEVER_UNLOCKS,
            reference="sgl-project/sglang#20049",
            feature="host tier, write-through",
            finding="lock_leak",
            pool=None,
            site=at("backup:*", "Scheduler._checkpoint"),
            earlier=at("backup:*", "RadixCache.lock", "HostTier._back_up"),
            summary="A backup locks its node while the copy runs; its acknowledgement ends in a queue that no loop "
            "drains, and the lock stays.",
            consequence="stall: the cache can no longer be evicted, and waiting requests find no room",
        ),
        Bug(
            name=EVICT_UNDER_WRITE_BACK,
            reference="sgl-project/sglang#28468",
            feature="host tier, write-back",
            finding="free_in_flight",
            pool="kv",
            site=at(None, "RadixCache._remove", "RadixCache.evict"),
            earlier=at("backup:*", "Carrier.begin", "HostTier._save"),
            summary="An evicted node's slots are given back while the copy to the host still reads them.",
            consequence="wrong tokens: of who loads the node back when the copy runs after the slots' next writer",
        ),
        Bug(
            name=BACKUP_NOT_ORDERED,
            reference="vllm-project/vllm#46278",
            feature="host tier, chunked prefill",
            finding="race",
            pool="kv",
            site=at("backup:*", "Carrier.begin", "HostTier._back_up"),
            earlier=at("first", "KvPool.tell_data", "Forward.launch"),
            summary="The copy to the host does not wait for the forward that computes what it copies.",
            consequence="wrong tokens: of who loads the chunk back when the forward runs late",
        ),
        Bug(
            name=LOAD_NOT_AWAITED,
            reference="sgl-project/sglang#22811",
            feature="host tier, load-back",
            finding="race",
            pool="kv",
            site=at("again", "Forward.launch"),
            earlier=at("load:*", "Carrier.begin", "HostTier.prefix_ready"),
            summary="A loaded prefix counts as cached from the moment its copy is queued; the forward reads it "
            "before it has landed.",
            consequence="wrong tokens: of the request that hit the host tier when the copy runs late",
        ),
        Bug(
            name=LOAD_NOT_FENCED,
            reference="sgl-project/sglang#36738",
            feature="host tier, load-back, overlap",
            finding="race",
            pool="kv",
            site=at("load:*", "Carrier.begin", "HostTier.prefix_ready"),
            earlier=at("second", "KvPool.tell_data", "Forward.launch"),
            summary="The overlapped loop gives a finished request's slots back while the step already launched still"
            " writes one; a load into these slots does not wait for that step.",
            consequence="wrong tokens: after the loaded prefix when the forward runs late",
        ),
        Bug(
            name=PREFETCH_TAIL,
            reference="sgl-project/sglang#13483",
            feature="storage, prefetch",
            finding="double_free",
            pool="host",
            site=at("prefetch:*", "KvPool.give_back", "Prefetcher._finish"),
            earlier=at("prefetch:*", "KvPool.give_back", "Prefetcher._finish"),
            summary="The host slots of a prefetch's unfinished tail are given back by the reader and by who waits "
            "for it.",
            consequence="wrong tokens: of who loads back one of two nodes that share host slots",
        ),
        Bug(
            name=ABORT_FREES,
            reference="sgl-project/sglang#24527",
            feature="decode side, abort",
            finding="free_in_flight",
            pool="kv",
            site=at("gone", "KvPool.give_back", "DecodeSide.take_aborted"),
            earlier=at("gone", "Carrier.begin", "DecodeSide.start"),
            summary="An abort gives pre-allocated slots back while the NIC still writes into them.",
            consequence="wrong tokens: of the slots' next owner when the transfer lands late",
        ),
        Bug(
            name=ABORT_LEAKS,
            reference="sgl-project/sglang#8587",
            feature="decode side, abort",
            finding="leak",
            pool="req_to_token",
            site=at("gone", "Scheduler._tell_end", "Scheduler._receive"),
            earlier=at("gone", "RowPool.take", "DecodeSide.start"),
            summary="An abort drops a request from the transfer queue and gives back neither its row nor its slots.",
            consequence="exhaustion: a row and slots less for each such abort, until requests find none and the "
            "server stalls",
        ),
        Bug(
            name=DECODE_BEFORE_END,
            reference="sgl-project/sglang#39229",
            feature="decode side",
            finding="race",
            pool="kv",
            site=at("early", "Forward.launch"),
            earlier=at("early", "Carrier.begin", "DecodeSide.start"),
            summary="A request counts as arrived when its metadata has: it decodes before its keys and values have "
            "landed.",
            consequence="wrong tokens: after the first one, when the transfer lands late",
        ),
        Bug(
            name=NESTED_GROUP,
            reference="sgl-project/sglang#36646",
            feature="frees in groups",
            finding="leak",
            pool="kv",
            site=at(None, "Scheduler._checkpoint"),
            earlier=at("one", "KvPool.give_back", "Holdings.release"),
            summary="Ending a request begins a group of frees inside the one that is open: what that one had queued is "
            "never carried out.",
            consequence="exhaustion: slots less whenever two requests end in one batch, until requests find none and "
            "the server stalls",
        ),
        Bug(
            name=STALE_MAP,
            reference="sgl-project/sglang#27586",
            feature="sliding window",
            finding="free_not_owner",
            pool="window",
            site=at("again", "WindowedKvPool.recover", "RadixCache.insert"),
            earlier=at("steady", "WindowedKvPool.extend", "Holdings.extend"),
            summary="A tombstone keeps its map entry; when it is recovered, the old window slot is given back through "
            "the entry, although it is another's by then.",
            consequence="wrong tokens: two owners share a window slot",
        ),
        Bug(
            name=TOMBSTONE_FREED,
            reference="sgl-project/sglang#38519",
            feature="sliding window",
            finding="invalid_free",
            pool="window",
            site=at("gone", "WindowedKvPool._give_back_window", "Scheduler.abort"),
            summary="A free through the map does not skip tombstones, whose entry is 0: the padding slot goes to the "
            "free list, once for each such free.",
            consequence="wrong tokens: the padding slot is handed out, and more than once",
        ),
    )
}
