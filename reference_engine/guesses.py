"""Tokens that a step computes before they are known: drafts that are verified at once, and blocks that are refined.

A draft continues the text as it went on after an earlier occurrence of its end (prompt lookup). What the model draws
after each of its tokens shows how far it was right. A block begins as masks; every step computes it anew, in the same
row and slots, and replaces each token by what was drawn for its place, until the last step makes it final.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .batch import Item
    from .config import EngineConfig
    from .holdings import Holdings
    from .request import Request

MASK = 0
NGRAM = 2
"""How many tokens must agree for a draft."""


def draft(tokens: list[int], count: int) -> list[int]:
    """Up to `count` tokens that may come next."""
    end = tokens[-NGRAM:]
    for begin in range(len(tokens) - NGRAM - 1, -1, -1):
        if tokens[begin : begin + NGRAM] == end:
            return tokens[begin + NGRAM : begin + NGRAM + count]
    return []


def accepted(guess: list[int], drawn: list[int]) -> list[int]:
    """The drawn tokens that stand: those after right guesses, and the one after the first wrong one."""
    right = 0
    while right < len(guess) and guess[right] == drawn[right]:
        right += 1
    return drawn[: right + 1]


def masks(block: int) -> list[int]:
    """What a block of that many tokens is computed from first: its first token follows from the text alone."""
    return [MASK] * (block - 1)


class Guesses:
    """What each request's next decode guesses, and what stands of it once the result is seen."""

    def __init__(self, config: EngineConfig, holdings: Holdings) -> None:
        self._config = config
        self._holdings = holdings

    def of(self, request: Request) -> list[int]:
        """The guess that the request's next decode computes behind what is known."""
        left = request.sampling.max_new_tokens - len(request.output)
        if self._config.block_size:
            return request.guess or masks(min(self._config.block_size, left))
        return draft(request.tokens, min(self._config.draft_tokens, left - 1))

    def reach(self, request: Request) -> int:
        """How many positions the request needs slots for in its next decode."""
        if not self._config.guesses:
            return request.kv.committed + 1
        return len(request.tokens) + len(self.of(request))

    def after_prefill(self, request: Request, drawn: list[int]) -> list[int]:
        """What stands of the token drawn after a prefill: none where a request that was retracted goes on with a block,
        not with one token."""
        if not (self._config.block_size and request.output):
            return drawn
        request.kv.committed = len(request.tokens) - 1
        return []

    def settled(self, item: Item, drawn: list[int]) -> list[int]:
        """Which of the drawn tokens stand. Says in the request how far it is computed, where a guess was."""
        request, block = item.request, self._config.block_size
        known = len(request.tokens)
        if item.guess is None:
            return self.after_prefill(request, drawn)
        if not block:
            stands = accepted(item.guess, drawn)
            request.kv.committed = known - 1 + len(stands)
            return stands
        request.refined += 1
        if request.refined < self._config.refine_steps:
            request.kv.committed = known - 1
            request.guess = drawn[:-1]
            self._holdings.refined(request, request.guess)
            return []
        request.kv.committed = known
        request.guess, request.refined = None, 0
        return drawn
