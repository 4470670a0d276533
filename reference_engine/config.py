"""What an engine is built from: sizes, loop, schedule policy, seed and the bug that is switched on."""

from __future__ import annotations

from dataclasses import dataclass

from .bugs import BUGS

MAX_CONTEXT = 4096
"""Longest context that the model has positions for."""

INPUT_MARGIN = 6
"""How many tokens shorter than the context the scheduler wants an input to be; the front end does not know of it."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes are in tokens, except `rows` (request rows, the reserved row 0 not counted).

    `kv_tokens` counts usable token slots (the reserved page 0 not counted), a multiple of `page_size`.
    `window` above 0 is how many tokens the last layer sees; its keys and values then live in a pool of their own.
    `host_tokens` above 0 adds a tier in host memory, filled when nodes are inserted (`host_write` "through") or evicted
    ("back"); `storage` adds a further one behind it. `prealloc_rows` above 0 makes this the decode side of a
    disaggregated pair, with so many rows for requests whose keys and values are on their way. `free_groups` carries out
    together what the results of one batch give back.
    With `hybrid`, a state is tracked at every `track_interval` tokens (whole pages), and there is room for that many
    `cached_states` beyond what requests need.
    With `sparse`, requests register with a sparse attention (see `sparse`).
    Before the engine serves, `profile_sizes` prefills of up to `profile_chunks` chunks are timed (see `profiling`).
    `compute` is "exact", "kernels", or "auto" for what suits the machine (see `compute`); with `cuda_graph` the kernels
    decode in lanes that a GPU replays.
    `schedule_policy` orders the simulated streams (see `policies`), `seed` seeds the policy, `model_seed` the weights.
    """

    page_size: int = 1
    rows: int = 8
    context_len: int = 256
    kv_tokens: int = 2048
    chunked_prefill_size: int = 64
    mixed_chunk: bool = False
    loop: str = "overlap"
    schedule_policy: str = "in-order"
    seed: int = 0
    model_seed: int = 0
    hybrid: bool = False
    window: int = 0
    host_tokens: int = 0
    host_write: str = "through"
    storage: bool = False
    prealloc_rows: int = 0
    draft_tokens: int = 0
    block_size: int = 0
    refine_steps: int = 3
    free_groups: bool = False
    track_interval: int = 8
    cached_states: int = 16
    sparse: bool = False
    profile_sizes: int = 0
    profile_chunks: int = 1
    bug: str | None = None
    compute: str = "exact"
    cuda_graph: bool = False

    def __post_init__(self) -> None:
        if self.loop not in ("overlap", "normal"):
            raise ValueError(f"loop: {self.loop!r} is neither 'overlap' nor 'normal'")
        for name in (
            "page_size",
            "rows",
            "kv_tokens",
            "chunked_prefill_size",
            "track_interval",
            "cached_states",
            "profile_chunks",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not a positive number")
        if self.profile_sizes < 0:
            raise ValueError(f"profile_sizes: {self.profile_sizes} is negative")
        if self.profile_sizes and self.profile_chunks * self.chunked_prefill_size > self.max_input_len:
            raise ValueError(f"profile_chunks: {self.profile_chunks} chunks are more than {self.max_input_len} tokens")
        if not INPUT_MARGIN < self.context_len <= MAX_CONTEXT:
            raise ValueError(f"context_len: {self.context_len} is not in {INPUT_MARGIN + 1}..{MAX_CONTEXT}")
        if self.kv_tokens % self.page_size:
            raise ValueError(f"kv_tokens: {self.kv_tokens} is not a multiple of page_size {self.page_size}")
        if self.kv_tokens <= INPUT_MARGIN:
            raise ValueError(f"kv_tokens: {self.kv_tokens} leaves no room for an input")
        if self.host_tokens < 0 or self.host_tokens % self.page_size:
            raise ValueError(f"host_tokens: {self.host_tokens} is no multiple of page_size {self.page_size}")
        if self.host_write not in ("through", "back"):
            raise ValueError(f"host_write: {self.host_write!r} is neither 'through' nor 'back'")
        if self.storage and not self.host_tokens:
            raise ValueError("storage: it needs a host tier, that is host_tokens above 0")
        if self.prealloc_rows < 0:
            raise ValueError(f"prealloc_rows: {self.prealloc_rows} is negative")
        if self.window < 0:
            raise ValueError(f"window: {self.window} is negative")
        if self.window and self.hybrid:
            raise ValueError("window, hybrid: the last layer is either windowed or recurrent")
        if self.window and (self.host_tokens or self.prealloc_rows):
            raise ValueError("window: neither the host tier nor transfers carry window slots")
        if self.hybrid and (self.host_tokens or self.prealloc_rows):
            raise ValueError("hybrid: neither the host tier nor transfers carry recurrent states")
        if self.profile_sizes and self.prealloc_rows:
            raise ValueError("profile_sizes: with prealloc_rows another server prefills")
        if min(self.draft_tokens, self.block_size) < 0 or self.refine_steps < 1:
            raise ValueError("draft_tokens, block_size and refine_steps must not be negative, refine_steps not 0")
        if self.guesses and (self.hybrid or (self.draft_tokens and self.block_size)):
            raise ValueError("draft_tokens, block_size and hybrid exclude each other: a state cannot go back")
        if self.compute not in ("auto", "exact", "kernels"):
            raise ValueError(f"compute: {self.compute!r} is not 'auto', 'exact' or 'kernels'")
        if self.compute == "kernels" and self.beyond_kernels:
            raise ValueError(f"compute: 'kernels' is not there with {', '.join(self.beyond_kernels)}: use 'exact'")
        if self.cuda_graph and self.compute != "kernels":
            raise ValueError("cuda_graph: only the kernels decode so, that is with compute 'kernels'")
        if self.bug is not None and self.bug not in BUGS:
            raise ValueError(f"bug: {self.bug!r} is unknown; known are {', '.join(BUGS)}")

    @property
    def beyond_kernels(self) -> list[str]:
        """What is asked for that only the exact arithmetic computes."""
        return [
            name
            for name in ("window", "host_tokens", "prealloc_rows", "draft_tokens", "block_size", "sparse")
            if getattr(self, name)
        ]

    @property
    def guesses(self) -> bool:
        """Whether a step may compute tokens that are not known yet, so that its result must be seen before the next."""
        return self.draft_tokens > 0 or self.block_size > 0

    @property
    def max_input_len(self) -> int:
        """The scheduler's own limit for an input, stricter than the front end's."""
        return min(self.context_len, self.kv_tokens) - INPUT_MARGIN
