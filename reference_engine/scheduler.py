"""The scheduler: which batch runs next, and what its results mean for the requests.

One call of `step` is one iteration. The normal loop sees a batch's tokens before it plans the next batch; only a batch
of chunks that draws no token is left to run. The overlapped loop launches the next batch first, and learns one step
late that a request is over: that request's last step is computed for nothing.
"""

from __future__ import annotations

from collections import deque
from itertools import count

from . import bugs
from .batch import Batch, Item
from .config import EngineConfig
from .disaggregation import DecodeSide
from .faulty_sessions import SESSIONS
from .forward import Forward
from .guesses import Guesses
from .holdings import Holdings
from .host_tier import HostTier
from .pools import KV, ROWS, STATES
from .probe import Probe
from .request import Finish, Output, Request
from .row_writer import RowWrite
from .sessions import Sessions
from .sparse import SPARSE


class Scheduler:
    """Requests wait, are prefilled in chunks (at most one request has chunks to come), then decode until they end."""

    def __init__(
        self,
        config: EngineConfig,
        holdings: Holdings,
        forward: Forward,
        probe: Probe,
        tier: HostTier | None = None,
        decode_side: DecodeSide | None = None,
    ) -> None:
        self._config = config
        self._holdings = holdings
        self._forward = forward
        self._probe = probe
        self._tier = tier
        self._decode_side = decode_side
        self._guesses = Guesses(config, holdings)
        self.sessions = SESSIONS.get(config.bug or "", Sessions)(
            holdings, probe, keep=holdings.states is None and decode_side is None
        )
        self._names = (str(number) for number in count(1))
        self.waiting: deque[Request] = deque()
        self.chunked: Request | None = None
        self.running: list[Request] = []
        self.in_flight: deque[Batch] = deque()
        self._writes: list[RowWrite] = []
        self._writes_after_reads = True
        self._outputs: list[Output] = []

    @property
    def busy(self) -> bool:
        """Whether anything is queued, running, in flight or to be told."""
        return bool(
            self.waiting
            or self.chunked
            or self.running
            or self.in_flight
            or self._outputs
            or (self._tier is not None and self._tier.busy)
            or (self._decode_side is not None and self._decode_side.busy)
        )

    def add(self, request: Request) -> None:
        """Queues a request. One that can never fit is queued as rejected: it ends in its first prefill."""
        self._probe.req_start(owner=request.rid)
        self.sessions.begin(request)
        wanted, limit = len(request.prompt), self._config.max_input_len
        capacity = min(self._config.context_len, self._config.kv_tokens)
        if wanted > limit:
            request.rejected = f"the input has {wanted} tokens; this engine takes at most {limit}"
        elif wanted + request.sampling.max_new_tokens > capacity:
            request.rejected = f"input and output need more than the {capacity} tokens that this engine can hold"
        if request.rejected is not None:
            request.prompt = [0]
        self._queue(request)
        if self._decode_side is not None:
            self._decode_side.queued(request)
        elif self._tier is not None:
            self._tier.expect(request)

    def abort(self, rid: str) -> None:
        """Ends a request at whatever stage it is; an unknown id is no error, it may just have ended."""
        for request in (*self.waiting, *self.running, *((self.chunked,) if self.chunked else ())):
            if request.rid == rid:
                self._forget(request)
                self._end(request, Finish.ABORT)
        if self._decode_side is not None:
            self._decode_side.abort(rid)

    def step(self) -> list[Output]:
        """One iteration; returns what there is to tell the clients."""
        self._acknowledge(wait=False)
        while self.in_flight and self._config.guesses:
            self._process(self.in_flight.popleft())
        batch = self._next_batch()
        if batch is not None:
            self._launch(batch)
        elif not self.in_flight:
            self._acknowledge(wait=True)
        overlap = self._config.loop == "overlap"
        if overlap or batch is None or batch.samples:
            while len(self.in_flight) > (1 if overlap and batch is not None else 0):
                self._process(self.in_flight.popleft())
        outputs, self._outputs = self._outputs, []
        self._checkpoint()
        return outputs

    def prefill_alone(self, request: Request) -> None:
        """Prefills a request while nothing else runs; it keeps what it holds, and its token is forgotten."""
        self.waiting.append(request)
        while self.waiting or self.chunked is not None:
            self._acknowledge(wait=True)
            self._launch(Batch(next(self._names), self._prefill_items(), mixed=False))
            self._forward.result(self.in_flight.popleft())
            request.outstanding -= 1

    # Planning: which requests, how far.

    def _next_batch(self) -> Batch | None:
        items = self._prefill_items()
        mixed = bool(items) and self._config.mixed_chunk and bool(self.running) and self._decode_fits()
        if mixed or not items:
            items += self._decode_items()
        if not items:
            return None
        started = [item.request for item in items if item.first]
        self.running += [request for request in started if request.rejected is None]
        return Batch(next(self._names), items, mixed)

    def _prefill_items(self) -> list[Item]:
        if self._decode_side is not None:
            self._receive(self._decode_side)
            return []
        budget = self._config.chunked_prefill_size
        items: list[Item] = []
        if self.chunked is not None:
            request, self.chunked = self.chunked, None
            item = self._next_chunk(request, budget)
            if item is None:
                return []
            items.append(item)
            budget -= len(item.slots)
        while budget and self.waiting and self.chunked is None and self._has_row(self.waiting[0]):
            item = self._admit(self.waiting[0], budget)
            if item is None:
                break
            self.waiting.popleft()
            items.append(item)
            budget -= len(item.slots)
        return items

    def _has_row(self, request: Request) -> bool:
        """Whether there is a row for the request: its session's, a free one, or one that an idle session gives up."""
        return self.sessions.has_row(request) or bool(self._holdings.rows.available) or self.sessions.shed()

    def _fits(self, demand: int) -> bool:
        """Whether there are so many slots; idle sessions give theirs up for it."""
        while not self._holdings.has_room(demand):
            if not self.sessions.shed():
                return False
        return True

    def _next_chunk(self, request: Request, budget: int) -> Item | None:
        self._holdings.publish(request, request.kv.committed)
        upto = min(len(request.tokens), request.kv.start + budget)
        if not self._fits(self._holdings.demand(request, upto)):
            self.chunked = request
            if not self.running:
                self._retract(request)
            return None
        if self._config.bug == bugs.ROW_REALLOC:
            self._holdings.give_row(request)
            self._writes_after_reads = False
        return self._prefill(request, upto)

    def _admit(self, request: Request, budget: int) -> Item | None:
        """Starts a waiting request; None if there is no room for its tokens and one step of those that run."""
        resumed = self.sessions.resume(request)
        if not resumed:
            if not self._prefix_ready(request):
                return None
            if not self._holdings.find_prefix(request):
                self._holdings.release(request)
                return None
        upto = min(len(request.tokens), request.kv.start + budget)
        reserve = self._config.page_size * len(self.running)
        if not self._fits(self._holdings.demand(request, upto) + reserve):
            if resumed and self.running:
                self.sessions.keep(request)
            else:
                self._holdings.release(request, keep_states=True)
            return None
        request.cached_tokens = request.kv.start
        return self._prefill(request, upto)

    def _prefix_ready(self, request: Request) -> bool:
        """Whether no tier has more of the request's prefix; the tiers keep what was computed without an adapter."""
        return self._tier is None or request.adapter is not None or self._tier.prefix_ready(request.tokens[:-1])

    def _prefill(self, request: Request, upto: int) -> Item:
        start, tokens = request.kv.start, request.tokens
        if self._holdings.claim_row(request):
            self._map(request, 0, start)
        if upto < len(tokens):
            self.chunked = request
        return self._extend(request, upto, tokens[start:upto], samples=upto == len(tokens))

    def _receive(self, side: DecodeSide) -> None:
        """The decode side: asks for what waits as far as there is room, and lets run what has arrived."""
        while self.waiting and side.start(self.waiting[0], len(self.running)):
            self.waiting.popleft()
        while (aborted := side.take_aborted()) is not None:
            self._tell_end(aborted, Finish.ABORT, [])
        while len(self.running) < self._config.rows and (landed := side.take_landed()) is not None:
            request, token = landed
            if request.rejected is not None:
                self._end(request, Finish.ABORT)
                continue
            assert request.kv.row is not None
            self._forward.prime(request.kv.row, token)
            self.running.append(request)
            self._take_tokens(request, self._guesses.after_prefill(request, [token]), first=True)

    def _acknowledge(self, *, wait: bool) -> None:
        """Takes note of the copies that have ended beside the forward; `wait` waits for them."""
        if self._tier is not None:
            self._tier.step(wait=wait)
        if self._decode_side is not None:
            self._decode_side.step(wait=wait)

    def _decode_fits(self) -> bool:
        demand = sum(self._holdings.demand(request, self._guesses.reach(request)) for request in self.running)
        return self._fits(demand)

    def _decode_items(self) -> list[Item]:
        if self.running and not self._decode_fits():
            self._acknowledge(wait=True)  # the locks of copies may be all that is in the way
        while self.running and not self._decode_fits():
            victim = self.chunked if self.chunked is not None and len(self.running) == 1 else self._least()
            self._retract(victim)
        if not self._config.guesses:
            return [self._extend(request, request.kv.start + 1, None, samples=True) for request in self.running]
        return [self._guess(request) for request in self.running]

    def _guess(self, request: Request) -> Item:
        """A decode of all that is known and not computed, and a guess."""
        guess = self._guesses.of(request)
        tokens = request.tokens[request.kv.committed :] + guess
        return self._extend(request, request.kv.committed + len(tokens), tokens, samples=True, guess=guess)

    def _extend(
        self, request: Request, upto: int, tokens: list[int] | None, *, samples: bool, guess: list[int] | None = None
    ) -> Item:
        """Gives the request slots up to there, to be computed by the batch in planning."""
        record = request.kv
        start = record.start
        self._holdings.extend(request, upto)
        self._map(request, start, upto)
        record.committed = upto
        assert record.row is not None
        states = self._holdings.states
        state = None if states is None else states.use(record, start, upto)
        return Item(
            request, request.epoch, record.row, state, start, record.slots[start:upto], tokens, samples, guess
        )  # fmt: skip

    def _map(self, request: Request, begin: int, end: int) -> None:
        """Notes that the row's cells [begin, end) are to be written."""
        if begin < end:
            record = request.kv
            assert record.row is not None
            self._writes.append(RowWrite(record.row, begin, record.slots[begin:end], request.rid))

    # Carrying out: launch, results, ends.

    def _launch(self, batch: Batch) -> None:
        writes, self._writes = self._writes, []
        self._holdings.writer.write(writes, batch=batch.name, after_reads=self._writes_after_reads)
        self._writes_after_reads = True
        for item in batch.items:
            item.request.outstanding += 1
            self._holdings.tell_record(item.request)
        self._forward.launch(batch)
        self.in_flight.append(batch)

    def _process(self, batch: Batch) -> None:
        if self._config.free_groups:
            self._holdings.kv.begin_group()
        self._process_items(batch)
        if self._config.free_groups:
            self._holdings.kv.end_group()

    def _process_items(self, batch: Batch) -> None:
        for item, drawn in zip(batch.items, self._forward.result(batch), strict=True):
            request = item.request
            request.outstanding -= 1
            if not item.current:
                if self._config.bug == bugs.ABORT_DOUBLE_RELEASE and batch.mixed and request in self.waiting:
                    self._holdings.rows.give_back(item.row, request.rid)
            elif request.rejected is not None:
                self._end_rejected(request, batch)
            elif item.samples:
                self._take_tokens(request, self._guesses.settled(item, drawn), first=item.first, batch=batch.name)

    def _take_tokens(self, request: Request, tokens: list[int], *, first: bool, batch: str | None = None) -> None:
        told = []
        for token in tokens:
            request.output.append(token)
            told.append(token)
            reason = request.finish_reason()
            if reason is not None:
                self.running.remove(request)
                if self._config.bug == bugs.NESTED_GROUP:
                    self._holdings.kv.begin_group()
                self._end(request, reason, told)
                return
        if first:
            self._holdings.publish(request, len(request.tokens) - 1, batch)
        if told:
            self._outputs.append(Output(request.rid, told, cached_tokens=request.cached_tokens))

    def _end_rejected(self, request: Request, batch: Batch) -> None:
        partly = batch.mixed and self._config.loop == "overlap"
        if partly and self._config.bug == bugs.ABORT_KEEPS_ROW:
            self._probe.req_abort(owner=request.rid)
            self._holdings.kv.give_back(request.kv.slots, request.rid)
            self._tell_end(request, Finish.ABORT, [])
        elif partly and self._config.bug == bugs.ABORT_STILL_LEAKS:
            self._probe.req_abort(owner=request.rid)
            self._holdings.give_row(request)
            self._tell_end(request, Finish.ABORT, [])
        else:
            self._end(request, Finish.ABORT)

    def _end(self, request: Request, reason: Finish, tokens: list[int] | None = None) -> None:
        if reason is Finish.ABORT:
            self._probe.req_abort(owner=request.rid)
            self._holdings.release(request)
            self.sessions.end_turn(request, finished=False)
        elif request.session is not None:
            self._probe.req_finish(owner=request.rid)
            self.sessions.end_turn(request, finished=True)
        else:
            self._probe.req_finish(owner=request.rid)
            self._holdings.release(request, cache_upto=min(len(request.tokens) - 1, request.kv.committed))
        self._tell_end(request, reason, tokens or [])

    def _tell_end(self, request: Request, reason: Finish, tokens: list[int]) -> None:
        self._probe.req_end(owner=request.rid)
        self._outputs.append(Output(request.rid, tokens, reason, request.rejected, request.cached_tokens))

    def _retract(self, request: Request) -> None:
        """Takes back what a request holds; it starts again, with the tokens that it has, when there is room."""
        self._forget(request)
        self._probe.req_retract(owner=request.rid)
        self._holdings.release(request)
        self._queue(request, first=True)

    def _least(self) -> Request:
        """Who is retracted first: of those with the lowest priority the one that runs shortest."""
        return min(reversed(self.running), key=lambda request: request.priority)

    def _queue(self, request: Request, *, first: bool = False) -> None:
        """Puts the request behind those of higher priority, and before or behind those of its own."""
        ahead = [other for other in self.waiting if other.priority >= request.priority + first]
        self.waiting.insert(len(ahead), request)

    def _forget(self, request: Request) -> None:
        """Removes the request from wherever it waits or runs."""
        if request is self.chunked:
            self.chunked = None
        elif request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)

    def _checkpoint(self) -> None:
        """Tells kvsan the totals, that an iteration ends, and when nothing is left to do."""
        rows, kv, cache = self._holdings.rows, self._holdings.kv, self._holdings.cache
        self._probe.count(ROWS, available=rows.available, total=rows.size)
        self._probe.count(
            KV, available=kv.available, evictable=cache.evictable, protected=cache.protected, total=kv.size,
            session=self.sessions.held,
        )  # fmt: skip
        if self._holdings.states is not None:
            pool = self._holdings.states.pool
            evictable, protected = cache.state_counts()
            self._probe.count(
                STATES, available=pool.available, evictable=evictable, protected=protected, total=pool.size
            )
        self._holdings.kv.tell_totals()
        if self._tier is not None:
            self._tier.tell_totals()
        if (sparse := self._holdings.sparse) is not None:
            self._probe.count(SPARSE, available=sparse.available, total=sparse.size)
        self._probe.step()
        if not self.busy:
            self._probe.idle()
