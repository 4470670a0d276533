"""Runs a command as a shell would, in the same process group and terminal, and passes signals on once."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvsan.errors import KvsanError
from kvsan.process_tree import state_of

PASSED_ON = frozenset(
    (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGTSTP,
        signal.SIGCONT,
    )
)
_WAITED_FOR = PASSED_ON | {signal.SIGCHLD}
_ENDING = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


class CommandNotFound(KvsanError):
    """There is no such program."""

    exit_status = 127


class CommandNotExecutable(KvsanError):
    """The program is there, but cannot be run."""

    exit_status = 126


@dataclass(slots=True)
class Child:
    """The command, running or ended; `ended_by` is the signal that ended it, `passed_on` those that went through us."""

    pid: int
    status: int | None = None
    ended_by: int = 0
    passed_on: set[int] = field(default_factory=set)

    def exit_status(self) -> int:
        """As a shell gives it, but 0 for a command ended by a signal that was passed on."""
        if not self.ended_by:
            return self.status or 0
        return 0 if self.ended_by in self.passed_on else 128 + self.ended_by

    def sentence(self) -> str:
        """How the command ended."""
        if not self.ended_by:
            return f"The command itself ended with status {self.status}."
        name = _name(self.ended_by)
        if self.ended_by in self.passed_on:
            return f"The command itself was ended by {name}, which kvsan passed on."
        return f"The command itself was ended by {name}."


class Supervisor:
    """Starts a command and waits for it. The signals that it passes on are blocked in this process from then on.

    Blocked and fetched one by one instead of handled, because only so the kernel says who sent a signal: what the
    terminal sends (Ctrl-C, Ctrl-Z, a new window size) has gone to the whole group and is not delivered a second time.
    """

    def __init__(self, argv: Sequence[str], environment: dict[str, str]) -> None:
        # Blocked before the command exists, so that no signal falls between; the command itself gets the old mask, and
        # the two signals back that the interpreter ignores for itself.
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        try:
            pid = os.posix_spawnp(
                argv[0], list(argv), environment, setsigmask=self._mask, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
            )
        except OSError as error:
            self.restore()
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise CommandNotFound(f"{argv[0]}: no such command") from None
            raise CommandNotExecutable(f"{argv[0]}: cannot be run: {error.strerror}") from None
        except ValueError as error:
            self.restore()
            raise CommandNotExecutable(f"the command cannot be run: {error}") from None
        self.child = Child(pid)

    def wait(self, look: Callable[[], bool]) -> Child:
        """Until the command ends. `look` is called now and then; when it says that there are news, sooner again."""
        pause = _FIRST_PAUSE
        while not self._reap():
            self._take_signal(pause)
            pause = _FIRST_PAUSE if look() else min(pause * 1.2, _LONGEST_PAUSE)
        return self.child

    def linger(self, seconds: float, done: Callable[[], bool]) -> None:
        """Until `done`, but for so many seconds at most, and no longer once somebody asks to end."""
        deadline = time.monotonic() + seconds
        pause = 0.01
        while not done() and time.monotonic() < deadline:
            info = signal.sigtimedwait(_WAITED_FOR, pause)
            if info is not None and info.si_signo in _ENDING:
                return
            pause = min(pause * 1.5, 0.2)

    def restore(self) -> None:
        """Gives this process its own signals back; what came too late for the command is dropped."""
        while signal.sigtimedwait(_WAITED_FOR, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _reap(self) -> bool:
        pid, status = os.waitpid(self.child.pid, os.WNOHANG)
        if not pid:
            return False
        if os.WIFSIGNALED(status):
            self.child.ended_by = os.WTERMSIG(status)
        else:
            self.child.status = os.WEXITSTATUS(status)
        return True

    def _take_signal(self, seconds: float) -> None:
        info = signal.sigtimedwait(_WAITED_FOR, seconds)
        if info is None or info.si_signo == signal.SIGCHLD:
            return
        number = info.si_signo
        self.child.passed_on.add(number)
        # si_code > 0: from the kernel. A stopped group is continued as a whole by the shell, a child alone is not.
        reached = info.si_code > 0 or (number == signal.SIGCONT and state_of(self.child.pid) != "T")
        if not reached:
            os.kill(self.child.pid, number)  # not reaped yet, so the id is still the command's
        if number == signal.SIGTSTP:
            self._stop()

    def _stop(self) -> None:
        """Stops this process as Ctrl-Z does any other, so that the shell sees it; returns when it is continued."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
