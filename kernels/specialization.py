"""What one kernel is compiled for ahead of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Specialization:
    """A kernel with the types of its arguments and the values of its constants.

    `kernel` is a function that `triton.jit` decorated; `signature` gives Triton's type of each argument in order
    ("*i32": pointer to int32, "i32": int32), `constants` the values of its `tl.constexpr` arguments, and `variant`
    tells it from others of the same kernel.
    """

    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, int | float | bool] = field(default_factory=dict)
    num_warps: int = 4
    variant: str = ""

    @property
    def name(self) -> str:
        return str(self.kernel.__name__) + (f"[{self.variant}]" if self.variant else "")
