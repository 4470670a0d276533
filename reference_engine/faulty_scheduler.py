"""Schedulers with a historical bug, each beside the method of `Scheduler` that it gets wrong."""

from __future__ import annotations

from . import bugs
from .batch import Batch
from .request import Finish, Request
from .scheduler import Scheduler


class FreesByPlaceFromTheEnd(Scheduler):
    """Of a request rejected in a mixed batch, takes the slot as far from the end of the batch's slots as the request is
    from the end of its requests: right only if every later request has one token."""

    def _end_rejected(self, request: Request, batch: Batch) -> None:
        if not (batch.mixed and self._config.loop == "overlap"):
            super()._end_rejected(request, batch)
            return
        slots = [slot for item in batch.items for slot in item.slots]
        place = next(place for place, item in enumerate(batch.items) if item.request is request)
        self._probe.req_abort(owner=request.rid)
        self._holdings.kv.give_back([slots[place - len(batch.items)]], request.rid)
        self._holdings.give_row(request)
        self._tell_end(request, Finish.ABORT, [])


class RetractsWithoutUnregistering(Scheduler):
    """A retracted request gives back its row, which stays registered with the sparse attention."""

    def _retract(self, request: Request) -> None:
        sparse, self._holdings.sparse = self._holdings.sparse, None
        super()._retract(request)
        self._holdings.sparse = sparse


SCHEDULERS: dict[str, type[Scheduler]] = {
    bugs.WRONG_SLOT: FreesByPlaceFromTheEnd,
    bugs.STAYS_REGISTERED: RetractsWithoutUnregistering,
}
