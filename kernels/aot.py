"""Compiling kernels ahead of time for GPUs that need not be there.

`python -m kvsan.kernels.aot [--target sm_90 ...]` compiles every kernel for every target and prints a table.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from .backend import interpreter_requested
from .specialization import Specialization

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")

KERNEL_MODULES = (
    "row_write_kernel",
    "kv_store_kernel",
    "attention_kernel",
    "state_scan_kernel",
    "state_copy_kernel",
)
"""Modules of this package with kernels; what each compiles ahead stands in its `AHEAD`."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel as machine code. Sizes in bytes; registers a thread, None where no tool told."""

    kernel: str
    target: str
    assembly: str
    binary: bytes
    registers: int | None
    shared: int | None


class AotError(Exception):
    """A kernel that cannot be compiled for a target, or a target that is not known."""


def compile_ahead(
    kernel: Any,
    signature: Mapping[str, str],
    target: str,
    *,
    constants: Mapping[str, Any] | None = None,
    num_warps: int = 4,
) -> Compiled:
    """Compiles a `triton.jit` function for a GPU such as "sm_90" or "gfx942", without one.

    `signature` gives Triton's type of each argument ("*i32", "i64", ...), `constants` the values of the `tl.constexpr`
    ones. The result holds PTX and cubin, or AMD assembly and code object. Raises AotError for an unknown target, under
    TRITON_INTERPRET, and when the compiler fails.
    """
    if interpreter_requested():
        raise AotError("TRITON_INTERPRET is set, and an interpreted kernel cannot be compiled: unset it")
    gpu = _gpu_target(target)
    try:
        compiled = _triton_compile(kernel, signature, constants or {}, gpu, num_warps)
    except Exception as error:
        raise AotError(f"{kernel.__name__} for {target}: {type(error).__name__}: {error}") from error
    assembly_stage, binary_stage = ("amdgcn", "hsaco") if gpu.backend == "hip" else ("ptx", "cubin")
    assembly: str = compiled.asm[assembly_stage]
    binary: bytes = compiled.asm[binary_stage]
    return Compiled(
        kernel=str(kernel.__name__),
        target=target,
        assembly=assembly,
        binary=binary,
        registers=_registers_amd(assembly) if gpu.backend == "hip" else _registers_nvidia(binary),
        shared=getattr(compiled.metadata, "shared", None),
    )


def specializations() -> Iterator[Specialization]:
    """Everything that this package compiles ahead of time."""
    for module in KERNEL_MODULES:
        yield from import_module(f".{module}", __package__).AHEAD


# What of Triton's own interface this module stands on; it is the same from 3.6 to 3.9. A version that changes it is
# told apart here and nowhere else.


def _gpu_target(target: str) -> Any:
    from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]

    if match := re.fullmatch(r"sm_(\d{2,3})", target):
        return GPUTarget("cuda", int(match[1]), 32)
    if re.fullmatch(r"gfx[0-9a-f]{3,4}", target):
        # Data-center chips (gfx9) run 64 lanes in a wave, the others 32.
        return GPUTarget("hip", target, 64 if target.startswith("gfx9") else 32)
    raise AotError(f"unknown target {target!r}: give sm_NN or gfxNNN, for instance {', '.join(TARGETS)}")


def _triton_compile(
    kernel: Any, signature: Mapping[str, str], constants: Mapping[str, Any], gpu: Any, num_warps: int
) -> Any:
    import triton  # type: ignore[import-untyped]
    from triton.compiler import ASTSource  # type: ignore[import-untyped]

    kinds = dict(signature) | dict.fromkeys(constants, "constexpr")
    types = {name: kinds[name] for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=types, constexprs=dict(constants))
    # Said outright because the default for contracting a * b + c changes with Triton 3.10.
    return triton.compile(source, target=gpu, options={"num_warps": num_warps, "enable_fp_fusion": True})


def _registers_nvidia(cubin: bytes) -> int | None:
    """Registers a thread, from the cuobjdump that Triton's wheel brings."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=False)
    match = re.search(r"\bREG:(\d+)", told.stdout + told.stderr)
    return int(match[1]) if match else None


def _registers_amd(assembly: str) -> int | None:
    """Vector registers a lane, from the code object's metadata."""
    match = re.search(r"\.vgpr_count:\s+(\d+)", assembly)
    return int(match[1]) if match else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles for the targets asked for, or all; 0: everything compiled, 1: something did not, 2: misuse."""
    parser = argparse.ArgumentParser(prog="python -m kvsan.kernels.aot", description="Compile kernels ahead of time.")
    parser.add_argument("--target", action="append", metavar="GPU", help=f"default: {' '.join(TARGETS)}")
    targets: list[str] = parser.parse_args(arguments).target or list(TARGETS)
    if interpreter_requested():
        print("TRITON_INTERPRET is set, and an interpreted kernel cannot be compiled: unset it", file=sys.stderr)
        return 2

    table: list[tuple[str, ...]] = [("kernel", "target", "assembly", "binary", "registers", "shared")]
    failures: list[str] = []
    for one in specializations():
        for target in targets:
            try:
                done = compile_ahead(
                    one.kernel, one.signature, target, constants=one.constants, num_warps=one.num_warps
                )
            except AotError as error:
                failures.append(str(error))
                table.append((one.name, target, "failed", "-", "-", "-"))
            else:
                sizes = (len(done.assembly), len(done.binary), done.registers, done.shared)
                table.append((one.name, target, *("-" if size is None else str(size) for size in sizes)))
    _print_table(table)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def _print_table(table: Sequence[Sequence[str]]) -> None:
    """Prints words to the left and figures (from the third column on) to the right; sizes in bytes."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        words = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        figures = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        print("  ".join(words + figures).rstrip())


if __name__ == "__main__":
    sys.exit(main())
