"""The Triton kernel behind `copy_states`; importing it needs triton and fixes whether it is compiled or interpreted."""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from .specialization import Specialization

BLOCK = 1024
"""Elements of a state that one program copies."""


@triton.jit  # type: ignore[untyped-decorator]
def copy_states_kernel(  # type: ignore[no-untyped-def]
    states,
    stride,
    num_slots,
    width,
    sources,
    targets,
    mask,
    BLOCK: tl.constexpr,
):
    # Program (i, b) copies block b of lane i's state.
    lane = tl.program_id(0)
    source = tl.load(sources + lane).to(tl.int64)
    target = tl.load(targets + lane).to(tl.int64)
    copied = (tl.load(mask + lane) != 0) & (source != target)
    copied = copied & (source >= 0) & (source < num_slots) & (target >= 0) & (target < num_slots)
    # A scalar condition goes into the bounds: as part of a mask the interpreter would make it an integer.
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = element < tl.where(copied, width, 0)
    state = tl.load(states + source * stride + element, mask=inside)
    tl.store(states + target * stride + element, state, mask=inside)


AHEAD = (
    Specialization(
        kernel=copy_states_kernel,
        signature={
            "states": "*fp32",
            "stride": "i32",
            "num_slots": "i32",
            "width": "i32",
            "sources": "*i64",
            "targets": "*i64",
            "mask": "*i1",
        },
        constants={"BLOCK": BLOCK},
    ),
)
"""What is compiled ahead of time."""
