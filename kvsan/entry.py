"""What runs in every Python process that `kvsan run` enters: cheap at its start, the sanitizer itself on first use.

`start` is called by the interpreter's site module, before anything of the program. It shows that the process was
entered and sees to it that its children are. `activate` is called when an engine first asks for the sanitizer
(`kvsan.hooks.current`), and only then are NumPy and the tracker loaded.
"""

from __future__ import annotations

import _thread
import os
import sys

from kvsan import announce, arrival, inherit

TYPE_CHECKING = False
if TYPE_CHECKING:  # not from typing, which would be loaded for this alone
    from typing import Any

    from kvsan.spool import SpoolWriter

TOTALS_SECONDS = 1.0
"""How long a process that is ending waits for its totals; the tracker's lock may be held by a thread that is gone."""

_lock = _thread.RLock()
_spool: str | None = None
_writer: SpoolWriter | None = None
_sanitizer: Any = None
_events_at_fork = -1
_failed = False
_ready = False
_finished = False


def start() -> None:
    """Enters this process if `KVSAN_SPOOL` names a spool folder; never raises, and does nothing the second time."""
    global _spool
    spool = os.environ.get("KVSAN_SPOOL")
    if _spool is not None or not spool or os.environ.get("KVSAN") == "0":
        return
    if not os.path.isdir(spool):
        return  # the wrapper has ended, and its folder with it
    try:
        announce.check_private(spool)
        announce.announce(spool, "start")
        _spool = spool
        variables = {name: os.environ[name] for name in inherit.NAMES if name in os.environ}
        inherit.install({"KVSAN": "1", "KVSAN_OPTIONS": "", **variables})
        os.register_at_fork(after_in_child=_after_fork_in_child)
        arrival.watch()
    except Exception as error:
        complain(f"this process could not be entered: {error}")


def entered() -> bool:
    """Whether this process belongs to the tree of a `kvsan run`."""
    return _spool is not None


def activate() -> None:
    """Starts the sanitizer of an entered process, once; a failure is reported once and leaves the engine alone."""
    if _spool is None or _ready or _failed:
        return
    with _lock:  # another thread may be at it; and the one that is may come by here again
        if _writer is None and not _failed:
            _activate(_spool)


def _activate(spool: str) -> None:
    global _writer, _sanitizer, _failed, _ready
    try:
        from kvsan.options import Options
        from kvsan.spool import SpoolWriter

        _writer = writer = SpoolWriter(spool, announced=True)
        # policy before os._exit is patched: halting has nothing to wait for
        from kvsan import hooks, policy  # noqa: F401

        _sanitizer = hooks.start(Options.from_environment(os.environ, os.getcwd()), writer)
        writer.active(_process_name())
        _finish_at_exit()
        _ready = True
    except Exception as error:
        _failed = True
        _report_failure(error)


def finish() -> None:
    """Writes the totals and the last words; bounded in time, and does nothing the second time."""
    global _finished
    if _writer is None or _failed or _finished:
        return
    _finished = True
    if getattr(_sanitizer, "events", 0) == _events_at_fork:
        return  # a forked helper that never touched a slot: its totals are its parent's
    try:
        from kvsan import hooks

        hooks.stop()
    except Exception as error:
        _report_failure(error)
    _writer.close(2.0)


def _finish_at_exit() -> None:
    """Sees to it that `finish` runs at a normal exit, at os._exit (as multiprocessing ends) and at SIGTERM."""
    import atexit

    from kvsan import sigterm

    atexit.register(finish)
    leave = os._exit

    def _exit(status: int) -> Any:
        _finish_in_time()
        leave(status)

    _exit.__doc__ = leave.__doc__
    os._exit = _exit
    sigterm.at_sigterm(_finish_in_time)


def _finish_in_time() -> None:
    """`finish` on a thread of its own: this one may stand in the middle of an event and hold the tracker's lock."""
    import threading

    if _writer is None or _failed or _finished:
        return
    try:
        helper = threading.Thread(target=finish, name="kvsan-finish", daemon=True)
        helper.start()
        helper.join(TOTALS_SECONDS)
    except RuntimeError:  # no thread can be started any more
        finish()
    else:
        _writer.flush(1.0)


def _after_fork_in_child() -> None:
    global _lock, _finished, _events_at_fork
    _lock = _thread.RLock()
    _finished = False
    if _writer is not None:
        from kvsan import sigterm

        sigterm.after_fork()
        _events_at_fork = getattr(_sanitizer, "events", -2)
    if _spool is not None:
        try:
            announce.announce(_spool, "fork")
        except OSError as error:
            complain(f"this forked process could not be entered: {error}")


def _process_name() -> str:
    """What the program calls this process: its title, as `ps` shows it, or else its name among multiprocessing's.
    Engines' titles say which rank a scheduler is."""
    titles = sys.modules.get("setproctitle")
    if titles is not None and (title := titles.getproctitle()) != " ".join(sys.orig_argv):
        return str(title)
    process = sys.modules.get("multiprocessing.process")
    name = process.current_process().name if process is not None else ""
    return "" if name == "MainProcess" else str(name)


def _report_failure(error: Exception) -> None:
    from kvsan.findings import Failure

    text = f"{type(error).__name__}: {error}"
    cost = "this process is not watched; please report this, or run it with KVSAN=0 to leave it alone"
    if _writer is None:
        complain(f"{text}; {cost}")
        return
    _writer.failure(Failure("entering the process", text, cost, os.getpid()))
    _writer.flush(1.0)


def complain(text: str) -> None:
    """A line on standard error, whatever state the process is in."""
    from contextlib import suppress

    with suppress(OSError):
        os.write(2, f"kvsan: pid {os.getpid()}: {text}\n".encode("utf-8", "backslashreplace"))
