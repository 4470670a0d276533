"""The registry of historical bugs: each is one switch, with the public change that fixed it."""

from __future__ import annotations

from dataclasses import dataclass

ROW_REALLOC = "row-realloc-between-chunks"
ABORT_KEEPS_ROW = "mixed-chunk-abort-keeps-row"
ABORT_STILL_LEAKS = "mixed-chunk-abort-still-leaks"
ABORT_DOUBLE_RELEASE = "mixed-chunk-abort-double-release"
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
    """One switch: `finding` is the kind that must be found, in `pool` (at a node: None).

    `consequence` is what users of the engine see.
    """

    name: str
    reference: str
    feature: str
    finding: str
    pool: str | None
    summary: str
    consequence: str


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
