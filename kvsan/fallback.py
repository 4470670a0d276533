"""The way into interpreters where kvsan is not installed: a sitecustomize at the front of PYTHONPATH."""

from __future__ import annotations

import importlib.util
import os

from kvsan.inherit import site_folder

PACKAGES = ("kvsan", "kvsan.hooks", "kvsan.kernels", "kvsan.reference_engine", "pluggy", "rich", "markdown_it", "mdurl")
"""What such an interpreter is lent, all of it pure Python; its own packages come first, NumPy must be its own."""


def write_site(spool: str) -> None:
    """Makes the spool's site folder."""
    folders: dict[str, str] = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            folders[name] = os.path.abspath(next(iter(spec.submodule_search_locations)))
    folder = site_folder(spool)
    os.mkdir(folder, 0o700)
    with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as file:
        file.write(_SITECUSTOMIZE.replace("@FOLDERS@", ascii(folders)))


# Any interpreter may run this, also one from before Python 3.10, which is told apart from one that was not reached.
_SITECUSTOMIZE = '''\
"""Lets kvsan in where it is not installed, and goes on with the next sitecustomize."""

import os
import sys

_FOLDERS = @FOLDERS@


class _Lender(object):
    """Finds kvsan and what it needs at the places where `kvsan run` has them; asked last."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        folder = _FOLDERS.get(name)
        if folder is None:
            return None
        from importlib.util import spec_from_file_location

        file = os.path.join(folder, "__init__.py")
        return spec_from_file_location(name, file, submodule_search_locations=[folder])


def _refuse(spool):
    """This Python is too old: says so in the spool."""
    import json

    with open("/proc/self/stat") as stat:
        start = stat.read().rpartition(")")[2].split()[19]
    version = ".".join(map(str, sys.version_info[:3]))
    argv = open("/proc/self/cmdline").read().rstrip("\\0").split("\\0")
    record = {"type": "process", "pid": os.getpid(), "ppid": os.getppid(), "argv": argv, "version": version}
    record["unsupported"] = version
    with open(os.path.join(spool, "%d-%s.jsonl" % (os.getpid(), start)), "a") as file:
        file.write(json.dumps(record) + "\\n")


def _enter():
    spool = os.environ.get("KVSAN_SPOOL")
    if not spool or not os.path.isdir(spool) or os.environ.get("KVSAN") == "0":
        return
    if sys.version_info < (3, 10):
        _refuse(spool)
        return
    if "kvsan.entry" not in sys.modules:
        sys.meta_path.append(_Lender)
    import kvsan.entry

    kvsan.entry.start()


_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]
try:
    _enter()
except Exception as error:
    sys.stderr.write("kvsan: pid %d: this process could not be entered: %s\\n" % (os.getpid(), error))
_this = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = _this
'''
