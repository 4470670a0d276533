"""Signals reach the command once, whoever sends them, and every way to end gives the right status."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .wrapped import clean_environment, command, outcome, program, start, wrapped, wrapped_program

COUNTS = """
    import fake, signal, time
    seen = []
    def note(number, frame):
        seen.append(signal.Signals(number).name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH"):
        signal.signal(getattr(signal, name), note)
    print("ready", os.getpid(), flush=True)
    while not seen:
        time.sleep(0.01)
    time.sleep(0.3)
    print(seen)
"""


def ready(wrapper: subprocess.Popen[str]) -> int:
    """Waits for the program's `ready PID`."""
    assert wrapper.stdout is not None
    word, pid = wrapper.stdout.readline().split()
    assert word == "ready"
    return int(pid)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH"])
def test_a_signal_sent_to_the_wrapper_reaches_the_command_once(name: str, tmp_path: Path) -> None:
    wrapper = start(tmp_path, [sys.executable, program(tmp_path, COUNTS)])
    ready(wrapper)
    wrapper.send_signal(getattr(signal, name))
    got = outcome(tmp_path, wrapper)
    assert (got.status, got.out) == (0, f"[{name!r}]\n")


@pytest.mark.parametrize(("key", "name"), [(b"\x03", "SIGINT"), (b"\x1c", "SIGQUIT")])
def test_a_key_in_the_terminal_reaches_the_command_once(key: bytes, name: str, tmp_path: Path) -> None:
    file = program(tmp_path, COUNTS)
    pid, terminal = pty.fork()
    if not pid:
        argv = command(tmp_path, [sys.executable, file])
        os.execve(argv[0], argv, clean_environment(PYTHONPATH=os.getcwd()))
    output = b""
    while b"ready" not in output:
        output += os.read(terminal, 1000)
    time.sleep(0.1)
    os.write(terminal, key)
    output = read_to_the_end(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert f"['{name}']" in output
    assert "no findings" in output


def read_to_the_end(terminal: int) -> str:
    """Everything that still comes out of the terminal."""
    parts = []
    while True:
        try:
            part = os.read(terminal, 1000)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    os.close(terminal)
    return b"".join(parts).decode()


WAITS = "import fake, time\n{before}\nprint('ready', os.getpid(), flush=True)\nwhile True:\n    time.sleep(0.05)"
"""A program of Python's own: what comes just before a sleep waits for its end, SIGINT's handler too."""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_command_ended_by_a_signal_that_was_passed_on_counts_as_success(name: str, tmp_path: Path) -> None:
    wrapper = start(tmp_path, [sys.executable, program(tmp_path, WAITS.format(before="fake.hooks()"))])
    ready(wrapper)
    wrapper.send_signal(getattr(signal, name))
    got = outcome(tmp_path, wrapper)
    assert got.status == 0
    assert f"was ended by {name}, which kvsan passed on" in got.notes
    if name != "SIGHUP":
        assert got.report["totals"]  # written before the process died
        assert "without last words" not in got.notes


def test_findings_count_for_more_than_the_signal(tmp_path: Path) -> None:
    wrapper = start(tmp_path, [sys.executable, program(tmp_path, WAITS.format(before="fake.find('a')"))])
    ready(wrapper)
    wrapper.terminate()
    got = outcome(tmp_path, wrapper)
    assert (got.status, got.tokens) == (88, {"a"})
    assert "was ended by SIGTERM" in got.notes


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_who_stops_a_command_that_has_just_ended_does_not_stop_its_report(name: str, tmp_path: Path) -> None:
    """The second report file is a pipe that nobody reads yet: the wrapper is held while it writes."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    code = program(tmp_path, "import fake; fake.find('a')")
    wrapper = start(tmp_path, [sys.executable, code], ["--report", str(pipe)])
    end = time.monotonic() + 30
    while not (tmp_path / "report.json").exists() and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.3)
    wrapper.send_signal(getattr(signal, name))
    time.sleep(0.3)
    assert wrapper.poll() is None
    assert "race" in pipe.read_text()
    got = outcome(tmp_path, wrapper)
    assert (got.status, got.tokens) == (88, {"a"})
    assert "SUMMARY: kvsan: " in got.err


def test_a_command_killed_by_somebody_else_gives_128_and_the_signal(tmp_path: Path) -> None:
    wrapper = start(tmp_path, [sys.executable, program(tmp_path, WAITS.format(before=""))])
    os.kill(ready(wrapper), signal.SIGKILL)
    got = outcome(tmp_path, wrapper)
    assert got.status == 128 + 9
    assert "was ended by SIGKILL." in got.notes


LOCK = "mutex = ctypes.create_string_buffer(128); lock = ctypes.CDLL(None).pthread_mutex_lock; lock(mutex); lock(mutex)"
"""A call of C that no signal interrupts: a handler in Python would wait for it."""


@pytest.mark.parametrize(("stands", "after"), [("time.sleep(60)", 0), (LOCK, 0.2)], ids=["asleep", "in a call of C"])
def test_sigterm_ends_an_entered_process_as_it_would_have(stands: str, after: float, tmp_path: Path) -> None:
    got = wrapped_program(
        tmp_path,
        f"""
        import ctypes, multiprocessing, time
        def child(ready):
            import fake
            fake.find("child")
            ready.set()
            {stands}
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            ready = context.Event()
            one = context.Process(target=child, args=(ready,))
            one.start()
            ready.wait(30)
            time.sleep({after})
            one.terminate()
            one.join(20)
            print(one.exitcode)
            one.kill()
        """,
    )
    assert (got.status, got.out, got.tokens) == (88, "-15\n", {"child"})
    assert got.report["totals"]


def test_sigterm_ends_a_forked_child_and_not_its_parent(tmp_path: Path) -> None:
    got = wrapped_program(
        tmp_path,
        """
        import fake, signal, time
        fake.find("parent")
        child = os.fork()
        if not child:
            while True:
                time.sleep(0.05)
        time.sleep(0.3)
        os.kill(child, signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        time.sleep(0.5)
        print("alive")
        """,
    )
    assert (got.status, got.out) == (88, "-15\nalive\n")


def test_a_byte_that_a_child_writes_ends_nobody(tmp_path: Path) -> None:
    """Between a fork and what runs after it, a child has its parent's wakeup descriptor."""
    got = wrapped_program(
        tmp_path,
        """
        import fake, signal, time
        fake.find("parent")
        descriptor = signal.set_wakeup_fd(-1)
        assert descriptor > 2
        child = os.fork()
        if not child:
            os.write(descriptor, bytes([signal.SIGTERM]))
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.5)
        print("alive", flush=True)
        os.write(descriptor, bytes([signal.SIGTERM]))
        time.sleep(20)
        """,
    )
    assert (got.status, got.out) == (88, "alive\n")
    assert "was ended by SIGTERM" in got.notes


def test_the_programs_own_sigterm_handler_is_never_replaced(tmp_path: Path) -> None:
    got = wrapped_program(
        tmp_path,
        """
        import fake, signal
        mine = lambda *_: print("mine", flush=True)
        signal.signal(signal.SIGTERM, mine)
        fake.hooks()
        print(signal.getsignal(signal.SIGTERM) is mine)
        os.kill(os.getpid(), signal.SIGTERM)
        """,
    )
    assert (got.status, got.out) == (0, "True\nmine\n")


def test_stop_and_continue(tmp_path: Path) -> None:
    wrapper = start(tmp_path, [sys.executable, program(tmp_path, COUNTS)], preexec_fn=lambda: os.setpgid(0, 0))
    child = ready(wrapper)
    wrapper.send_signal(signal.SIGTSTP)
    assert wait_for_state(child, "T")
    assert wait_for_state(wrapper.pid, "T")
    wrapper.send_signal(signal.SIGCONT)
    assert wait_for_state(child, "S")
    wrapper.send_signal(signal.SIGUSR1)
    got = outcome(tmp_path, wrapper)
    assert (got.status, got.out) == (0, "['SIGUSR1']\n")


def wait_for_state(pid: int, wanted: str) -> bool:
    """Whether the process comes to that state in a few seconds."""
    from kvsan.process_tree import state_of

    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if state_of(pid) == wanted:
            return True
        time.sleep(0.02)
    return False


def test_signals_the_shell_made_ignored_stay_ignored(tmp_path: Path) -> None:
    got = wrapped(
        tmp_path,
        ["sh", "-c", f"trap '' HUP; {sys.executable} -c 'import signal; print(signal.getsignal(signal.SIGHUP))'"],
    )
    assert got.out == "Handlers.SIG_IGN\n" or got.out == "1\n"


def test_the_command_starts_with_the_signals_of_a_shell(tmp_path: Path) -> None:
    got = wrapped(tmp_path, ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"])
    used_by_libc = 0b11 << 31  # two real-time signals, which posix_spawn cannot leave alone
    assert [int(line.split()[1], 16) & ~used_by_libc for line in got.out.splitlines()] == [0, 0]
