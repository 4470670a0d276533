"""Tokens that a step computes before they are known: drafts that are verified at once, and blocks that are refined.

A draft continues the text as it went on after an earlier occurrence of its end (prompt lookup). What the model draws after
each of its tokens shows how far it was right. A block begins as masks; every step computes it anew, in the same row and
slots, and replaces each token by what was drawn for its place, until the last step makes it final.
"""

from __future__ import annotations

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
