"""One server with the default prefix cache, its core in Rust, and pages of one slot: clean but for SGLang's own fault,
then the faults of the cache, of its locks, of order and of totals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import load
from .living import HARMLESS, WHEN, Case, Living, apart, comes_from, frames, living, names, one, too_many
from .release import CHECKPOINT, EVICTS, EVICTS_FOR, GIVES_BACK, LOCKS, MATCHES, PUBLISHES


@pytest.fixture(scope="module", params=WHEN)
def server(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    variables = WHEN[request.param]
    with living(model, tmp_path_factory.mktemp("server"), "--max-total-tokens", "1024", **variables) as it:
        yield it


def test_clean(server: Living) -> None:
    assert load.run(server.port, 40) == (40, [])
    server.rest()
    assert load.run(server.port, 12) == (12, [])
    two_domains(server.port)
    two_domains_that_part(server.port)
    server.nothing_is_wrong()


def test_a_publication_takes_what_the_next_batch_has_captured(server: Living) -> None:
    """sgl-project/sglang#38140."""
    assert server.findings(), "equal prompts side by side show it"
    for found in server.findings():
        assert found.earlier is not None
        assert (found.pool, found.earlier.agent) == ("kv", "fwd")
        assert found.slots
        assert re.fullmatch(r"(extend|mixed|decode) \d+", found.earlier.batch or "")
        assert PUBLISHES & {*frames(found.present)}


def two_domains(port: int, shared: int = len(load.PREFIX)) -> None:
    """A prompt without a key domain; then, in a domain of its own, one that has the first `shared` characters of it."""
    request = {"text": load.PREFIX, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    load.post(port, "/generate", request)
    load.post(port, "/generate", {**request, "text": load.PREFIX[:shared] + "Other.", "extra_key": "tenant"})


def two_domains_that_part(port: int) -> None:
    """The second prompt ends its match inside what the first has inserted, so that the lookup splits it."""
    two_domains(port, shared=100)


CASES = [
    Case("foreign_free", "free_not_owner", GIVES_BACK),
    Case("stale_prefix", "stale_row", "run_batch"),
    Case("stale_prefix:inside", "stale_row", "run_batch"),
    Case("chunk_row_freed", "stale_row", "alloc_for_extend", traffic=one),
    Case("lock_leak", "lock_leak", "process_batch_result", steps=1000),
    Case("evict_leak:inside", "leak", EVICTS, traffic=too_many),
    Case("evict_twice:inside", "double_free", EVICTS, traffic=too_many),
    Case("evict_locked:inside", "evict_locked", EVICTS_FOR, traffic=too_many),
    Case("namespace_mixup", "namespace_mixup", MATCHES, traffic=two_domains),
    Case("namespace_mixup", "namespace_mixup", MATCHES, traffic=two_domains_that_part),
    Case("count_mismatch", "count_mismatch", "on_idle"),
    Case("lock_underflow", "lock_underflow", CHECKPOINT, traffic=one),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fault(case: Case, server: Living) -> None:
    struck = server.strike(case.fault, case.traffic)
    first = names(struck, case)
    if case.kind == "count_mismatch":
        claimed = struck.facts["evictable"] + 1
        assert first.extra["evictable + protected"] == f"{claimed}, should be {claimed - 1}"
    else:
        assert first.owner or first.holder
    if case.kind in ("lock_leak", "evict_locked"):
        assert LOCKS & {*frames(first.earlier)}
    elif first.pool is not None and first.slots:
        assert comes_from(first) & {"alloc_token_slots", "alloc_req_slots"}, first
    server.serves_cleanly()


def test_without_the_barrier_the_missing_order_is_named(server: Living) -> None:
    struck = server.strike("no_barrier", lambda port: load.run(port, 16))
    race = struck.found[0]
    assert (race.kind, race.pool) == ("race", "rows")
    assert race.present is not None
    assert race.earlier is not None
    assert (race.present.agent, race.earlier.agent) == ("sched", "fwd")
    assert race.earlier.owner
    assert "run_batch" in frames(race.earlier)
    assert "nothing makes sched wait for fwd" in race.missing
    assert {finding.kind for finding in struck.found} == {"race"}
    server.serves_cleanly()


@pytest.mark.parametrize("what", HARMLESS)
def test_no_fault(what: str, server: Living) -> None:
    assert server.strike(what, apart).found == ()


def test_the_report(server: Living) -> None:
    server.reports_what_was_told()
