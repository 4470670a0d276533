"""Which findings are told, how often, and what they do to the process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvsan.errors import FindingRaised, KvsanError, OptionError
from kvsan.findings import Access, Finding, Frame, Joined
from kvsan.options import Options
from kvsan.policy import JOINED_LIMIT, Policy, headline, read_suppressions
from kvsan.sinks import Collector

FINDING = Finding(
    "race", 7, "req_to_token:1", "req_to_token", (1,), "b7", "a3", token="race:x:y",
    present=Access("write", 7, stack=(Frame("/e/allocation.py", 88, "write_cache_indices"),)),
    earlier=Access("read", 3, stack=(Frame("/e/forward.py", 52, "capture_rows"),)),
)  # fmt: skip


def rules(tmp_path: Path, text: str) -> Options:
    file = tmp_path / "known.txt"
    file.write_text(text)
    return Options(suppress=str(file))


def test_a_cause_is_told_once_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Collector()
    policy = Policy(Options(), sink)
    for at in (7, 8, 9):
        policy.take(replace(FINDING, at=at))
    policy.joined("race:x:y", Joined("orphan", 10, "kv", (1,)))
    policy.joined("unknown", Joined("orphan", 10, "kv", (1,)))
    (finding,) = sink.report().findings
    assert (finding.at, finding.count, len(finding.joined)) == (7, 3, 1)
    said = capsys.readouterr().err
    assert said == ('kvsan: RACE on req_to_token:1 by "b7" at allocation.py:88 write_cache_indices\n')


def test_joined_violations_are_bounded() -> None:
    sink = Collector()
    policy = Policy(Options(), sink)
    policy.take(FINDING)
    for at in range(JOINED_LIMIT + 50):
        policy.joined("race:x:y", Joined("orphan", at, "kv", (1,)))
    (finding,) = sink.report().findings
    assert (len(finding.joined), finding.count) == (JOINED_LIMIT, 51)


def test_no_more_findings_than_allowed() -> None:
    sink = Collector()
    policy = Policy(Options(max_findings=2), sink)
    for number in range(5):
        policy.take(replace(FINDING, token=str(number)))
    report = sink.report()
    assert len(report.findings) == 2
    assert any("more than 2 faults" in note for note in report.notes)


def test_raise_raises_every_time_in_the_calling_thread(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Collector()
    policy = Policy(Options(on_error="raise"), sink)
    for _ in range(2):
        with pytest.raises(FindingRaised, match="RACE on req_to_token:1") as raised:
            policy.take(FINDING)
        assert isinstance(raised.value, KvsanError)
        assert raised.value.finding is FINDING
    assert sink.report().findings[0].count == 2
    assert capsys.readouterr().err == ""


def test_halt_closes_the_sink_and_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    left: list[int] = []
    policy = Policy(Options(on_error="halt", error_exitcode=7), Collector(), leave=left.append)
    policy.take(FINDING)
    assert left == [7]
    assert "on_error=halt ends this process" in capsys.readouterr().err


def test_what_a_client_controls_is_escaped() -> None:
    line = headline(replace(FINDING, owner='\x1b[31m"[bold]\n\u202e', object="kv:\r1"))
    assert line.isprintable()
    assert "\x1b" not in line
    assert "\\x1b[31m" in line
    assert "[bold]" in line  # plain text to standard error: no markup is ever interpreted


@pytest.mark.parametrize(
    "rule",
    ["race", "race:*:b7", "*:*capture_rows", "race:forward.capture_rows:*", "race:allocation.py?88:a3", "r*:/e/*.py"],
)
def test_a_rule_that_fits_keeps_the_finding_out_and_is_named(rule: str, tmp_path: Path) -> None:
    sink = Collector()
    policy = Policy(rules(tmp_path, f"# known\n\n  {rule}\n"), sink)
    policy.take(FINDING)
    policy.take(FINDING)
    report = sink.report()
    assert (report.findings, report.suppressed) == ((), 2)
    assert any("known.txt:3" in note and "2 times" in note for note in report.notes)


@pytest.mark.parametrize("rule", ["leak", "race:nowhere", "race:*:c9"])
def test_a_rule_that_does_not_fit_does_nothing(rule: str, tmp_path: Path) -> None:
    sink = Collector()
    Policy(rules(tmp_path, rule), sink).take(FINDING)
    assert len(sink.report().findings) == 1


def test_a_suppressed_finding_does_not_raise(tmp_path: Path) -> None:
    Policy(replace(rules(tmp_path, "race"), on_error="raise"), Collector()).take(FINDING)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("rase", r"known.txt:2: no finding is of kind 'rase'; did you mean 'race'"),
        ("race::x", r"known.txt:2: an empty pattern"),
        ("race:scheduler.py:88", r"write scheduler.py\?88"),
    ],
)
def test_a_broken_rule_is_an_error_with_file_and_line(rule: str, message: str, tmp_path: Path) -> None:
    options = rules(tmp_path, f"# comment\n{rule}\n")
    assert options.suppress is not None
    with pytest.raises(OptionError, match=message):
        read_suppressions(options.suppress)


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_suppressions("/nowhere/known.txt")
