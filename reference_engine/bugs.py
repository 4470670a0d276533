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


@dataclass(frozen=True, slots=True)
class Bug:
    """One switch: `finding` is the kind that must be found, in `pool`; `consequence` what users of the engine see."""

    name: str
    reference: str
    feature: str
    finding: str
    pool: str
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
    )
}
