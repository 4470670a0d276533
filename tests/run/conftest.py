"""Signals as a terminal has them, wherever the tests run."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script; commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
