"""A scheduler for the benchmark: SGLang's calls and tensors in SGLang's order, without a model and without SGLang.

A class stands for the one of SGLang's that it is named after, as far as a decode step and a prefill get there; the
adapter's own readers are put around it. Its own work is what SGLang cannot do without (a few small tensors), so what
kvsan adds to a step is seen here, and not what a step costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Dress = Callable[[type[T]], type[T]]
"""What puts probes around a class; `bare` puts none."""


def bare(cls: type[T]) -> type[T]:
    """The class as it is."""
    return cls


WIDTH = 1024
LENGTH = 512
"""Cells that a decoding request begins with."""
PREFIX, CHUNK = 256, 64
"""Slots that a prefill finds in the cache, and slots that it computes."""


class Stream:
    """A stream of a CPU, which orders nothing."""

    def wait_stream(self, other: Stream) -> None:
        """All that `other` was given comes before what comes next."""


class Event:
    """An event of a CPU."""

    def record(self, stream: Stream | None = None) -> None:
        """Marks a place in the stream."""

    def synchronize(self) -> None:
        """Waits for that place."""


class Device:
    """`torch.cpu`, as far as streams go."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def current_stream(self) -> Stream:
        """The stream that work is issued on now."""
        return self.stream


@dataclass
class Record:
    """`ReqKvInfo`: what a request holds."""

    req_pool_idx: int | None = None
    kv_allocated_len: int = 0
    kv_committed_len: int = 0
    cache_protected_len: int = 0

    @property
    def holds_kv(self) -> bool:
        """Has it got a row?"""
        return self.req_pool_idx is not None


@dataclass(eq=False)
class Request:
    """`Req`."""

    rid: str
    kv: Record = field(default_factory=Record)
    last_node: int = 0
    session: Any = None
    finished_reason: Any = None

    def finished(self) -> bool:
        """Is it over?"""
        return self.finished_reason is not None


class Mode:
    """`ForwardMode`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_target_verify(self) -> bool:
        """It judges no drafts."""
        return False

    def is_extend(self) -> bool:
        """Is it a prefill?"""
        return self.name == "EXTEND"


@dataclass(eq=False)
class Batch:
    """`ScheduleBatch`."""

    reqs: list[Request]
    forward_mode: Mode
    seq_lens_cpu: torch.Tensor
    req_pool_indices_cpu: torch.Tensor
    forward_iter: int = 0
    out_cache_loc: torch.Tensor | None = None


@dataclass
class Result:
    """`GenerationBatchResult`."""

    copy_done: Event


@dataclass
class Insertion:
    """`InsertParams`."""

    value: torch.Tensor


class Allocator:
    """`TokenToKVPoolAllocator`."""

    page_size = 1

    def __init__(self, size: int) -> None:
        self.free_pages = torch.arange(1, size + 1, dtype=torch.int64)
        self.release_pages = torch.empty(0, dtype=torch.int64)
        self.free_group: list[torch.Tensor] | None = None

    def available_size(self) -> int:
        """Free slots."""
        return len(self.free_pages) + len(self.release_pages)

    def alloc(self, count: int) -> torch.Tensor:
        """Takes slots."""
        taken = self.free_pages[:count]
        self.free_pages = self.free_pages[count:]
        return taken

    def free(self, slots: torch.Tensor) -> None:
        """Gives slots back."""
        if self.free_group is not None:
            self.free_group.append(slots.clone())
        else:
            self.free_pages = torch.cat((self.free_pages, slots))

    def free_group_begin(self) -> None:
        """What is freed is pending."""
        self.free_group = []

    def free_group_end(self) -> None:
        """What is pending is free."""
        group, self.free_group = self.free_group, None
        if group:
            self.free(torch.cat(group))


class Rows:
    """`ReqToTokenPool`."""

    def __init__(self, count: int) -> None:
        self.req_to_token = torch.zeros((count + 1, WIDTH), dtype=torch.int32)
        self.free_slots = list(range(1, count + 1))

    def write(self, indices: Any, values: torch.Tensor) -> None:
        """Writes cells."""
        self.req_to_token[indices] = values

    def alloc(self, reqs: list[Request]) -> list[int]:
        """Binds rows to requests."""
        for req in reqs:
            if not req.kv.holds_kv:
                req.kv.req_pool_idx = self.free_slots.pop()
        return [int(req.kv.req_pool_idx or 0) for req in reqs]

    def free(self, req: Request) -> None:
        """Gives a request's row back."""
        assert req.kv.req_pool_idx is not None
        self.free_slots.append(req.kv.req_pool_idx)
        req.kv.req_pool_idx = None


class Tree:
    """`UnifiedRadixCache` with one prefix (node 1), which the same prompt is found in and added to again and again."""

    disable = False

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.nodes: dict[int, torch.Tensor] = {}

    def prefix_device_indices(self, req: Request) -> torch.Tensor:
        """What a request matched."""
        return self.nodes[req.last_node]

    def path_device_indices(self, node: int) -> torch.Tensor:
        """What stands on the way to a node."""
        return self.nodes[node]

    def checkpoint_into_tree(self, req: Request) -> None:
        """A request publishes what it has computed, and goes on with what the tree has."""
        row = self.scheduler.rows.req_to_token[req.kv.req_pool_idx, : req.kv.kv_committed_len].to(torch.int64)
        self.insert(Insertion(row))
        node = self.ends(row)
        path = self.path_device_indices(node)
        old = req.kv.cache_protected_len
        self.scheduler.rows.write((req.kv.req_pool_idx, slice(old, len(path))), path[old:].to(torch.int32))
        req.kv.cache_protected_len = len(path)
        if req.last_node:
            self.dec_lock_ref(req.last_node)
        req.last_node = node
        self.inc_lock_ref(node)

    def ends(self, slots: torch.Tensor) -> int:
        """The node at which so long a prompt ends."""
        return 1 if len(slots) == PREFIX else 2

    def insert(self, params: Insertion) -> None:
        """Takes slots over."""
        self.nodes[self.ends(params.value)] = params.value

    def inc_lock_ref(self, node: int) -> None:
        """One lock more."""

    def dec_lock_ref(self, node: int) -> None:
        """One lock less."""

    def evict(self) -> None:
        """Gives back what node 2 added to node 1."""
        self.scheduler.allocator.free(self.nodes.pop(2)[PREFIX:])


class Scheduler:
    """The overlapped loop of `Scheduler`, with `count` requests that decode, and room for one that is prefilled."""

    _war_barrier_enabled = True

    def __init__(self, count: int, dress: Dress[Any] = bare) -> None:
        stream, self.event = dress(Stream), dress(Event)
        self.schedule_stream, self.forward_stream, self.copy_stream = stream(), stream(), stream()
        self.device_module = Device(self.schedule_stream)
        self.allocator: Allocator = dress(Allocator)((count + 1) * WIDTH)
        self.rows: Rows = dress(Rows)(count + 1)
        self.tree: Tree = dress(Tree)(self)
        self.count = count
        self.forwards = 0
        self.requests = 0
        self.running: list[Request] = []
        self.lengths = torch.zeros(0, dtype=torch.int64)
        self.numbers = torch.zeros(0, dtype=torch.int64)
        self.last: tuple[Batch, Result] | None = None

    # -- what the benchmark calls

    def begin(self) -> None:
        """Puts a prefix into the cache, and takes in the requests that decode."""
        prompt = Request("prompt")
        self._add_request_to_queue(prompt)
        self.extend(prompt, 0, PREFIX)
        self.tree.checkpoint_into_tree(prompt)
        self._end(prompt)
        self.restart()

    def restart(self) -> None:
        """The requests that decode end, and others begin."""
        self.finish()
        for req in self.running:
            self._end(req)
        self.running = []
        for _ in range(self.count):
            self.requests += 1
            req = Request(f"{self.requests:032x}")
            self._add_request_to_queue(req)
            self.running.append(req)
            self.extend(req, 0, LENGTH)
        self.lengths = torch.full((self.count,), LENGTH, dtype=torch.int64)
        self.numbers = torch.tensor([req.kv.req_pool_idx for req in self.running], dtype=torch.int64)

    def decode(self) -> None:
        """One iteration of the loop: a token for every request, while the results of the one before are taken in."""
        batch = self.get_next_batch_to_run()
        result = self.run_batch(batch)
        self._apply_war_barrier()
        last, self.last = self.last, (batch, result)
        if last is not None:
            self.process_batch_result(*last)

    def finish(self) -> None:
        """Takes in the last results."""
        if self.last is not None:
            self.process_batch_result(*self.last)
            self.last = None

    def prefill(self) -> None:
        """A request's prompt is matched, computed, published; it ends, and what it left in the cache is evicted."""
        self.requests += 1
        req = Request(f"prefill {self.requests}")
        self._add_request_to_queue(req)
        self.get_next_batch_to_run(decode=False)
        req.last_node = 1
        self.tree.inc_lock_ref(1)
        self.extend(req, PREFIX, PREFIX + CHUNK)
        self.tree.checkpoint_into_tree(req)
        self._end(req)
        self.tree.evict()

    def _end(self, req: Request) -> None:
        req.finished_reason = "length"
        self.release_kv_cache(req, self.tree)

    # -- SGLang's

    def get_next_batch_to_run(self, decode: bool = True) -> Batch:
        """`get_next_batch_to_run`; a prefill's requests are made ready by `prefill` itself."""
        batch = Batch(self.running, Mode("DECODE"), self.lengths, self.numbers)
        if decode:
            self.alloc_for_decode(batch, 1)
            self.lengths = batch.seq_lens_cpu
        return batch

    def alloc_for_decode(self, batch: Batch, token_per_req: int) -> None:
        """`alloc_for_decode`."""
        batch.out_cache_loc = self.allocator.alloc(len(batch.reqs))
        locations = batch.seq_lens_cpu.clone()
        self.rows.write((batch.req_pool_indices_cpu, locations), batch.out_cache_loc.to(torch.int32))
        for req in batch.reqs:
            req.kv.kv_allocated_len += 1
            req.kv.kv_committed_len += 1
        batch.seq_lens_cpu = batch.seq_lens_cpu + 1

    def extend(self, req: Request, begin: int, end: int) -> None:
        """A prefill, from row to result."""
        prefix = self.tree.prefix_device_indices(req) if begin else torch.empty(0, dtype=torch.int64)
        self.rows.alloc([req])
        slots = self.allocator.alloc(end - begin)
        number = torch.tensor([req.kv.req_pool_idx])
        before, after = torch.tensor([begin]), torch.tensor([end])
        new = after - before
        self.write_cache_indices(slots, number, number, before, before, after, after, new, new, [prefix], self.rows)
        req.kv.kv_allocated_len = req.kv.kv_committed_len = end
        req.kv.cache_protected_len = begin
        batch = Batch([req], Mode("EXTEND"), after, number, out_cache_loc=slots)
        self.process_batch_result(batch, self.run_batch(batch))

    def write_cache_indices(
        self, slots: Any, numbers: Any, numbers_cpu: Any, begins: Any, begins_cpu: Any, ends: Any, ends_cpu: Any,
        new: Any, new_cpu: Any, prefixes: list[Any], rows: Any,
    ) -> None:  # fmt: skip
        """`write_cache_indices`."""
        number, begin, end = int(numbers_cpu[0]), int(begins_cpu[0]), int(ends_cpu[0])
        self.rows.write((number, slice(0, begin)), prefixes[0].to(torch.int32))
        self.rows.write((number, slice(begin, end)), slots.to(torch.int32))

    def run_batch(self, batch: Batch) -> Result:
        """`run_batch`."""
        self.forwards += 1
        batch.forward_iter = self.forwards
        self.device_module.stream = self.forward_stream
        self.forward_stream.wait_stream(self.schedule_stream)
        self.forward_batch_generation(batch)
        result = Result(self.event())
        self.device_module.stream = self.copy_stream
        self.copy_stream.wait_stream(self.forward_stream)
        result.copy_done.record()
        self.device_module.stream = self.schedule_stream
        self.schedule_stream.wait_stream(self.forward_stream)
        return result

    def forward_batch_generation(self, batch: Batch) -> None:
        """`TpModelWorker.forward_batch_generation`."""

    def _apply_war_barrier(self) -> None:
        """`_apply_war_barrier`."""

    def process_batch_result(self, batch: Batch, result: Result) -> None:
        """`process_batch_result`."""
        self.allocator.free_group_begin()
        result.copy_done.synchronize()
        self.allocator.free_group_end()

    def _add_request_to_queue(self, req: Request) -> None:
        """`_add_request_to_queue`."""

    def release_kv_cache(self, req: Request, tree: Tree) -> None:
        """`release_kv_cache`: what the cache did not take goes back."""
        if req.last_node:
            self.tree.dec_lock_ref(req.last_node)
        row = self.rows.req_to_token[req.kv.req_pool_idx, req.kv.cache_protected_len : req.kv.kv_allocated_len]
        self.allocator.free(row.to(torch.int64))
        self.rows.free(req)
        req.kv.kv_allocated_len = 0
