"""What kvsan adds to a step of SGLang's scheduler, on the scheduler's thread.

`python -m kvsan.bench_steps` prints, for decode steps of 8 and 64 requests and for a prefill of 64 tokens behind a
matched prefix of 256, at each level, and (late) at `slots` where slot ids come after the call, without what a device's
copies take: microseconds of kvsan (owners and stacks of up to 12 frames included), the same
for each request, and turns of an empty Python loop in that time, by which runs on machines of different speed compare.
The adapter's readers, the sanitizer and the tracker are the real ones; the scheduler is the stand-in of
`kvsan.bench_engine`, whose own time is taken away. It is the thread's CPU time, because machines are shared; each
figure is the median of many steps, levels and stand-in taken in turn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsan.state import LEVELS

if TYPE_CHECKING:
    from kvsan.bench_engine import Scheduler

LATE = "late"
COUNTS = (8, 64)
AFRESH = 200
"""Decode steps after which the requests are as long as at first."""


def dressed(count: int, level: str | None) -> tuple[Scheduler, Callable[[], object]]:
    """A scheduler with `count` requests at a level (`LATE` is one; None: without probes), and what asserts that nothing
    was found."""
    from kvsan.bench_engine import Scheduler

    if level is None:
        scheduler = Scheduler(count)
        scheduler.begin()
        return scheduler, lambda: None
    from kvsan.hooks.adapters.probes import Probe, wrap
    from kvsan.hooks.adapters.readback import HostCopies
    from kvsan.hooks.adapters.sglang import batches, kv, requests, rows, tree
    from kvsan.hooks.adapters.sglang.watch import KV, ROWS, Watch
    from kvsan.hooks.sanitizer import Sanitizer

    san = Sanitizer(level="slots" if level == LATE else level)
    watch = Watch(san)
    watch.readback = HostCopies() if level == LATE else None
    readers: dict[str, dict[str, Any]] = {
        "Stream": {"wait_stream": batches.wait_stream},
        "Event": {"record": batches.record_event, "synchronize": batches.synchronize_event},
        "Allocator": {
            "alloc": kv.alloc, "free": kv.free, "free_group_begin": kv.free_group_begin,
            "free_group_end": kv.free_group_end,
        },
        "Rows": {"write": rows.write, "alloc": rows.alloc, "free": rows.free},
        "Tree": {
            "checkpoint_into_tree": tree.checkpoint, "insert": tree.insert, "evict": tree.evict,
            "path_device_indices": tree.path_device_indices, "prefix_device_indices": tree.prefix_device_indices,
            "inc_lock_ref": tree.inc_lock_ref, "dec_lock_ref": tree.dec_lock_ref,
        },
        "Scheduler": {
            "get_next_batch_to_run": batches.iteration, "run_batch": batches.run_batch,
            "forward_batch_generation": batches.forward, "_apply_war_barrier": batches.barrier,
            "process_batch_result": batches.process, "_add_request_to_queue": requests.queued,
        },
    }  # fmt: skip
    functions: dict[str, Any] = {
        "alloc_for_decode": rows.alloc_for_decode, "write_cache_indices": rows.write_cache_indices,
        "release_kv_cache": requests.release,
    }  # fmt: skip

    def dress(cls: type[Any]) -> type[Any]:
        """The class with the readers that the table of probes has for SGLang's own."""
        names = readers[cls.__name__]
        return type(cls.__name__, (cls,), {n: wrap(Probe(n, "", r, ""), vars(cls)[n], watch) for n, r in names.items()})

    scheduler = dress(Scheduler)(count, dress)
    for name, reader in functions.items():  # functions of a module there, which get no scheduler
        setattr(scheduler, name, wrap(Probe(name, "", reader, ""), getattr(scheduler, name), watch))
    watch.scheduler, watch.rows, watch.kv, watch.tree = scheduler, scheduler.rows, scheduler.allocator, scheduler.tree
    watch.slots = level != "rows"
    watch.name_streams()
    size = scheduler.allocator.available_size() + 1
    san.pool(ROWS, kind="row", size=scheduler.rows.req_to_token.shape[0], reserved=[0])
    san.pool(KV, kind="kv", size=size if watch.slots else 1, reserved=[0])
    watch.node_of = np.zeros(size, np.int64)
    watch.blind = False
    scheduler.begin()

    def fine() -> None:
        san.settle()
        report = san.report()
        if report.findings or report.failures or watch.blind:
            raise RuntimeError(f"the benchmark's own steps were found at fault: {report}")

    return scheduler, fine


def measure(count: int, what: str, repeats: int) -> dict[str | None, float]:
    """Median seconds of a step at each level, and (None) without kvsan; `what` is decode or prefill."""
    clock = time.thread_time
    engines = {level: dressed(count, level) for level in (None, *LEVELS, LATE)}
    spent: dict[str | None, list[float]] = {level: [] for level in engines}
    for turn in range(repeats):
        for level, (scheduler, _) in engines.items():
            if what == "decode" and turn % AFRESH == 0:
                scheduler.restart()
            step = getattr(scheduler, what)
            start = clock()
            step()
            spent[level].append(clock() - start)
    for _, fine in engines.values():
        fine()
    return {level: median(each[len(each) // 10 :]) for level, each in spent.items()}


def main(argv: list[str] | None = None) -> int:
    """Prints the table."""
    from kvsan.bench import spin

    parser = argparse.ArgumentParser(prog="python -m kvsan.bench_steps", description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000, help="steps for each figure, of which the median counts")
    args = parser.parse_args(argv)
    turn = spin() / 1e6
    print(f"a Python loop of a million turns: {turn * 1e9:.0f} ms\n")
    print(f"{'step':<8} {'requests':>8} {'level':<6} {'us/step':>8} {'us/request':>11} {'turns/step':>11}")
    for what, count in [*(("decode", count) for count in COUNTS), ("prefill", 1)]:
        spent = measure(count, what, args.repeats if count < 16 else args.repeats // 2)
        for level in (*LEVELS, LATE):
            more = spent[level] - spent[None]
            print(
                f"{what:<8} {count:>8} {level:<6} {more * 1e6:>8.1f} {more / count * 1e6:>11.2f} {more / turn:>11.0f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
