"""Makes a virtual environment with SGLang 0.5.23 on a CPU and this kvsan: `install_sglang.py FOLDER`.

To be run with Python 3.11. SGLang's own dependencies are for GPUs; what its scheduler, pools, caches and server need on
a CPU is named here and pinned where a newer release does not do. Takes a few minutes and about three gigabytes.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

OLD = ("0.5.4", "0.5.8.post1", "0.5.9")

ROOT = Path(__file__).resolve().parents[2]

TORCH = ["torch==2.13.0", "numpy"]
ALONE = ["sglang==0.5.23", "torchvision==0.28.0"]
"""Without their dependencies, which ask for GPU libraries."""
NEEDED = [
    "transformers==5.19.0", "tokenizers==0.23.2", "triton==3.8.0", "numba==0.65.1", "compressed-tensors==0.18.0",
    "apache-tvm-ffi==0.1.11", "xgrammar==0.2.7", "llguidance>=1.7.6,<2", "openai==2.8.0", "openai-harmony==0.0.4",
    "sentencepiece==0.2.1", "soundfile==0.13.1", "uvicorn>=0.51", "fastapi", "uvloop", "aiohttp", "requests",
    "python-multipart", "pydantic", "msgspec", "orjson", "pyzmq", "psutil", "setproctitle", "pybase64", "xxhash",
    "zstandard", "einops", "prometheus-client", "partial_json_parser", "interegular", "tiktoken", "pillow", "regex",
    "tqdm", "watchfiles", "packaging", "scipy", "easydict", "IPython", "dill", "gguf", "jsonschema",
]  # fmt: skip
OWN = ["pluggy>=1.5", "rich>=13.7", "pytest>=8"]

OPERATORS = """\
import torch as _torch

_operators = _torch.library.Library("torchvision", "DEF")
_operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
"""torchvision's wheel has its operators for GPUs only, and its Python part asks for two of them when imported."""


def main(folder: Path) -> None:
    """Makes the environment, unless it is there and complete."""
    done = folder / ".ready-for-kvsan"
    if done.exists() and done.read_text() == _version():
        return
    if sys.version_info[:2] != (3, 11):
        raise SystemExit(f"install_sglang.py is for Python 3.11, and this is {sys.version.split()[0]}")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"

    def install(*what: str) -> None:
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what], check=True)

    install(*TORCH)
    install("--no-deps", *ALONE)
    install(*NEEDED, *OWN)
    install("--no-deps", "--editable", str(ROOT))
    script = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    init = Path(packages, "torchvision", "__init__.py")
    text = init.read_text(encoding="utf-8")
    if OPERATORS not in text:
        init.write_text(OPERATORS + text, encoding="utf-8")
    done.write_text(_version())


def _version() -> str:
    return " ".join([*TORCH, *ALONE, *NEEDED, *OWN])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
