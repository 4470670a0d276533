"""Makes a virtual environment with SGLang on a CPU and this kvsan: `install_sglang.py FOLDER [RELEASE]`.

To be run with Python 3.11. SGLang's own dependencies are for GPUs; what its scheduler, pools, caches and server need on
a CPU is named here and pinned where a newer release does not do. Takes a few minutes and about three gigabytes.

What is edited in the installed files, in no memory code: torchvision's own __init__ (see OPERATORS), and in SGLang
0.5.4 the conditions by which three layers take vllm's kernels on a CPU without AMX (see LAYERS).
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PRESENT = "0.5.23"
TORCH = ["torch==2.13.0", "numpy"]
VISION = "torchvision==0.28.0"
NEEDED = [
    "transformers==5.19.0", "tokenizers==0.23.2", "triton==3.8.0", "numba==0.65.1", "compressed-tensors==0.18.0",
    "apache-tvm-ffi==0.1.11", "xgrammar==0.2.7", "llguidance>=1.7.6,<2", "openai==2.8.0", "openai-harmony==0.0.4",
    "sentencepiece==0.2.1", "soundfile==0.13.1", "uvicorn>=0.51", "fastapi", "uvloop", "aiohttp", "requests",
    "python-multipart", "pydantic", "msgspec", "orjson", "pyzmq", "psutil", "setproctitle", "pybase64", "xxhash",
    "zstandard", "einops", "prometheus-client", "partial_json_parser", "interegular", "tiktoken", "pillow", "regex",
    "tqdm", "watchfiles", "packaging", "scipy", "easydict", "IPython", "dill", "gguf", "jsonschema",
]  # fmt: skip
OLD_NEEDED = [
    "transformers==4.57.1", "tokenizers>=0.22,<=0.23.0", "apache-tvm-ffi>=0.1.5,<0.2", "llguidance>=0.7.11,<0.8.0",
    "openai==2.6.1", "accelerate",
]  # fmt: skip
"""In place of those of the same name, for all old releases."""
OLD = {
    "0.5.4": ["xgrammar==0.1.25", "openai==1.99.1"],
    "0.5.8.post1": ["xgrammar==0.1.27"],
    "0.5.9": ["xgrammar==0.1.27"],
    "0.5.10.post1": ["xgrammar==0.1.32", "transformers==5.3.0"],
    "0.5.11": ["xgrammar==0.1.32", "transformers==5.6.0"],
    "0.5.12.post1": ["xgrammar==0.2.0", "transformers==5.6.0", "apache-tvm-ffi==0.1.9"],
    "0.5.13": ["xgrammar==0.2.1", "transformers==5.8.1", "apache-tvm-ffi==0.1.9"],
    "0.5.15.post1": ["xgrammar==0.2.1", "transformers==5.12.1", "apache-tvm-ffi==0.1.11"],
}
"""The old releases that there are tests for, each with what it needs alone."""
LATER_NEEDED = ["transformers==5.12.1", "tokenizers==0.22.2", "openai==2.6.1"]
LATER = {
    "0.5.16": [*LATER_NEEDED, "xgrammar==0.2.1"],
    "0.5.17": [*LATER_NEEDED, "xgrammar==0.2.1"],
    "0.5.18": [*LATER_NEEDED, "xgrammar==0.2.1"],
    "0.5.19": [*LATER_NEEDED, "xgrammar==0.2.1"],
    "0.5.20": [*LATER_NEEDED, "xgrammar==0.2.1"],
    "0.5.21": [*LATER_NEEDED, "xgrammar==0.2.7"],
    "0.5.22": ["openai==2.6.1"],
}
"""The releases before the present one that its tests are run with, each with what it needs in another version."""
OWN = ["pluggy>=1.5", "rich>=13.7", "pytest>=8", "pytest-xdist>=3.7"]

OPERATORS = """\
import torch as _torch

_operators = _torch.library.Library("torchvision", "DEF")
_operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
"""torchvision's wheel has its operators for GPUs only, and its Python part asks for two of them when imported."""

LAYERS = ("layernorm", "activation", "rotary_embedding")
EDITS = (
    ("(_is_cpu and _is_cpu_amx_available)", "_is_cpu"),
    ("if dtype == torch.float32 or (", "if (dtype == torch.float32 and not _is_cpu) or ("),
)
"""In 0.5.4 these layers import vllm on a CPU without AMX, though their own code works there."""


def main(folder: Path, release: str = PRESENT) -> None:
    """Makes the environment, unless it is there and complete."""
    known = [*OLD, *LATER, PRESENT]
    if release not in known:
        raise SystemExit(f"install_sglang.py knows {', '.join(known)}, not {release}")
    done = folder / ".ready-for-kvsan"
    if done.exists() and done.read_text() == _version(release):
        return
    if sys.version_info[:2] != (3, 11):
        raise SystemExit(f"install_sglang.py is for Python 3.11, and this is {sys.version.split()[0]}")
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"

    def install(*what: str) -> None:
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what], check=True)

    install(*TORCH)
    install("--no-deps", *_alone(release))
    install(*_needed(release), *OWN)
    install("--no-deps", "--editable", str(ROOT))
    script = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    _edit(Path(packages), release)
    done.write_text(_version(release))


def _alone(release: str) -> list[str]:
    """Without their dependencies, which ask for GPU libraries."""
    return [f"sglang=={release}", VISION, *(["torchao==0.9.0"] if release in OLD else [])]


def _needed(release: str) -> list[str]:
    if release == PRESENT:
        return NEEDED
    own = [*OLD_NEEDED, *OLD[release]] if release in OLD else LATER[release]
    return list({_name(each): each for each in (*NEEDED, *own)}.values())


def _name(requirement: str) -> str:
    return re.split("[<=>]", requirement)[0]


def _edit(packages: Path, release: str) -> None:
    init = packages / "torchvision" / "__init__.py"
    text = init.read_text(encoding="utf-8")
    if OPERATORS not in text:
        init.write_text(OPERATORS + text, encoding="utf-8")
    if release != "0.5.4":
        return
    for name in LAYERS:
        layer = packages / "sglang" / "srt" / "layers" / f"{name}.py"
        text = layer.read_text(encoding="utf-8")
        for old, new in EDITS:
            text = text.replace(old, new)
        if "(_is_cpu and _is_cpu_amx_available)" in text or "_is_cpu" not in text:
            raise SystemExit(f"{layer} is not what install_sglang.py knows how to edit")
        layer.write_text(text, encoding="utf-8")


def _version(release: str) -> str:
    return " ".join([*TORCH, *_alone(release), *_needed(release), *OWN])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
