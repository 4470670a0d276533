"""What the SGLang adapter does not follow it does not judge: it lowers its level or stops, and says so."""

from __future__ import annotations

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kvsan.hooks.adapters import readback, sglang
from kvsan.hooks.adapters.probes import Probe, Resolved, wrap
from kvsan.hooks.adapters.sglang.between.records import OwnRecordsWatch
from kvsan.hooks.adapters.sglang.between.table import SINCE_0_5_17
from kvsan.hooks.adapters.sglang.table import PROBES, WINDOWED
from kvsan.hooks.adapters.sglang.watch import KV, Watch
from kvsan.hooks.sanitizer import Sanitizer


def named(name: str, **fields: Any) -> Any:
    """An object of a class of that name."""
    return type(name, (SimpleNamespace,), {})(**fields)


def watch_over(**changes: Any) -> Watch:
    """A watch over as much of a plain scheduler as the adapter looks at before it begins."""
    plain: dict[str, Any] = {
        "allocator": named("TokenToKVPoolAllocator", page_size=1, size=8, available_size=lambda: 8),
        "tree": named("UnifiedRadixCache", page_size=1, linker=None),
        "rows": named("ReqToTokenPool", size=4),
        "drafts": "NONE",
        "host_tier": False,
        "dllm_config": None,
        **changes,
    }
    watch = Watch(Sanitizer())
    watch.kv, watch.tree, watch.rows = plain["allocator"], plain["tree"], plain["rows"]
    watch.scheduler = SimpleNamespace(
        spec_algorithm=SimpleNamespace(name=plain["drafts"], is_none=lambda: plain["drafts"] == "NONE"),
        enable_hierarchical_cache=plain["host_tier"],
        dllm_config=plain["dllm_config"],
        enable_pdmux=plain.get("pdmux", False),
        model_config=SimpleNamespace(is_encoder_decoder=False),
        device="cpu",
        disaggregation_mode=SimpleNamespace(value=plain.get("mode", "null")),
        server_args=SimpleNamespace(
            enable_pd_role_switch=plain.get("switches", False),
            pp_size=plain.get("stages", 1),
            dcp_size=plain.get("sharing", 1),
        ),
        enable_async_d2h_copy=plain.get("confidential", False),
        token_to_kv_pool_allocator=watch.kv,
        req_to_token_pool=watch.rows,
        tree_cache=watch.tree,
    )
    return watch


@pytest.fixture(autouse=True)
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place of the table was found."""
    monkeypatch.setattr(sglang, "_found", [Resolved(each) for each in PROBES])


def test_a_plain_scheduler_is_followed() -> None:
    watch = watch_over()
    assert sglang._can_read_slots(watch, "cpu")
    assert watch.san.report().notes == ()


def test_slot_ids_on_a_cuda_device_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(readback, "readback_from", asked.append)
    watch = watch_over()
    assert sglang._can_read_slots(watch, "cuda")
    assert (asked, watch.san.report().notes) == (["cuda"], ())


@pytest.mark.parametrize(
    ("device", "changes", "why"),
    [
        ("xpu", {}, "slot ids are on the device (xpu)"),
        ("cuda", {"confidential": True}, "in confidential computing every copy"),
        ("cpu", {"allocator": named("SWATokenToKVPoolAllocator", page_size=1)}, "SWATokenToKVPoolAllocator"),
        ("cpu", {"tree": named("LMCacheUnifiedRadixCache")}, "LMCacheUnifiedRadixCache"),
        (
            "cpu",
            {
                "tree": named(
                    "UnifiedRadixCache", page_size=1, linker=None, tree_components=[SimpleNamespace(name="C128")]
                )
            },
            "beside token slots (c128)",
        ),
        ("cpu", {"tree": named("UnifiedRadixCache", page_size=4)}, "larger than the cache's"),
        ("cpu", {"drafts": "DFLASH"}, "drafts by DFLASH"),
        ("cpu", {"host_tier": True}, "host tier"),
        ("cpu", {"dllm_config": object()}, "block diffusion"),
        ("cpu", {"sharing": 2}, "pages several ranks share (--dcp-size)"),
        (
            "cpu",
            {"allocator": named("TokenToKVPoolAllocator", page_size=1, size=8, available_size=lambda: 7)},
            "before the scheduler was ready",
        ),
    ],
)
def test_what_is_not_followed_lowers_the_level(device: str, changes: dict[str, Any], why: str) -> None:
    watch = watch_over(**changes)
    assert not sglang._can_read_slots(watch, device)
    report = watch.san.report()
    (note,) = report.notes
    assert not report.complete
    assert note.startswith("SGLang: only rows are watched")
    assert why in note
    assert watch.san.tracker.state.level == "rows"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ([Resolved(each) for each in PROBES], "a ring that every row has for itself"),
        ([Resolved(each) for each in PROBES if each not in WINDOWED], "set_full_to_swa_mapping and 12 further places"),
        (
            [Resolved(each, error="gone" if each is WINDOWED[5] else "") for each in PROBES],
            "free_swa in this release, without which a sliding window is not followed",
        ),
    ],
)
def test_a_group_without_its_places_is_not_followed(
    found: list[Resolved], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang, "_found", found)
    watch = watch_over()
    watch.window = SimpleNamespace(allocator=SimpleNamespace(swa_req_ring=True))
    assert not sglang._can_read_slots(watch, "cpu")
    (note,) = watch.san.report().notes
    assert why in note


@pytest.mark.parametrize(
    ("role", "parts", "changes", "why"),
    [
        ("prefill", {}, {}, None),
        ("prefill", {"states": object()}, {}, "recurrent states of a disaggregated service"),
        ("prefill", {}, {"drafts": "NGRAM"}, "drafts in a disaggregated service"),
        ("prefill", {}, {"switches": True}, "may change between prefill and decode"),
        ("decode", {}, {}, None),
        ("decode", {"host": object()}, {}, "window slots and host copies that other servers fill"),
    ],
)
def test_servers_of_a_disaggregated_service(
    role: str, parts: dict[str, Any], changes: dict[str, Any], why: str | None
) -> None:
    watch = watch_over(mode=role, **changes)
    for name, part in parts.items():
        setattr(watch, name, part)
    assert sglang._can_read_slots(watch, "cpu") is (why is None)
    notes = watch.san.report().notes
    assert notes == () if why is None else why in notes[0]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_role_without_its_places_is_not_watched(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = sglang.ROLES[role][2]
    monkeypatch.setattr(sglang, "_found", [Resolved(each, error="gone" if each is lost else "") for each in PROBES])
    why = sglang._unfollowed(watch_over(mode=role))
    assert why == f"kvsan does not read {lost.where} in this release, without which {role} servers are not followed"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rows": named("UnifiedHybridReqToTokenPool", size=4)}, "UnifiedHybridReqToTokenPool"),
        ({"mode": "encode"}, "a disaggregated service is encode"),
        ({"stages": 2}, "pipeline stages are not followed yet"),
        ({"pdmux": True}, "prefills and decodes side by side"),
    ],
)
def test_what_would_be_accused_wrongly_is_not_watched(changes: dict[str, Any], why: str) -> None:
    watch = watch_over(**changes)
    sglang._begin(watch, watch.scheduler)
    assert watch.blind
    (failure,) = watch.san.report().failures
    assert why in failure.error
    assert failure.cost == "nothing of SGLang is watched any more in this process"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"drafts": "NGRAM"}, "without which speculative decoding is not followed"),
        ({"mode": "decode"}, "without which decode servers are not followed"),
        ({"mode": "prefill"}, "without which prefill servers are not followed"),
    ],
)
def test_what_writes_rows_unseen_is_not_watched(
    changes: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from 0.5.16 to 0.5.18, whose tables leave these groups out."""
    monkeypatch.setattr(sglang, "_found", [Resolved(each) for each in SINCE_0_5_17])
    watch = watch_over(**changes)
    sglang._begin(watch, watch.scheduler)
    assert watch.blind
    (failure,) = watch.san.report().failures
    assert why in failure.error


@pytest.mark.parametrize(
    ("enabled", "why"), [(True, "streaming sessions are not followed in this release"), (False, None)]
)
def test_sessions_are_followed_from_0_5_19_on(enabled: bool, why: str | None) -> None:
    watch = watch_over()
    watch.scheduler.server_args = SimpleNamespace(enable_streaming_session=enabled)
    assert sglang._unfollowed(watch) is None
    watch.__class__ = OwnRecordsWatch
    assert sglang._unfollowed(watch) == why


@pytest.mark.parametrize(
    ("table_watch", "cache", "followed"),
    [
        (Watch, "ChunkCache", True),
        (Watch, "RadixCache", False),
        (OwnRecordsWatch, "RadixCache", True),
        (OwnRecordsWatch, "UnifiedRadixCache", False),
    ],
)
def test_which_caches_are_followed(table_watch: type[Watch], cache: str, followed: bool) -> None:
    watch = watch_over(tree=named(cache, page_size=1))
    watch.__class__ = table_watch
    assert sglang._can_read_slots(watch, "cpu") is followed


@pytest.mark.parametrize(("needed", "blind"), [(True, True), (False, False)])
def test_a_missing_place_is_a_failure_and_may_end_the_watch(
    needed: bool, blind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reader() -> Any:
        yield

    lost = Resolved(Probe("engine:gone", "alloc", reader, "everything", needed=needed), error="engine has no gone")
    monkeypatch.setattr(sglang, "_found", [lost])
    watch = watch_over()
    assert sglang._in_place(watch) is not blind
    failure, *rest = watch.san.report().failures
    assert (failure.error, failure.cost) == ("engine has no gone", "not seen: everything (alloc)")
    assert [each.cost for each in rest] == ["nothing of SGLang is watched any more in this process"] * blind
    assert watch.blind


@pytest.mark.parametrize("how", ["failed", "gave up"])
def test_what_is_held_when_the_watch_ends_is_no_leak(how: str) -> None:
    watch = Watch(Sanitizer())
    watch.san.pool("kv", kind="kv", size=8)
    watch.san.alloc("kv", [1], owner="r1")
    if how == "failed":
        watch.failed("a reader", RuntimeError("broken"))
    else:
        watch.give_up("something begins that is not followed")
    watch.san.check_end()
    assert watch.blind
    assert watch.san.findings == []


def test_what_comes_last_is_judged_though_the_scheduler_fails() -> None:
    """The server's main process kills it soon after."""

    class Soon:
        """Numbers that come a moment after the failure."""

        def __init__(self) -> None:
            self._at = time.monotonic() + 0.05

        def ready(self) -> bool:
            return time.monotonic() > self._at

        def value(self) -> Any:
            return np.array([3])

    class Scheduler:
        def run_event_loop(self) -> None:
            watch.san.later(partial(watch.san.free, KV, owner="a"), Soon(), failed=pytest.fail)
            raise ValueError("the scheduler's own")

    watch = watch_over()
    watch.san.pool(KV, kind="kv", size=8)
    watch.blind = False
    probe = next(each for each in PROBES if each.where.endswith(".run_event_loop"))
    with pytest.raises(ValueError, match="the scheduler's own"):
        wrap(probe, Scheduler.run_event_loop, watch)(Scheduler())
    assert [finding.slots for finding in watch.san.findings] == [(3,)]
