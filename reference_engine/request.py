"""A request: what the client wants, what was generated, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from .tokenizer import EOS

if TYPE_CHECKING:
    from .radix_cache import Node


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn; temperature 0 takes the best one. `seed` matters only above 0."""

    max_new_tokens: int = 16
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False


class Finish(str, Enum):
    """Why a request is over."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"


@dataclass(slots=True, eq=False)
class Request:
    """One request in the scheduler.

    Requests of a higher `priority` are admitted first and retracted last. `slots[p]` is the token slot of position p, the host's copy of the row. Positions below `published` stand in the
    prefix cache under `node`, which the request locks; the request shares those slots except the `duplicates`, which
    are its own although the cache has the same tokens in other slots. Everything from `published` on is its own.
    `computed` positions have their KV, or will when what is launched has run. `epoch` counts retractions and the end:
    results of a batch that was launched in an earlier epoch do not concern the request any more. `guess` is the block
    that was computed last, `refined` how often; both are for block diffusion.
    """

    rid: str
    prompt: list[int]
    sampling: SamplingParams
    adapter: str | None = None
    session: str | None = None
    priority: int = 0
    output: list[int] = field(default_factory=list)
    row: int | None = None
    state: int | None = None
    slots: list[int] = field(default_factory=list)
    computed: int = 0
    published: int = 0
    duplicates: list[int] = field(default_factory=list)
    node: Node | None = None
    cached_tokens: int = 0
    epoch: int = 0
    outstanding: int = 0
    guess: list[int] | None = None
    refined: int = 0
    rejected: str | None = None

    @property
    def tokens(self) -> list[int]:
        """Prompt and output so far."""
        return self.prompt + self.output

    def finish_reason(self) -> Finish | None:
        """Why the request is over after its latest token, or None."""
        if self.rejected is not None:
            return Finish.ABORT
        if self.output and self.output[-1] == EOS and not self.sampling.ignore_eos:
            return Finish.STOP
        return Finish.LENGTH if len(self.output) >= self.sampling.max_new_tokens else None


@dataclass(frozen=True, slots=True)
class Output:
    """News of one request: new tokens, and the reason if it is over. `error` says why it was rejected."""

    rid: str
    tokens: list[int]
    finish: Finish | None = None
    error: str | None = None
    cached_tokens: int = 0
