"""The decode side of prefill/decode disaggregation: prompts are computed by another server, whose NIC writes their keys
and values into rows and slots that this side allocates beforehand."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from . import bugs
from .arithmetic import Array
from .config import EngineConfig
from .holdings import Holdings
from .model import Model, Span, choose
from .oracle import Scratch
from .probe import Probe
from .request import Request
from .row_writer import RowWrite
from .transfers import Carrier, Lease, Transfer

Layers = list[tuple[Array, Array]]
"""Keys and values [length, heads, dim] of one request, for each layer."""


class PrefillServer:
    """The other side, simulated: computes a prompt from scratch and draws the first token."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def compute(self, request: Request) -> tuple[Layers, int]:
        """Keys and values of all the request's tokens, and the token that follows."""
        tokens, memory = request.tokens, Scratch()
        hidden = self._model.forward(
            np.array(tokens, dtype=np.int64), [Span(0, len(tokens), 0, request.adapter)], memory
        )
        logits: Array = self._model.logits(hidden[-1:])[0]
        sampling = request.sampling
        return memory.kept, choose(logits, sampling.temperature, sampling.seed, len(tokens))


@dataclass(slots=True, eq=False)
class _Arrival:
    """A request with the transfer that brings its keys and values, and the token that comes after them."""

    request: Request
    transfer: Transfer
    token: int
    aborted: bool = False
    landed: bool = False


class DecodeSide:
    """Requests between the queue and the first decode.

    `request.kv.row` is None until a row is pre-allocated. From then to the transfer's end the row and the slots stay
    with the request, whatever becomes of it: an abort frees them only when the NIC has done with them.
    """

    def __init__(
        self, config: EngineConfig, holdings: Holdings, server: PrefillServer, nic: Carrier, probe: Probe
    ) -> None:
        self._config = config
        self._holdings = holdings
        self._server = server
        self._nic = nic
        self._probe = probe
        self._arrivals: list[_Arrival] = []
        self._under_way: deque[_Arrival] = deque()

    @property
    def busy(self) -> bool:
        """Whether any transfer is under way, or its request not yet running."""
        return bool(self._arrivals or self._under_way)

    def queued(self, request: Request) -> None:
        """Tells kvsan that a queued request has no row yet."""
        self._holdings.tell_record(request)

    def start(self, request: Request, running: int) -> bool:
        """Pre-allocates row and slots and asks for the request's keys and values; whether there was room, for them and
        a page more for each request that runs or will."""
        holdings = self._holdings
        ready = holdings.find_prefix(request)
        begin, end = request.kv.start, len(request.tokens)
        reserve = self._config.page_size * (running + len(self._arrivals) + 1)
        if not (ready and holdings.rows.available and holdings.has_room(holdings.demand(request, end) + reserve)):
            holdings.release(request)
            return False
        request.cached_tokens = begin
        holdings.claim_row(request)
        holdings.extend(request, end)
        request.kv.committed = end
        assert request.kv.row is not None
        holdings.writer.write([RowWrite(request.kv.row, 0, request.kv.slots, request.rid)])
        layers, token = self._server.compute(request)
        slots = request.kv.slots[begin:]
        transfer = self._nic.begin(
            f"kv:{request.rid}:{request.epoch}",
            request.rid,
            [Lease(holdings.kv.name, slots, "write")],
            lambda: self._receive(slots, begin, layers),
        )
        arrival = _Arrival(request, transfer, token)
        self._arrivals.append(arrival)
        self._under_way.append(arrival)
        return True

    def step(self, *, wait: bool) -> None:
        """Takes note of the transfers that have ended; `wait` waits for all of them."""
        while self._under_way and self._nic.ended(self._under_way[0].transfer, wait=wait):
            self._under_way.popleft().landed = True

    def take_landed(self) -> tuple[Request, int] | None:
        """The next request that can run, and its first token."""
        for arrival in self._arrivals:
            if not arrival.aborted and (arrival.landed or self._config.bug == bugs.DECODE_BEFORE_END):
                self._arrivals.remove(arrival)
                return arrival.request, arrival.token
        return None

    def abort(self, rid: str) -> None:
        """Notes an abort; what the request holds is given back when its transfer has ended."""
        for arrival in self._arrivals:
            if arrival.request.rid == rid and not arrival.aborted:
                arrival.aborted = True
                self._probe.req_abort(owner=rid)

    def take_aborted(self) -> Request | None:
        """The next aborted request that is over."""
        at_once = self._config.bug in (bugs.ABORT_FREES, bugs.ABORT_LEAKS)
        for arrival in self._arrivals:
            if arrival.aborted and (arrival.landed or at_once):
                self._arrivals.remove(arrival)
                if self._config.bug != bugs.ABORT_LEAKS:
                    self._holdings.release(arrival.request)
                return arrival.request
        return None

    def _receive(self, slots: list[int], begin: int, layers: Layers) -> None:
        memory = self._holdings.kv.memory
        for layer, (keys, values) in enumerate(layers):
            memory.keys[layer][slots] = keys[begin:]
            memory.values[layer][slots] = values[begin:]
