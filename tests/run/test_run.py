"""`kvsan run` as a command: statuses, reports, options, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvsan.commands import COMMANDS

from .wrapped import KVSAN, clean_environment, program, wrapped, wrapped_program


def kvsan(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KVSAN, *argv], text=True, capture_output=True, env=clean_environment(**variables), timeout=60
    )


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ([], 88),
        (["--error-exitcode", "7"], 7),
        (["--keep-exitcode"], 3),
        (["--keep-exitcode", "--error-exitcode=7"], 3),
    ],
)
def test_status_when_something_was_found(options: list[str], status: int, tmp_path: Path) -> None:
    got = wrapped_program(tmp_path, "import fake; fake.find('a'); sys.exit(3)", options=options)
    assert got.status == status
    assert got.report["exit"] == status
    assert f"Exit status {status}" in got.err
    assert "The command itself ended with status 3." in got.notes


@pytest.mark.parametrize(("code", "status"), [("true", 0), ("exit 3", 3), ("kill -SEGV $$", 128 + 11)])
def test_status_of_a_clean_command_that_is_not_python(code: str, status: int, tmp_path: Path) -> None:
    got = wrapped(tmp_path, ["sh", "-c", code])
    assert got.status == status
    assert "nothing to enter" in got.notes
    assert got.out == ""


def test_a_tree_without_an_engine_is_not_called_clean(tmp_path: Path) -> None:
    nothing = "No engine was seen in the command's tree"
    got = wrapped_program(tmp_path, "pass")
    assert got.status == 0
    assert nothing in got.notes
    watched = wrapped_program(tmp_path, "import fake; fake.hooks()")
    assert watched.report["totals"][0]["pool"] == "kv"
    assert nothing not in watched.notes


WHOLE = "import fake; fake.hooks()"
LACKING = {
    "no engine": "pass",
    "killed": "import fake\nif not os.fork():\n    fake.hooks(); os.kill(os.getpid(), 9)\nos.wait()",
    "not entered": "import fake, subprocess; fake.hooks(); subprocess.run([sys.executable, '-S', '-c', 'pass'])",
    "killed after a fork": """
import kvsan.hooks, time
san = kvsan.hooks.current()
san.pool("kv", kind="kv", size=8)
if not os.fork():
    san.alloc("kv", [1], owner="a")
    time.sleep(1)
    os.kill(os.getpid(), 9)
os.wait()""",
    "failed": "import fake; fake.hooks(lambda options, sink: 1 / 0)",
    "less than asked for": "import fake; fake.hooks(); fake.sink.lacks('only rows are watched')",
}


@pytest.mark.parametrize("what", LACKING)
def test_what_was_not_watched_counts_where_it_is_to(what: str, tmp_path: Path) -> None:
    option = ["--incomplete-exitcode", "9"]
    for text, status in ((LACKING[what], 9), (f"{LACKING[what]}\nsys.exit(3)", 3)):
        got = wrapped_program(tmp_path, text, options=option)
        assert (got.status, got.report["exit"], got.report["complete"]) == (status, status, False)
        assert "Not everything was watched." in got.err
    assert wrapped_program(tmp_path, LACKING[what]).status == 0


def test_a_child_that_is_to_be_left_alone_is_not_missed(tmp_path: Path) -> None:
    text = f"""
    {WHOLE}
    import subprocess
    for seconds in (0, 1.5):
        code = f"import time; time.sleep({{seconds}})"
        subprocess.run([sys.executable, "-c", code], env={{**os.environ, "KVSAN": "0"}})
    """
    got = wrapped_program(tmp_path, text, options=["--incomplete-exitcode", "9"])
    assert (got.status, got.report["complete"], "was not entered" in got.notes) == (0, True, False)


def test_forked_children_that_touch_nothing_lack_nothing(tmp_path: Path) -> None:
    text = """
    import kvsan.hooks, time
    san = kvsan.hooks.current()
    san.pool("kv", kind="kv", size=8)
    for end in (os._exit, sys.exit):
        if not os.fork():
            time.sleep(0.6)
            end(0)
        os.wait()
    """
    got = wrapped_program(tmp_path, text, options=["--incomplete-exitcode", "9"])
    assert (got.status, got.report["complete"]) == (0, True), got.notes


def test_what_was_watched_whole(tmp_path: Path) -> None:
    got = wrapped_program(tmp_path, WHOLE, options=["--incomplete-exitcode", "9"])
    assert (got.status, got.report["complete"]) == (0, True)
    assert "Not everything" not in got.err
    found = wrapped_program(tmp_path, f"{LACKING['killed']}\nfake.find('a')", options=["--incomplete-exitcode", "9"])
    assert (found.status, found.report["complete"]) == (88, False)
    kept = ["--incomplete-exitcode", "9", "--keep-exitcode"]
    assert wrapped_program(tmp_path, f"{LACKING['killed']}\nfake.find('a')", options=kept).status == 9


def test_status_when_there_is_no_such_command(tmp_path: Path) -> None:
    got = wrapped(tmp_path, ["kvsan-has-no-such-command", "x"])
    assert (got.status, got.err) == (127, "kvsan: error: kvsan-has-no-such-command: no such command\n")
    script = tmp_path / "script"
    script.write_text("not a program")
    for argv, reason in (([str(script)], "Permission denied"), ([str(tmp_path)], "Permission denied")):
        got = wrapped(tmp_path, argv)
        assert (got.status, got.err) == (126, f"kvsan: error: {argv[0]}: cannot be run: {reason}\n")
    script.chmod(0o755)
    assert wrapped(tmp_path, [str(script)]).status == 126


def test_the_wrapper_is_one_thread_alone(tmp_path: Path) -> None:
    """A second thread, such as NumPy's, would take a signal that the first one waits for, and end the wrapper by it."""
    got = wrapped_program(tmp_path, "print(len(os.listdir(f'/proc/{os.getppid()}/task')))")
    assert got.out == "1\n"


def test_input_and_output_are_the_commands_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [*KVSAN, "run", "--", "sh", "-c", "cat; echo err >&2"], input="in\n", text=True, capture_output=True,
        env=clean_environment(), timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "in\n")
    assert done.stderr.startswith("err\n")


def test_reports_go_to_files_by_their_ending(tmp_path: Path) -> None:
    text = tmp_path / "report.txt"
    got = wrapped_program(tmp_path, "import fake; fake.find('a')", options=["--report", str(text)])
    assert got.report["findings"][0]["token"] == "a"
    assert "DEDUP: a" in text.read_text()
    assert "\x1b" not in text.read_text()
    assert "DEDUP: a" in got.err


def test_reports_for_other_programs(tmp_path: Path) -> None:
    files = {ending: tmp_path / f"report{ending}" for ending in (".sarif", ".xml", ".html", ".HTML")}
    options = [word for file in files.values() for word in ("--report", str(file))]
    got = wrapped_program(tmp_path, "import fake; fake.find('a')", options=options)
    assert (got.status, got.report["failures"]) == (88, [])
    assert json.loads(files[".sarif"].read_text())["runs"][0]["invocations"][0]["exitCode"] == 88
    assert ElementTree.parse(files[".xml"]).getroot().attrib["failures"] == "1"
    assert files[".html"].read_text().startswith("<!doctype html>")
    assert files[".HTML"].read_text() == files[".html"].read_text()


def test_suppressions_that_matched_nothing_are_named_where_something_was_found(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    text = """
    from kvsan.hooks import current
    san = current()
    san.pool("kv", kind="kv", size=8)
    san.alloc("kv", [1], owner="a")
    san.req_end(owner="a")
    """
    rules.write_text("# known\nleak:*:nobody\nleak:program.<module>:kv\n")
    got = wrapped_program(tmp_path, text, options=["--suppress", str(rules)])
    assert got.status == 88
    assert f"Suppressions that matched nothing: {rules}:2, {rules}:3." in got.notes
    rules.write_text("leak:*:a\nrace\n")
    got = wrapped_program(tmp_path, text, options=["--suppress", str(rules)])
    assert (got.status, got.report["suppressed"]) == (0, 1)
    assert "matched nothing" not in got.notes


@pytest.mark.parametrize(("status", "ends"), [(0, 2), (3, 3)])
def test_a_report_that_cannot_be_written_is_no_success(status: int, ends: int, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    text = f"import fake; fake.hooks(); os.rmdir('there'); sys.exit({status})"
    got = wrapped_program(tmp_path, text, options=["--report", str(tmp_path / "there" / "r.html")])
    assert got.status == ends
    assert "FAILED in writing the report" in got.err
    assert f"Not everything was watched. Exit status {ends}." in got.err
    (failure,) = got.report["failures"]  # in the file that could be written
    assert (failure["where"], got.report["exit"], got.report["complete"]) == ("writing the report", ends, False)


def test_a_finding_names_the_trace_that_was_recorded(tmp_path: Path) -> None:
    """And the trace, checked, gives the same finding under the same token."""
    text = """
    from kvsan.hooks import current
    san = current()
    san.pool("kv", kind="kv", size=8)
    def leak():
        san.alloc("kv", [1], owner="a")
    leak()
    san.req_end(owner="a")
    """
    got = wrapped_program(tmp_path, text, options=["--record", str(tmp_path / "t.kvt")])
    (finding,) = got.report["findings"]
    assert finding["file"] == str(tmp_path / f"t.{finding['pid']}.kvt")
    assert f"REPLAY: kvsan check {finding['file']} --at {finding['at']}" in got.err
    checked = kvsan("check", finding["file"], "--at", str(finding["at"]), "--format", "json")
    (again,) = json.loads(checked.stdout)["findings"]
    assert (again["kind"], again["at"], again["token"]) == ("leak", finding["at"], finding["token"])
    assert json.loads(checked.stdout)["complete"]


def test_halt_ends_the_process_with_the_status(tmp_path: Path) -> None:
    got = wrapped_program(
        tmp_path,
        """
        import fake
        from kvsan.findings import Finding
        from kvsan.policy import Policy
        def start(options, sink):
            fake.policy = Policy(options, sink)
        fake.hooks(start, lambda: None)
        fake.policy.take(Finding("leak", 1, "kv:1", token="a"))
        print("not reached")
        """,
        options=["--on-error", "halt", "--error-exitcode", "9"],
    )
    assert (got.status, got.out, got.tokens) == (9, "", {"a"})
    assert "kvsan: LEAK on kv:1; on_error=halt ends this process" in got.err
    assert "without last words" not in got.notes
    assert "ended with status 9" in got.notes


def test_options_reach_the_process(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kvsan]\nstack_depth = 3\nmax_findings = 5\n")
    got = wrapped_program(
        tmp_path,
        """
        import fake
        os.chdir("/")
        fake.hooks(lambda o, sink: print(o.stack_depth, o.max_findings, o.level, o.record))
        """,
        options=["--max-findings", "6", "--level", "rows", "--record", "x.kvt"],
    )
    assert got.out == f"3 6 rows {tmp_path / 'x.kvt'}\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run"], "no command to run; write kvsan run [options] -- COMMAND"),
        (["run", "--"], "no command to run"),
        (["run", "--levle", "rows", "--", "true"], "unrecognized arguments: --levle (see kvsan run --help)"),
        (["run", "--incomplete-exitcode", "0", "--", "true"], "1 to 255, not 0"),
        (["status", "--wait", "-1"], "--wait: a number of seconds, more than 0, not '-1'"),
        (["status", "--wait", "nan"], "--wait: a number of seconds, more than 0, not 'nan'"),
        (["status", "me"], "invalid int value: 'me' (see kvsan status --help)"),
        (["run", "--level", "row", "--", "true"], "did you mean 'rows'"),
        (["run", "--suppress", "/nowhere/x", "--", "true"], "/nowhere/x cannot be read"),
        (["run", "--report", "/nowhere/x.json", "--", "true"], "/nowhere is missing or not writable"),
        (["rum"], "invalid choice: 'rum'"),
        ([], "COMMAND"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(argv: list[str], message: str) -> None:
    got = kvsan(*argv)
    assert got.returncode == 2
    assert got.stdout == ""
    assert got.stderr.startswith("kvsan: error: ")
    assert got.stderr.count("\n") == 1
    assert message in got.stderr


def test_a_wrong_variable_is_found_before_the_command_starts() -> None:
    got = kvsan("run", "--", "echo", "started", KVSAN_OPTIONS="levle=rows")
    assert (got.returncode, got.stdout) == (2, "")
    assert "did you mean 'level'" in got.stderr


def test_what_belongs_to_the_command_is_the_commands(tmp_path: Path) -> None:
    assert kvsan("run", "--", "echo", "--level", "x", "--", "--help").stdout == "--level x -- --help\n"
    assert kvsan("run", "echo", "--level", "x").stdout == "--level x\n"


@pytest.mark.parametrize("argv", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)])
def test_help_fits_80_columns(argv: list[str]) -> None:
    got = kvsan(*argv, COLUMNS="80")
    assert got.returncode == 0
    assert got.stdout
    assert max(map(len, got.stdout.splitlines())) <= 80


def test_the_spool_goes_away_and_a_given_one_stays(tmp_path: Path) -> None:
    places = tmp_path / "tmp"
    places.mkdir()
    file = program(tmp_path, "import fake; fake.find('a')")
    assert kvsan("run", "--", sys.executable, file, TMPDIR=str(places)).returncode == 88
    assert os.listdir(places) == []
    spool = tmp_path / "spool"
    assert kvsan("run", "--", sys.executable, file, KVSAN_OPTIONS=f"spool={spool}").returncode == 88
    assert list(spool.glob("*.jsonl"))
    spool.chmod(0o755)
    got = kvsan("run", "--", sys.executable, file, KVSAN_OPTIONS=f"spool={spool}")
    assert (got.returncode, "open to others" in got.stderr) == (2, True)


def test_the_rest_of_the_tree_is_waited_for(tmp_path: Path) -> None:
    child = program(tmp_path, "import fake, time; time.sleep(1); fake.find('late')", "child.py")
    got = wrapped_program(tmp_path, f"import subprocess; subprocess.Popen([sys.executable, {child!r}])")
    assert (got.status, got.tokens) == (88, {"late"})


def test_what_never_ends_is_not_waited_for_for_ever_and_named(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    child = program(
        tmp_path, f"import time; open({str(pids)!r}, 'w').write(str(os.getpid())); time.sleep(60)", "child.py"
    )
    file = program(
        tmp_path,
        f"import subprocess; subprocess.Popen([sys.executable, {child!r}], stdout=2); print('done', flush=True)",
    )
    code = (
        "import sys, kvsan.commands.run as run; run.LINGER_SECONDS = 0.5; from kvsan.cli import main; "
        f"sys.exit(main(['run', '--report', {str(tmp_path / 'r.json')!r}, '--', sys.executable, {file!r}]))"
    )
    before = time.monotonic()
    with open(tmp_path / "err", "w") as err:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=err, env=clean_environment(), timeout=60
        )
    os.kill(int(pids.read_text()), 9)
    assert (done.returncode, done.stdout) == (0, b"done\n")
    assert time.monotonic() - before < 30
    notes = "\n".join(json.loads((tmp_path / "r.json").read_text())["notes"])
    assert (
        f"Still running when this report was made, with findings that are not in it: pid {pids.read_text()}." in notes
    )


def test_a_wrapper_in_a_wrapper(tmp_path: Path) -> None:
    file = program(tmp_path, "import fake; fake.find('a')")
    got = wrapped(tmp_path, [*KVSAN, "run", "--", sys.executable, file])
    assert got.status == 88  # the inner one's status, as the command's own
    assert got.report["findings"] == []


def test_a_report_nobody_reads_keeps_the_status(tmp_path: Path) -> None:
    file = program(tmp_path, "import fake; fake.find('a')")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*KVSAN, "run", "--", sys.executable, file], stderr=writer, env=clean_environment(), timeout=60
    )
    os.close(writer)
    assert done.returncode == 88
