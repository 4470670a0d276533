"""A request: what the client wants, what was generated, and its record of what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .record import KvRecord
from .tokenizer import EOS


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

    `kv` is what it holds. Requests of a higher `priority` are admitted first and retracted last. `epoch` counts
    retractions and the end: results of a batch that was launched in an earlier epoch do not concern the request any
    more. `outstanding` counts the launched batches whose results were not seen. `guess` is the block that was computed
    last, `refined` how often; both are for block diffusion.
    """

    rid: str
    prompt: list[int]
    sampling: SamplingParams
    adapter: str | None = None
    session: str | None = None
    priority: int = 0
    output: list[int] = field(default_factory=list)
    kv: KvRecord = field(default_factory=KvRecord)
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
