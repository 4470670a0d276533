"""`pytest --kvsan`, seen from projects that use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Imported here, because a run inside this process forgets every module that it was the first to import.
from kvsan import Sanitizer, hooks, options  # noqa: F401
from kvsan.reporters import terminal  # noqa: F401

pytest_plugins = ["pytester"]

HEAD = """
import pytest
from kvsan import hooks

def pool():
    hooks.current().pool("blocks", kind="kv", size=16, page=1, reserved=[0])

def leak(owner="a"):
    hooks.current().alloc("blocks", [1, 2], owner=owner)
    hooks.current().req_end(owner=owner)

def double_free():
    hooks.current().alloc("blocks", [3], owner="d")
    hooks.current().free("blocks", [3], owner="d")
    hooks.current().free("blocks", [3], owner="d")
    hooks.current().req_end(owner="d")
"""


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs inside this one load kvsan alone: importing every plugin that happens to be installed takes seconds."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, body: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(test_it=HEAD + body)
    return pytester.runpytest("-p", "no:cacheprovider", "-p", "kvsan.pytest_plugin", *arguments)


def test_a_finding_fails_the_test_that_caused_it_and_no_other(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_before():
    pool()
    hooks.current().alloc("blocks", [1], owner="x")
    hooks.current().free("blocks", [1], owner="x")
    hooks.current().req_end(owner="x")

def test_leaks():
    pool()
    leak()

def test_after():
    pool()
""",
        "--kvsan",
    )
    result.assert_outcomes(passed=2, failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*_ test_leaks _*",
            "kvsan: found 1 leak",
            "*- kvsan -*",
            "*LEAK of 2 token slots*",
            "SUMMARY: kvsan: leak*",
            "*= kvsan =*",
            "test * findings",
            "test_it.py::test_leaks * 1 leak",
            "3 tests tracked at level slots, 1 with findings: 1 leak",
            "FAILED test_it.py::test_leaks - kvsan: found 1 leak",
        ]
    )
    result.stdout.no_fnmatch_line("*test_it.py::test_before *leak*")


def test_what_is_still_held_at_the_end_is_a_leak(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_never_ended():
    pool()
    hooks.current().alloc("blocks", [5], owner="a")
""",
        "--kvsan",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["kvsan: found 1 leak"])


def test_fixtures_may_give_back_after_the_call(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.fixture
def block():
    pool()
    hooks.current().alloc("blocks", [5], owner="a")
    yield 5
    hooks.current().free("blocks", [5], owner="a")
    hooks.current().req_end(owner="a")

def test_uses_it(block):
    assert block == 5
""",
        "--kvsan",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 test tracked at level slots, no findings"])


def test_a_finding_in_a_teardown_fails_the_test_itself(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.fixture
def twice():
    yield
    pool()
    double_free()

def test_passes_otherwise(twice):
    pass
""",
        "--kvsan",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["kvsan: found 1 double_free"])


def test_a_test_that_fails_by_itself_keeps_its_reason_and_gets_the_report(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_wrong_and_leaking():
    pool()
    leak()
    assert "tokens" == "other tokens"
""",
        "--kvsan",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*assert 'tokens' == 'other tokens'", "*- kvsan -*", "SUMMARY: kvsan: leak*"])
    result.stdout.no_fnmatch_line("*kvsan: found*")


EXPECTING = """
@pytest.mark.kvsan(expect="leak")
def test_comes():
    pool()
    leak()

@pytest.mark.kvsan(expect="leak")
def test_does_not_come():
    pool()

@pytest.mark.kvsan(expect=["leak"])
def test_another_comes_too():
    pool()
    leak()
    double_free()

@pytest.mark.kvsan(expect=["leak", "double_free"])
def test_both_come():
    pool()
    leak()
    double_free()

@pytest.mark.kvsan(expect="leek")
def test_no_such_kind():
    pass

@pytest.mark.kvsan("leak")
def test_wrong_marker():
    pass
"""


def test_expected_kinds_must_come_and_others_must_not(pytester: pytest.Pytester) -> None:
    result = run(pytester, EXPECTING, "--kvsan")
    result.assert_outcomes(passed=2, failed=4)
    result.stdout.fnmatch_lines(
        [
            "*_ test_does_not_come _*",
            "kvsan: expected leak, which did not come",
            "*_ test_another_comes_too _*",
            "kvsan: found 1 double_free",
            "*_ test_no_such_kind _*",
            "kvsan: expect='leek' is no kind of finding; did you mean 'leak'?",
            "*_ test_wrong_marker _*",
            "kvsan: the marker kvsan takes expect= and off=, not 'leak'",
            "*= kvsan =*",
            "test_it.py::test_another_comes_too * 1 double_free",
            "test_it.py::test_another_comes_too * 1 leak  expected",
            "test_it.py::test_both_come * 1 double_free 1 leak  expected",
            "test_it.py::test_comes * 1 leak  expected",
        ]
    )


def test_without_kvsan_the_markers_do_nothing(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.kvsan(expect="leak")
def test_marked():
    assert not hooks.current().enabled

def test_asks_for_the_sanitizer(kvsan):
    assert False
""",
        "--strict-markers",
        "-rs",
    )
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *needs pytest --kvsan"])
    result.stdout.no_fnmatch_line("*= kvsan =*")


def test_a_test_can_be_left_untracked(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.kvsan(off=True)
class TestOff:
    def test_is_not_tracked(self):
        assert not hooks.current().enabled

    @pytest.mark.kvsan(off=False)
    def test_is_tracked_again(self, kvsan):
        assert hooks.current() is kvsan

    def test_has_no_sanitizer(self, kvsan):
        assert False
""",
        "--kvsan",
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["the fixture kvsan cannot be had in a test marked kvsan(off=True)", "1 test tracked*"])


def test_the_fixture_is_the_sanitizer_of_this_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
seen = []

@pytest.mark.kvsan(expect="leak")
@pytest.mark.parametrize("turn", [1, 2])
def test_has_findings_of_its_own(kvsan, turn):
    assert kvsan is hooks.current() and kvsan not in seen
    seen.append(kvsan)
    pool()
    leak()
    assert [finding.kind for finding in kvsan.findings] == ["leak"]
""",
        "--kvsan",
    )
    result.assert_outcomes(passed=2)


def test_skipped_and_expected_to_fail(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.skip
def test_skipped():
    pass

@pytest.mark.xfail
def test_fails_by_its_finding():
    pool()
    leak()

@pytest.mark.xfail
@pytest.mark.kvsan(expect="leak")
def test_fails_before_it_leaks():
    assert False
""",
        "--kvsan",
    )
    result.assert_outcomes(skipped=1, xfailed=2)
    result.stdout.fnmatch_lines(["2 tests tracked*"])


def test_the_level_comes_from_the_flag_or_the_project(pytester: pytest.Pytester) -> None:
    body = """
def test_level(kvsan):
    pool()
"""
    run(pytester, body, "--kvsan", "--kvsan-level", "rows").stdout.fnmatch_lines(["1 test tracked at level rows*"])
    pytester.makepyprojecttoml('[tool.kvsan]\nlevel = "full"\n')
    run(pytester, body, "--kvsan").stdout.fnmatch_lines(["1 test tracked at level full*"])
    pytester.makepyprojecttoml('[tool.kvsan]\nlevl = "full"\n')
    result = run(pytester, body, "--kvsan")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown option 'levl'; did you mean 'level'?"])


def test_findings_that_raise_are_judged_like_others(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml('[tool.kvsan]\non_error = "raise"\n')
    result = run(
        pytester,
        """
def test_raises_in_the_call():
    pool()
    double_free()

def test_would_raise_at_the_end():
    pool()
    hooks.current().alloc("blocks", [5], owner="a")
""",
        "--kvsan",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["E *FindingRaised: *", "*_ test_would_raise_at_the_end _*", "kvsan: found 1 leak"])


def test_a_run_in_which_nothing_was_watched_says_so(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_nothing():\n    pass\n", "--kvsan")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["No test produced an event: nothing was watched.*"])


def test_a_failing_check_is_not_a_clean_one(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_breaks_kvsan(kvsan, monkeypatch):
    def broken():
        raise RuntimeError("no verdict")
    kvsan.check_end = broken

def test_loses_a_detector(kvsan):
    from dataclasses import replace
    from kvsan.findings import Failure

    clean = kvsan.report()
    kvsan.report = lambda: replace(clean, failures=(Failure("race", "KeyError: 7", "no races are found"),))

def test_goes_on():
    pool()
""",
        "--kvsan",
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "kvsan itself failed: RuntimeError: no verdict",
            "kvsan itself failed: race: KeyError: 7 (no races are found)",
        ]
    )


def test_under_xdist_the_workers_findings_reach_the_summary(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = run(pytester, EXPECTING, "--kvsan", "-p", "xdist", "-n", "2")
    result.assert_outcomes(passed=2, failed=4)
    result.stdout.fnmatch_lines(
        [
            "*- kvsan -*",
            "SUMMARY: kvsan: double_free*",
            "*= kvsan =*",
            "test_it.py::test_another_comes_too * 1 double_free",
            "test_it.py::test_both_come * 1 double_free 1 leak  expected",
            "4 tests tracked at level slots, 1 with findings: 1 double_free",
            "FAILED test_it.py::test_does_not_come - kvsan: expected leak, which did not come",
        ],
        consecutive=False,
    )


def test_the_report_reaches_junit(pytester: pytest.Pytester) -> None:
    run(pytester, "def test_leaks():\n    pool()\n    leak()\n", "--kvsan", "--junitxml=out.xml")
    assert 'failures="1"' in (text := (pytester.path / "out.xml").read_text())
    assert "kvsan: found 1 leak" in text


def test_without_kvsan_nothing_of_it_is_imported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import sys

def test_modules():
    ours = {name for name in sys.modules if name.split(".")[0] in ("kvsan", "numpy", "rich", "torch")}
    assert ours <= {"kvsan", "kvsan.pytest_plugin"}
"""
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "kvsan.pytest_plugin", str(pytester.path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=pytester.path,
    )
    assert ran.returncode == 0, ran.stdout
