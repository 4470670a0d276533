"""How kinds, events, owners and pools read in a report: the one table of verbs and phrases."""

from __future__ import annotations

from dataclasses import dataclass

from kvsan.reporters.escape import named, quoted, visible


@dataclass(frozen=True, slots=True)
class Phrase:
    """How a report words one kind.

    `of` joins the kind to its object; `relation` stands between the present access and the earlier one; `between` joins
    their two sites in one line.
    """

    label: str
    of: str
    relation: str
    between: str = "after"


PHRASES: dict[str, Phrase] = {
    "reserved_slot": Phrase("RESERVED SLOT", "handed out:", "though the pool has reserved it since"),
    "double_alloc": Phrase("DOUBLE ALLOC", "of", "though it has been held since", "✕"),
    "invalid_free": Phrase("INVALID FREE", "of", "which nothing allocated; the last that concerned it is"),
    "double_free": Phrase("DOUBLE FREE", "of", "after it was already given back by"),
    "page_double_free": Phrase("PAGE DOUBLE FREE", "of", "after its whole page was already given back by"),
    "free_not_owner": Phrase("FREE WITHOUT OWNERSHIP", "of", "though somebody else has held it since"),
    "free_in_flight": Phrase("FREE IN FLIGHT", "of", "though it has been in use since", "✕"),
    "evict_locked": Phrase("EVICTION UNDER A LOCK", "of", "though it has been protected since", "✕"),
    "stale_capture": Phrase("STALE CAPTURE", "of", "though an outstanding batch still reads what it took with", "✕"),
    "alias": Phrase("ALIAS", "of", "though it has stood elsewhere since"),
    "orphan": Phrase("ORPHAN", "of", "over the only trace of what came with"),
    "stale_row": Phrase("STALE ROW", "on", "which has been stale since"),
    "use_after_free": Phrase("USE AFTER FREE", "of", "after it was given back by"),
    "race": Phrase("RACE", "on", "is not ordered after", "✕"),
    "uninit_read": Phrase("UNINITIALISED READ", "of", "before anything had written to it since"),
    "leak": Phrase("LEAK", "of", "without giving back what it took with"),
    "lock_leak": Phrase("LOCK LEAK", "on", "without undoing"),
    "lock_underflow": Phrase("LOCK UNDERFLOW", "on", "though no lock was left to undo after"),
    "count_mismatch": Phrase("COUNT MISMATCH", "in", "which does not agree with"),
    "record_contract": Phrase("BROKEN RECORD", "of", "which does not agree with"),
    "namespace_mixup": Phrase("NAMESPACE MIX-UP", "on", "though another key domain put it there with"),
    "rank_divergence": Phrase("RANK DIVERGENCE", "in", "where the lowest rank has"),
}

# Detectors may name an event by its past form.
_PLAIN = {
    "allocated": "alloc", "named": "own", "given": "give", "freed": "free", "inserted": "insert", "shared": "attach",
    "evicted": "evict", "split off": "split", "reused": "reuse", "captured": "capture", "written": "write",
    "transfer": "xfer_begin", "req_end": "end", "req_finish": "finish", "req_abort": "abort", "req_retract": "retract",
    "row_write": "write", "cache_insert": "insert", "kv_record": "record",
}  # fmt: skip

# Past forms for the history of a slot. Those that end in "by" or "for" are followed by the owner.
_PAST: dict[str, str] = {
    "pool": "pool made", "reset": "pool reset", "alloc": "allocated for", "own": "named for", "give": "handed over by",
    "reuse": "continued by", "free": "freed by", "flush": "freed with its group", "insert": "inserted by",
    "attach": "shared by", "evict": "evicted", "split": "split off", "match": "matched by", "lock": "locked by",
    "unlock": "unlocked by", "write": "written by", "capture": "captured for",
    "launch": "launched for", "read": "read by", "done": "seen done", "xfer_begin": "transfer begun for",
    "xfer_end": "transfer ended for", "finish": "finished", "abort": "aborted", "end": "ended", "retract": "retracted",
    "record": "recorded for",
}  # fmt: skip

# Present forms for events whose owner is who they are for, or who they are about.
_FOR = frozenset({"alloc", "own", "capture", "launch", "xfer_begin", "record"})
_ABOUT = frozenset({"end", "finish", "abort", "retract"})

_OWNERS = {"session": "session", "tree": "node", "prefetch": "prefetch"}

_NOUNS = {
    "row": ("row", "rows"),
    "kv": ("token slot", "token slots"),
    "state": ("state", "states"),
    "host": ("host slot", "host slots"),
    "staging": ("staging buffer", "staging buffers"),
}


def phrase(kind: str) -> Phrase:
    """The kind's phrases; a kind that a plugin brought along gets plain ones."""
    return PHRASES.get(kind) or Phrase(kind.replace("_", " ").upper(), "on", "after")


def plain(what: str) -> str:
    """The event's plain name: `alloc` for `allocated`."""
    return _PLAIN.get(what, what)


def verb(what: str) -> str:
    """`WRITE`: what an event does, as its line begins."""
    if plain(what) == "xfer_begin":
        return "TRANSFER"
    return visible(plain(what).replace("_", " ").upper(), 24) or "ACCESS"


def past(what: str, owner: str | None) -> str:
    """`freed by "a3"`, as the history of a slot says it."""
    words = _PAST.get(plain(what)) or f"{what.replace('_', ' ')} by"
    if words.endswith((" by", " for")):
        return f"{words} {owner_short(owner)}" if owner is not None else words.rpartition(" ")[0]
    return words if owner is None else f"{words}, {owner_short(owner)}"


def joiner(what: str) -> str:
    """The word between an event and its owner: `by`, `for`, or none where the event is about the owner."""
    what = plain(what)
    return "" if what in _ABOUT else "for" if what in _FOR else "by"


def owner_phrase(owner: str) -> str:
    """`request "b7"`, `session "s1"`, `node "n4"`; other prefixes stay part of the name."""
    prefix, colon, name = owner.partition(":")
    if not colon:
        return f"request {quoted(owner)}"
    return f"{_OWNERS[prefix]} {quoted(name)}" if prefix in _OWNERS else f"owner {quoted(owner)}"


def owner_short(owner: str) -> str:
    """As `owner_phrase`, but a request is its name alone."""
    return owner_phrase(owner) if ":" in owner else quoted(owner)


def agent_phrase(agent: str) -> str:
    """`host`, `host thread "x"`, `stream fwd`; engines of motion by their name."""
    if agent in ("host", "nic", "io"):
        return agent
    thread = agent.startswith("host:")
    return f"host thread {named(agent[5:])}" if thread else f"stream {named(agent)}"


def nouns(pool_kind: str) -> tuple[str, str]:
    """What a slot of such a pool is called where its pool is not named: one, several."""
    return _NOUNS.get(pool_kind, ("slot", "slots"))


def unit(pool_kind: str) -> tuple[str, str]:
    """What a slot of such a pool is called behind the pool's name: one, several."""
    return ("row", "rows") if pool_kind == "row" else ("state", "states") if pool_kind == "state" else ("slot", "slots")
