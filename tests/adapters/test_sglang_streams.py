"""The order of streams, as torch's classes for CUDA ask for it: one call is made of others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kvsan.hooks.adapters.probes import Probe, wrap
from kvsan.hooks.adapters.sglang import batches
from kvsan.hooks.adapters.sglang.watch import Watch
from kvsan.hooks.sanitizer import Sanitizer
from kvsan.hooks.specification import hookimpl

from kvsan.events import Event


class Heard:
    """A plugin that notes the order that is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @hookimpl
    def kvsan_record(self, event: Event) -> None:
        self.said.append(f"record on {event.agent}")

    @hookimpl
    def kvsan_wait(self, event: Event) -> None:
        self.said.append(f"wait on {event.agent}")


class Streams:
    """As many classes as `torch.cuda.streams` has, whose methods call each other as there; under the probes."""

    def __init__(self) -> None:
        class Mark:
            def record(self, stream: Any = None) -> None:
                if stream is lost:
                    raise RuntimeError("the stream is lost")

            def wait(self, stream: Any = None) -> None:
                pass

        class Stream:
            def wait_event(self, event: Any) -> None:
                event.wait(self)

            def record_event(self) -> Mark:
                event = Mark()
                event.record(self)
                return event

            def wait_stream(self, stream: Any) -> None:
                self.wait_event(stream.record_event())

        self.watch = Watch(Sanitizer())
        self.heard = Heard()
        self.watch.san.add_plugin(self.heard)
        self.watch.blind = False
        for cls, name, reader in (
            (Stream, "wait_stream", batches.wait_stream),
            (Stream, "wait_event", batches.wait_event),
            (Mark, "wait", batches.event_wait),
            (Mark, "record", batches.record_event),
        ):
            setattr(cls, name, wrap(Probe(name, "", reader, ""), getattr(cls, name), self.watch))
        self.forward, self.schedule, lost = Stream(), Stream(), Stream()
        self.lost = lost
        self.watch.scheduler = SimpleNamespace(
            forward_stream=self.forward,
            schedule_stream=self.schedule,
            device_module=SimpleNamespace(current_stream=lambda: self.schedule),
        )
        self.watch.name_streams()


@pytest.fixture
def streams() -> Streams:
    """Fresh ones for each test."""
    return Streams()


def test_a_stream_that_waits_for_another_is_told_once(streams: Streams) -> None:
    streams.schedule.wait_stream(streams.forward)
    assert streams.heard.said == ["record on fwd", "wait on sched"]


def test_a_stream_that_waits_for_an_event_is_told_once(streams: Streams) -> None:
    streams.schedule.wait_event(streams.forward.record_event())
    assert streams.heard.said == ["record on fwd", "wait on sched"]


def test_an_event_alone_is_on_the_current_stream(streams: Streams) -> None:
    event = streams.forward.record_event()
    event.record()
    event.wait()
    assert streams.heard.said == ["record on fwd", "record on sched", "wait on sched"]


def test_after_a_call_that_failed_order_is_told_as_before(streams: Streams) -> None:
    with pytest.raises(RuntimeError, match="lost"):
        streams.schedule.wait_stream(streams.lost)
    streams.heard.said.clear()
    streams.schedule.wait_event(streams.forward.record_event())
    assert streams.heard.said == ["record on fwd", "wait on sched"]
