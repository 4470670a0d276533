"""What runs beside a process's sanitizer: the trace recorder, the watch for an engine that has gone quiet, and the
answers to who asks from outside."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from kvsan.findings import Failure
from kvsan.sinks import Sink

from .answers import Answers
from .sanitizer import Sanitizer


def begin(sanitizer: Sanitizer, sink: Sink) -> Callable[[], None]:
    """Starts what the options ask for; the result ends it. What fails to start is told, and costs only itself."""
    ends: list[Callable[[], None]] = []
    trace = sanitizer.options.record_path(os.getpid())
    if trace is not None:
        try:
            from kvsan.traces.recorder import Recorder

            recorder = Recorder(trace, sanitizer)
        except OSError as error:
            sink.failure(Failure("record", f"{type(error).__name__}: {error}", "no trace is recorded", os.getpid()))
        else:
            sanitizer.add_plugin(recorder, "recorder")
            ends.append(lambda: _close(recorder, sink))
    if sanitizer.options.spool is not None:
        ends.append(Answers(sanitizer, sanitizer.options.spool).end)
    if sanitizer.options.idle_seconds is not None:
        quiet = threading.Event()
        watch = threading.Thread(
            target=_watch, args=(sanitizer, sanitizer.options.idle_seconds, quiet), name="kvsan-idle", daemon=True
        )
        watch.start()
        ends.append(quiet.set)

    def end() -> None:
        for each in ends:
            each()

    return end


def _close(recorder: object, sink: Sink) -> None:
    from kvsan.traces.recorder import Recorder

    assert isinstance(recorder, Recorder)
    for note in recorder.close():
        sink.note(note)


def _watch(sanitizer: Sanitizer, seconds: float, ended: threading.Event) -> None:
    """Judges once, as `idle` does, whenever no event has come for so long and none waits."""
    judged = 0  # before the first event there is nothing to judge, and an engine may take long to begin
    while not ended.wait(seconds / 4):
        if sanitizer.waiting:  # what has come is the engine's thread to take in, which knows what its device does
            continue
        if time.monotonic_ns() - sanitizer.last_event_ns >= seconds * 1e9 and sanitizer.events != judged:
            sanitizer.check_end()
            judged = sanitizer.events
