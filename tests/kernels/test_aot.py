"""Compiling ahead of time, in processes of their own, where the interpreter is not asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments], env=clean | environment, capture_output=True, text=True, check=False
    )


def aot(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "kvsan.kernels.aot", *arguments, **environment)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty folder for what is compiled, so that the first test really compiles and the others need not."""
    return str(tmp_path_factory.mktemp("triton"))


TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
KERNELS = (
    "write_rows_kernel",
    "store_kv_kernel[fp32]",
    "store_kv_kernel[bf16]",
    "decode_attention_kernel[fp32,8]",
    "decode_attention_kernel[bf16,128]",
    "extend_attention_kernel[fp32,8]",
    "extend_attention_kernel[bf16,128]",
    "selective_scan_kernel[fp32,8]",
    "selective_scan_kernel[bf16,16]",
    "state_update_kernel[fp32,8]",
    "state_update_kernel[bf16,16]",
    "copy_states_kernel",
)
# Bytes of shared memory that a block has on every target.
SHARED = 48 * 1024


def test_every_kernel_compiles_for_every_target_without_a_gpu(cache: str) -> None:
    ran = aot(TRITON_CACHE_DIR=cache)
    assert ran.returncode == 0, ran.stderr
    header, *lines = (line.split() for line in ran.stdout.splitlines())
    assert header == ["kernel", "target", "assembly", "binary", "registers", "shared"]
    assert [line[:2] for line in lines] == [[kernel, target] for kernel in KERNELS for target in TARGETS]
    for kernel, target, *figures in lines:
        assembly, binary, registers, shared = map(int, figures)
        assert assembly > 1000 and binary > 1000, kernel
        assert 0 < registers <= (512 if target.startswith("gfx") else 255), kernel
        assert 0 <= shared <= SHARED, kernel


def test_no_module_with_kernels_is_left_out() -> None:
    from kvsan.kernels import aot as module

    files = {path.stem for path in Path(module.__file__).parent.glob("*_kernel.py")}
    assert files == set(module.KERNEL_MODULES)


CODE = """
from kvsan.kernels.aot import compile_ahead
from kvsan.kernels.row_write_kernel import AHEAD
for target in ("sm_90", "gfx942"):
    done = compile_ahead(AHEAD[0].kernel, AHEAD[0].signature, target, constants=AHEAD[0].constants)
    print([line for line in done.assembly.splitlines() if "target" in line][0].split()[1], done.binary[:4])
"""


def test_the_code_is_for_the_target() -> None:
    ran = python("-c", CODE)
    assert ran.returncode == 0, ran.stderr
    nvidia, amd = ran.stdout.splitlines()
    assert nvidia.startswith("sm_90") and "gfx942" in amd
    assert all(repr(b"\x7fELF") in line for line in (nvidia, amd))


def test_one_target_can_be_asked_for(cache: str) -> None:
    ran = aot("--target", "sm_90", TRITON_CACHE_DIR=cache)
    assert ran.returncode == 0
    assert [line.split()[1] for line in ran.stdout.splitlines()] == ["target"] + ["sm_90"] * len(KERNELS)


def test_an_unknown_target_fails_and_names_the_known_ones(cache: str) -> None:
    ran = aot("--target", "sm_90", "--target", "h100", TRITON_CACHE_DIR=cache)
    assert ran.returncode == 1
    assert "unknown target 'h100': give sm_NN or gfxNNN" in ran.stderr
    assert "failed" in ran.stdout and "sm_90" in ran.stdout


def test_under_the_interpreter_it_says_why_it_cannot() -> None:
    ran = aot(TRITON_INTERPRET="1")
    assert ran.returncode == 2
    assert ran.stderr == "TRITON_INTERPRET is set, and an interpreted kernel cannot be compiled: unset it\n"


def test_importing_the_package_imports_neither_torch_nor_triton() -> None:
    code = "import sys, kvsan.kernels; print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    code += "; from kvsan.kernels import Backend; print('torch' in sys.modules, 'triton' in sys.modules)"
    ran = python("-c", code)
    assert ran.stdout.splitlines()[-1] == "False False", ran.stderr
