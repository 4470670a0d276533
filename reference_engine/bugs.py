"""The registry of historical bugs: each is one switch, with the public change that fixed it."""

from __future__ import annotations

from dataclasses import dataclass

ROW_REALLOC = "row-realloc-between-chunks"
ABORT_KEEPS_ROW = "mixed-chunk-abort-keeps-row"
ABORT_STILL_LEAKS = "mixed-chunk-abort-still-leaks"
ABORT_DOUBLE_RELEASE = "mixed-chunk-abort-double-release"
PROFILING_BY_HAND = "profiling-frees-by-hand"
REUSE_FROM_LENGTH = "reuse-inferred-from-length"
CAPTURE_BEFORE_PUBLICATION = "capture-before-publication"
PUBLICATION_REMAPS = "publication-remaps-captured"
STATE_NOT_CLEARED = "state-not-cleared"
DONATED_NOT_REPLACED = "donated-state-not-replaced"
STATE_WITH_ROW = "state-released-with-row"


EFFECTS = ("wrong tokens", "crash", "exhaustion", "stall", "latent")
"""What users of the engine see of a bug, in a word; latent: nothing."""


@dataclass(frozen=True, slots=True)
class Bug:
    """One switch: `finding` is the kind that must be found, in `pool` (None where it concerns no slots).

    `consequence` says what users of the engine see: one of `EFFECTS`, and when; for a latent bug, why nothing.
    """

    name: str
    reference: str
    feature: str
    finding: str
    pool: str | None
    summary: str
    consequence: str

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
            summary="A request that the scheduler rejects finishes in its first prefill inside a mixed batch; only its "
            "token slot is given back.",
            consequence="exhaustion: one row less for each such request, until none is left and the server stalls",
        ),
        Bug(
            name=ABORT_STILL_LEAKS,
            reference="sgl-project/sglang#10871",
            feature="mixed chunk, abort",
            finding="leak",
            pool="kv",
            summary="A first attempt at the fix gives back the row of that request, but no longer its token slot.",
            consequence="exhaustion: one page less for each such request",
        ),
        Bug(
            name=ABORT_DOUBLE_RELEASE,
            reference="sgl-project/sglang#10871",
            feature="mixed chunk, abort, retraction",
            finding="double_free",
            pool="req_to_token",
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
            summary="States are given back with the row only; a request that was matched and waits for room has states "
            "and no row when it is aborted.",
            consequence="exhaustion: three states less for each such request, until the server stalls",
        ),
    )
}
