"""One table gives defaults, environment, pyproject.toml and flags, and says what is wrong with each."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from kvsan.errors import OptionError
from kvsan.options import SPECS, Options, add_flags


def flags(*argv: str) -> Options:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return Options().updated_from_flags(parser.parse_args(argv), "/w")


def test_defaults_stand_without_anything(tmp_path: Path) -> None:
    options = Options.from_environment({}, tmp_path)
    assert options == Options()
    assert (options.level, options.on_error, options.error_exitcode, options.stack_depth) == ("slots", "log", 88, 12)


def test_environment_text(tmp_path: Path) -> None:
    text = "level=rows:keep_exitcode=1:idle_seconds=2.5:width=none:report=a.json:report=/b/c.txt"
    options = Options.from_environment({"KVSAN_OPTIONS": text}, tmp_path)
    assert options.level == "rows"
    assert options.keep_exitcode is True
    assert options.idle_seconds == 2.5
    assert options.width is None
    assert options.report == (str(tmp_path / "a.json"), "/b/c.txt")


def test_every_option_survives_the_environment(tmp_path: Path) -> None:
    options = Options(
        level="full", on_error="raise", report=("/a:b/c.json", "/back\\slash"), record="/t/%p.kvt", error_exitcode=7,
        keep_exitcode=True, stack_depth=3, suppress="/s=x", idle_seconds=0.5, color="never", width=100, max_findings=5,
        spool="/spool",
    )  # fmt: skip
    assert Options.from_environment(options.to_environment(), tmp_path) == options
    assert Options.from_environment(Options().to_environment(), tmp_path) == Options()


def test_pyproject_is_the_nearest_upwards_and_the_environment_wins(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.kvsan]\nlevel = "rows"\nstack-depth = 4\nkeep_exitcode = true\nsuppress = "known.txt"\n'
        'report = ["a.json", "b.txt"]\n'
    )
    inner = tmp_path / "deep" / "er"
    inner.mkdir(parents=True)
    options = Options.from_environment({"KVSAN_OPTIONS": "stack_depth=5"}, inner)
    assert (options.level, options.stack_depth, options.keep_exitcode) == ("rows", 5, True)
    assert options.suppress == str(tmp_path / "known.txt")
    assert options.report == (str(tmp_path / "a.json"), str(tmp_path / "b.txt"))


def test_an_entered_process_does_not_read_pyproject_again(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.kvsan]\nlevel = "rows"\n')
    assert Options.from_environment({"KVSAN_SPOOL": "/s"}, tmp_path) == Options(spool="/s")


def test_flags_win_and_are_one_for_each_option() -> None:
    options = flags("--level", "rows", "--report", "x.json", "--report", "y", "--keep-exitcode", "--error-exitcode=3")
    assert options.report == ("/w/x.json", "/w/y")
    assert (options.level, options.keep_exitcode, options.error_exitcode) == ("rows", True, 3)
    parser = argparse.ArgumentParser()
    add_flags(parser)
    help_text = parser.format_help()
    for name, spec in SPECS.items():
        assert (f"--{name.replace('_', '-')}" in help_text) is not spec.internal


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("levle=rows", "unknown option 'levle'; did you mean 'level'?"),
        ("level=row", "level is one of rows, slots, full, not 'row'; did you mean 'rows'?"),
        ("level", "'level' has no value"),
        ("stack_depth=many", "stack_depth is a number, not 'many'"),
        ("stack_depth=0", "stack_depth is a number, 1 to 1000, not 0"),
        ("error_exitcode=256", "0 to 255"),
        ("idle_seconds=0", "more than 0"),
        ("idle_seconds=nan", "more than 0"),
        ("keep_exitcode=maybe", "keep_exitcode is 1 or 0"),
    ],
)
def test_mistakes_say_what_would_fit(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as raised:
        Options.from_environment({"KVSAN_OPTIONS": text}, tmp_path)
    assert "KVSAN_OPTIONS" in str(raised.value)
    assert message in str(raised.value)
    assert raised.value.exit_status == 2


@pytest.mark.parametrize("table", ["stack_dept = 3", "level = ['rows']", "report = [3.5, {}]", "level = 3", "[[["])
def test_mistakes_in_pyproject_name_the_file(table: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.kvsan]\n{table}\n")
    with pytest.raises(OptionError, match=r"pyproject\.toml"):
        Options.from_environment({}, tmp_path)


def test_each_process_records_to_a_trace_of_its_own() -> None:
    assert Options().record_path(7) is None
    assert Options(record="/t/run.kvt").record_path(7) == "/t/run.7.kvt"
    assert Options(record="/t/%p.kvt").record_path(7) == "/t/7.kvt"
