"""A byte-level tokenizer: a token is a byte, and one more token ends a text."""

from __future__ import annotations

EOS = 256
VOCABULARY = 257


def encode(text: str) -> list[int]:
    """The UTF-8 bytes of the text; lone surrogates become `?`."""
    return list(text.encode("utf-8", errors="replace"))


def token_bytes(tokens: list[int]) -> bytes:
    """The bytes of the tokens, without the end token."""
    return bytes(token for token in tokens if token != EOS)


def decode(tokens: list[int]) -> str:
    """The text of the tokens; bytes that are no UTF-8 become U+FFFD."""
    return token_bytes(tokens).decode("utf-8", errors="replace")
