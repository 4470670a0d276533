"""Every Python process of the tree is entered, or the report says which was not and why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvsan

from .wrapped import clean_environment, program, wrapped, wrapped_program


def test_a_plain_process_is_entered(tmp_path: Path) -> None:
    got = wrapped_program(tmp_path, "import fake; fake.find('a'); print('hello')")
    assert (got.status, got.out, got.tokens) == (88, "hello\n", {"a"})
    assert got.report["totals"][0]["pool"] == "kv"
    assert "Exit status 88" in got.err
    assert "ended with status 0" in got.notes


def test_a_clean_process_is_entered_and_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    heavy = ("numpy", "rich", "pluggy", "json", "dataclasses", "inspect", "threading", "subprocess", "logging")
    got = wrapped_program(
        tmp_path, f"print([name for name in {heavy!r} if name in sys.modules], 'kvsan' in sys.modules)"
    )
    assert (got.status, got.report["processes"]) == (0, 1)
    # what the interpreter's own site module loads (an editable install's finder, say) is not kvsan's doing
    bare = subprocess.run(
        [sys.executable, "-c", f"import sys; print([name for name in {heavy!r} if name in sys.modules], True)"],
        text=True, capture_output=True, env=clean_environment(), check=True,
    )  # fmt: skip
    assert got.out == bare.stdout


@pytest.mark.parametrize(("title", "named"), [("engine::scheduler_TP1", "engine::scheduler_TP1"), (None, "")])
def test_a_finding_has_the_title_of_its_process(title: str | None, named: str, tmp_path: Path) -> None:
    """Without a title of its own, a process has the command's, which says nothing more."""
    got = wrapped_program(
        tmp_path,
        f"""
        import types

        titles = types.ModuleType("setproctitle")
        titles.getproctitle = lambda: {title!r} or " ".join(sys.orig_argv)
        sys.modules["setproctitle"] = titles
        import fake

        fake.find("a")
        """,
    )
    assert [(each["token"], each["process"]) for each in got.report["findings"]] == [("a", named)]


def test_entering_loads_nothing_but_itself() -> None:
    """Without site, whose editable finder has loaded half of the library before."""
    code = (
        "import os, sys, __future__; before = set(sys.modules); sys.path.insert(0, sys.argv[1]); import kvsan.entry; "
        "print(sorted(set(sys.modules) - before))"
    )
    root = os.path.dirname(os.path.dirname(kvsan.__file__))
    got = subprocess.run([sys.executable, "-S", "-c", code, root], text=True, capture_output=True, check=True)
    assert got.stdout == "['kvsan', 'kvsan.announce', 'kvsan.arrival', 'kvsan.entry', 'kvsan.inherit']\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method: str, tmp_path: Path) -> None:
    got = wrapped_program(
        tmp_path,
        f"""
        import multiprocessing
        def child(token):
            import fake
            fake.find(token)
        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            children = [context.Process(target=child, args=(f"c{{n}}",), name=f"worker-{{n}}") for n in range(2)]
            for one in children:
                one.start()
            for one in children:
                one.join()
            print([one.exitcode for one in children])
        """,
    )
    assert (got.status, got.out, got.tokens) == (88, "[0, 0]\n", {"c0", "c1"})
    assert {finding["process"] for finding in got.report["findings"]} == {"worker-0", "worker-1"}
    assert "without last words" not in got.notes
    assert "not entered" not in got.notes


@pytest.mark.parametrize("flags", [["-E"], ["-I"], ["-s"], ["-B", "-X", "utf8"]])
def test_interpreter_flags(flags: list[str], tmp_path: Path) -> None:
    got = wrapped_program(tmp_path, "import fake; fake.find('a')", flags=flags)
    assert (got.status, got.tokens) == (88, {"a"})


CLEANED = {
    "subprocess": "subprocess.run([sys.executable, child], env={})",
    "subprocess -I": "subprocess.run([sys.executable, '-I', child], env={'PATH': os.environ['PATH']})",
    "subprocess cwd": "subprocess.run([sys.executable, child], env={}, close_fds=False)",
    "cleared": "os.environ.clear(); subprocess.run([sys.executable, child])",
    "posix_spawn": "os.waitpid(os.posix_spawn(sys.executable, [sys.executable, child], {}), 0)",
    "execve": "os.execve(sys.executable, [sys.executable, child], {})",
    "execle": "os.execle(sys.executable, sys.executable, child, {})",
    "execv cleared": "os.environ.clear(); os.execv(sys.executable, [sys.executable, child])",
    "spawnve": "os.spawnve(os.P_WAIT, sys.executable, [sys.executable, child], {})",
    "fork exec": "pid = os.fork()\nif not pid: os.execve(sys.executable, [sys.executable, child], {})\nos.wait()",
}


@pytest.mark.parametrize("how", CLEANED)
def test_a_cleaned_environment_gets_back_what_enters(how: str, tmp_path: Path) -> None:
    child = program(tmp_path, "import fake; fake.find('child')", "child.py")
    got = wrapped_program(tmp_path, f"import subprocess\nchild = {child!r}\n{CLEANED[how]}")
    assert (got.status, got.tokens) == (88, {"child"})
    assert "not entered" not in got.notes


def test_a_child_may_be_left_alone(tmp_path: Path) -> None:
    child = program(tmp_path, "print('kvsan' in sys.modules)", "child.py")
    got = wrapped_program(
        tmp_path, f"import subprocess; subprocess.run([sys.executable, {child!r}], env={{'KVSAN': '0'}})"
    )
    assert (got.status, got.out, got.report["processes"]) == (0, "False\n", 1)


def test_a_child_without_site_is_named(tmp_path: Path) -> None:
    child = program(tmp_path, "import time; time.sleep(0.4)", "child.py")
    got = wrapped_program(tmp_path, f"import subprocess; subprocess.run([sys.executable, '-S', {child!r}])")
    assert got.status == 0
    assert "was not entered: -S keeps the interpreter" in got.notes
    assert got.report["processes"] == 1


def test_a_child_whose_environment_another_program_cleaned_is_named(tmp_path: Path) -> None:
    child = program(tmp_path, "import time; time.sleep(0.4)", "child.py")
    got = wrapped(tmp_path, ["env", "-i", sys.executable, child])
    assert got.status == 0
    assert "was not entered: its environment was cleaned" in got.notes


def test_a_shell_between_does_not_matter(tmp_path: Path) -> None:
    child = program(tmp_path, "import fake; fake.find('child')", "child.py")
    got = wrapped(tmp_path, ["sh", "-c", f"true; {sys.executable} {child}; exit 5"])
    assert (got.status, got.tokens) == (88, {"child"})
    assert "ended with status 5" in got.notes


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter where kvsan is not installed."""
    folder = tmp_path_factory.mktemp("foreign")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True, timeout=60)
    return folder / "venv"


def test_an_interpreter_without_kvsan_is_entered_by_its_pythonpath(foreign: Path, tmp_path: Path) -> None:
    site = next((foreign / "lib").glob("python3*/site-packages"))
    (site / "sitecustomize.py").write_text("CHAINED = True\n")
    file = program(
        tmp_path,
        "import fake, sitecustomize; fake.find('a'); print(sitecustomize.CHAINED, any('kvsan' in p for p in sys.path))",
    )
    got = wrapped(tmp_path, [str(foreign / "bin" / "python"), file])
    assert (got.status, got.tokens, got.out) == (88, {"a"}, "True False\n")


def test_an_interpreter_without_kvsan_that_ignores_pythonpath_is_named(foreign: Path, tmp_path: Path) -> None:
    file = program(tmp_path, "import time; time.sleep(0.4)")
    got = wrapped(tmp_path, [str(foreign / "bin" / "python"), "-I", file])
    assert got.status == 0
    assert "was not entered: kvsan is not installed where" in got.notes


@pytest.mark.parametrize("name", ["python3.9", "python3.8"])
def test_an_interpreter_that_is_too_old_is_named(name: str, tmp_path: Path) -> None:
    old = shutil.which(name)
    if old is None or subprocess.run([old, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no {name} here")
    got = wrapped(tmp_path, [old, "-c", "print('ran')"])
    assert (got.status, got.out, got.report["processes"]) == (0, "ran\n", 0)
    assert "was not entered: it runs Python 3." in got.notes


def test_pythonpath_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "treasure.py").write_text("")
    got = wrapped(
        tmp_path, [sys.executable, "-c", "import treasure"], env=clean_environment(PYTHONPATH=str(tmp_path / "mine"))
    )
    assert got.status == 0


def test_a_process_that_ends_by_os_exit_says_its_last_words(tmp_path: Path) -> None:
    got = wrapped_program(tmp_path, "import fake; fake.find('a'); os._exit(3)")
    assert got.report["totals"]
    assert "ended with status 3" in got.notes
    assert "without last words" not in got.notes


def test_a_forked_helper_does_not_repeat_the_totals_of_its_parent(tmp_path: Path) -> None:
    got = wrapped_program(
        tmp_path,
        """
        import fake, multiprocessing
        fake.find("a")
        def idle(): pass
        def busy(): fake._Sanitizer.events += 1
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=target) for target in (idle, busy)]
        for one in children:
            one.start()
            one.join()
        print(children[1].pid)
        """,
    )
    assert len(got.report["totals"]) == 2
    assert f"kv (pid {got.out.strip()})" in [pool["pool"] for pool in got.report["totals"]]
    assert (got.report["processes"], got.tokens) == (3, {"a"})
    assert "without last words" not in got.notes


def test_a_killed_child_leaves_its_findings_and_is_named(tmp_path: Path) -> None:
    got = wrapped_program(
        tmp_path,
        """
        import fake, os, signal, time
        pid = os.fork()
        if not pid:
            fake.find("child")
            fake.sink.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        print(pid)
        """,
    )
    assert (got.status, got.tokens) == (88, {"child"})
    assert f"pid {got.out.strip()}" in got.notes
    assert "ended without last words" in got.notes


BROKEN = {
    "start raises": "def start(options, sink): raise KeyError('pool')\nfake.hooks(start)",
    "stop raises": "def stop(): raise KeyError('pool')\nfake.hooks(None, stop)",
    "no hooks": "sys.modules['kvsan.hooks'] = None\nimport kvsan.entry; kvsan.entry.activate(); kvsan.entry.activate()",
}


@pytest.mark.parametrize("how", BROKEN)
def test_its_own_failure_is_reported_once_and_harms_nobody(how: str, tmp_path: Path) -> None:
    got = wrapped_program(tmp_path, f"import fake\n{BROKEN[how]}\nprint('alive')\nsys.exit(4)")
    assert (got.status, got.out) == (4, "alive\n")
    (failure,) = got.report["failures"]
    assert failure["error"].startswith(("KeyError", "ModuleNotFoundError", "ImportError"))
    assert failure["pid"]


def test_totals_that_hang_do_not_keep_a_process_from_ending(tmp_path: Path) -> None:
    got = wrapped_program(
        tmp_path,
        """
        import fake, time
        fake.hooks(None, lambda: time.sleep(60))
        fake.find("a")
        before = time.monotonic()
        print("going", flush=True)
        os._exit(int(time.monotonic() - before))
        """,
    )
    assert (got.status, got.tokens) == (88, {"a"})
    assert "ended with status 0" in got.notes


def test_off_means_off(tmp_path: Path) -> None:
    """Installed, but with no variable set, kvsan is not even imported, nor does anything else come with it."""
    code = "import sys, os, _posixsubprocess; print(sorted(m for m in sys.modules if m.startswith('kvsan')), os._exit)"
    bare = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, env=clean_environment())
    assert bare.stdout == "[] <built-in function _exit>\n"
    assert bare.stderr == ""


def test_a_spool_that_is_gone_or_not_private_enters_nobody(tmp_path: Path) -> None:
    code = "import sys, os; print(os._exit, os.execve)"
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    os.chmod(open_folder, 0o755)
    for spool, said in ((str(tmp_path / "gone"), ""), (str(open_folder), "open to others")):
        got = subprocess.run(
            [sys.executable, "-c", code], text=True, capture_output=True, env=clean_environment(KVSAN_SPOOL=spool)
        )
        assert got.stdout == "<built-in function _exit> <built-in function execve>\n"
        assert said in got.stderr
        assert got.returncode == 0
    assert os.listdir(open_folder) == []
