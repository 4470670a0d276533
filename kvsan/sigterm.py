"""SIGTERM in a process that it would end at once: it still does, after the last words.

Python runs a signal's handler when its main thread comes back to Python code. Where that stands in a long call of C, or
is just about to sleep, a handler would make the signal wait for as long. So the interpreter's own C handler, which
writes the signal's number to the wakeup descriptor, wakes a thread that does what the handler does. Who reads a
socket's other end is told whose write it was, so that a forked child, which has the same descriptor, ends nobody else.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from types import FrameType

_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group
_WAIT_SECONDS = 5.0

_wakeup = -1


def at_sigterm(finish: Callable[[], None]) -> None:
    """Calls `finish`, which must be bounded in time, and then lets SIGTERM end the process as it would have.

    Only where SIGTERM would end it at once, and only from the main thread, which alone may say so. A handler that the
    program sets replaces this one, or finds it as the one before.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    ending = threading.Lock()

    def end() -> None:
        if ending.acquire(blocking=False):
            finish()
        else:
            ending.acquire(timeout=_WAIT_SECONDS)  # the other thread is at it, and ends the process
        ctypes.pythonapi.PyOS_setsig(int(signal.SIGTERM), None)  # signal.signal is for the main thread alone
        os.kill(os.getpid(), signal.SIGTERM)

    def handler(number: int, frame: FrameType | None) -> None:
        end()

    signal.signal(signal.SIGTERM, handler)
    _watch(handler, end)


def after_fork() -> None:
    """In a forked child there is no such thread, and Python's own handler has to do."""
    global _wakeup
    if _wakeup >= 0:
        _is_free()
        _wakeup = -1


def _is_free() -> bool:
    """Whether the wakeup descriptor is nobody else's, such as an event loop's; then there is none from here on."""
    present = signal.set_wakeup_fd(-1)
    if present in (-1, _wakeup):
        return True
    signal.set_wakeup_fd(present, warn_on_full_buffer=False)
    return False


def _watch(handler: Callable[[int, FrameType | None], None], end: Callable[[], None]) -> None:
    global _wakeup
    if not _is_free():
        return
    ear, mouth = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ear.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    mouth.setblocking(False)
    threading.Thread(target=_listen, args=(ear, handler, end), name="kvsan-sigterm", daemon=True).start()
    _wakeup = mouth.detach()
    signal.set_wakeup_fd(_wakeup, warn_on_full_buffer=False)


def _listen(ear: socket.socket, handler: Callable[[int, FrameType | None], None], end: Callable[[], None]) -> None:
    while True:
        try:
            data, told, _, _ = ear.recvmsg(16, socket.CMSG_SPACE(_CREDENTIALS.size))
        except OSError:  # the program has closed what it did not open
            return
        writer = _CREDENTIALS.unpack(told[0][2])[0] if told else None
        if signal.SIGTERM in data and writer == os.getpid() and signal.getsignal(signal.SIGTERM) is handler:
            end()
