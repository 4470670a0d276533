"""Puts kvsan_entry.pth into the root of site-packages, in wheels and editable installs alike; see kvsan/entry.py."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

NAME = "kvsan_entry.pth"
# Every start of the interpreter runs this line: without the variable it looks at the environment, and that is all.
# A kvsan that is broken or half removed must not print a traceback into every process.
LINE = (
    "import os; exec("
    "'try:\\n import kvsan.entry\\n kvsan.entry.start()\\nexcept Exception: pass' "
    "if 'KVSAN_SPOOL' in os.environ else '')\n"
)


class BuildPy(build_py):
    """Adds the file to what a wheel is made of."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            Path(self.build_lib, NAME).write_text(LINE, encoding="utf-8")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs = list(super().get_outputs(include_bytecode))
        return outputs if self.editable_mode else [*outputs, os.path.join(self.build_lib, NAME)]


class EditableWheel(editable_wheel):
    """Adds the file to the finished editable wheel, for which setuptools has no hook."""

    def run(self) -> None:
        super().run()
        for wheel in Path(self.dist_dir).glob("*editable*.whl"):
            add_to_wheel(wheel)


def add_to_wheel(wheel: Path) -> None:
    """Rewrites the wheel with the file and its line in RECORD."""
    with zipfile.ZipFile(wheel) as old:
        contents = {item.filename: old.read(item) for item in old.infolist()}
    if NAME in contents:
        return
    digest = base64.urlsafe_b64encode(hashlib.sha256(LINE.encode()).digest()).rstrip(b"=").decode()
    record = next(name for name in contents if name.endswith(".dist-info/RECORD"))
    contents[record] = f"{NAME},sha256={digest},{len(LINE)}\n".encode() + contents[record]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in {NAME: LINE.encode(), **contents}.items():
            new.writestr(name, data)


setup(cmdclass={"build_py": BuildPy, "editable_wheel": EditableWheel})
