from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from kvsan.findings import Access, Failure, Finding, Frame, Held, Joined, PoolTotals, Report, SlotMap
from kvsan.reporters import json_report
from kvsan.reporters.escape import quoted, shell_word, visible

from . import samples
from .conftest import render

HOSTILE = {
    "ansi": "\x1b[2J\x1b[31mboo\x1b[0m",
    "osc": "\x1b]8;;http://x\x07link\x1b]8;;\x07",
    "c1": "\x9b31mboo",
    "newline": "a\nSUMMARY: kvsan: nothing to see here",
    "return": "abc\rxyz",
    "bidi": "abc\u202egnp.exe\u2066\u2069",
    "hidden": "a\u200bb\ufeffc\u00add\u3164e\U000e0041",
    "separator": "a\u2028b\u2029c\u00a0d\u3000e",
    "surrogate": "\ud800x\udc80",
    "markup": "[bold red]x[/] [link=http://x]y[/link] :boom:",
    "zalgo": "e" + "\u0301" * 50,
    "nul": "a\0b\x7fc\x08\x08",
    "quote": 'a" freed by "b',
    "empty": "",
}


def hostile(name: str) -> Report:
    access = Access(
        "free", 3, agent=name, owner=name, pool=name, slots=(1,), batch=name, node=name, site=name, note=name,
        stack=(Frame(name, 1, name), Frame("x.py", 2, name)),
    )  # fmt: skip
    other = replace(access, stack=(), what=name, agent=f"host:{name}", owner=f"session:{name}")
    finding = Finding(
        "double_free", 3, f"{name}:1", name, (1,), name, f"tree:{name}", name, "error", access, other,
        (access, other), 2, (Held(name, (1,), 1, 9, access, name),), SlotMap(name, 0, "!.." + name[:3]),
        name, name, name, name, 2, (Joined(name, 4, name, (2,), name),), 1, name, 0, name[:500], {name: name},
    )  # fmt: skip
    objects = [f"node:{name}", f"owner:{name}", name]
    totals = (PoolTotals(name, name, 9, 1, 0, 8, 0, 0, 0, 0, 1, 5, {name: 1}),)
    findings = (finding, *(replace(finding, object=place, held=(), kind=name or "leak") for place in objects))
    return Report(findings, totals, (Failure(name, name, name, 1),), (name,))


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("width", [80, 120])
def test_a_hostile_name_shows_and_does_nothing(name: str, width: int) -> None:
    text = render(hostile(name), width)
    assert all(line.isprintable() for line in text.splitlines()), "something controls the terminal"
    assert text.splitlines() == text.split("\n")[:-1]
    assert not set("\u202e\u2066\u200b\ufeff\u3164\u00a0\x9b\x1b") & set(text)
    assert text.count("\nSUMMARY: ") == 4
    shown = render(hostile(name), width, tty=True, colour=True)
    assert not set("\x07\x9b\r\x08\0") & set(shown)
    assert "\x1b]" not in shown and "\x1b[2J" not in shown and "\x1b[3" + "1mboo" not in shown


def test_markup_is_text() -> None:
    text = render(hostile(HOSTILE["markup"]), 120)
    assert "[bold red]x[/]" in text
    assert ":boom:" in text


def test_the_end_of_a_name_cannot_be_forged() -> None:
    assert quoted('a" freed by "b') == '"a\\" freed by \\"b"'
    assert quoted("a\\n") == '"a\\\\n"'
    assert quoted("a\n") == '"a\\n"'


def test_long_names_are_shortened_with_their_length() -> None:
    name = "start" + "x" * 5000 + "finish"
    assert quoted(name) == '"start' + "x" * 26 + "…" + "x" * 9 + 'finish" (5\u00a0011 characters)'
    assert visible("\x1b" * 100, 20) == "\\x1b\\x1b\\x1b…\\x1b (100 characters)"
    text = render(hostile("n" * 100_000), 80)
    assert len(text) < 150_000
    assert "(100 000 characters)" in text


def test_ordinary_names_stay_as_they_are() -> None:
    for name in ("cmpl-3f2a9", "Grüße", "请求-7", "запрос", "a b", "lora[2]", "café", "🙂"):
        assert visible(name) == name
        assert quoted(name) == f'"{name}"'


@pytest.mark.parametrize(
    "path", ["spool/1.kvt", "a b.kvt", "it's.kvt", "a\nb.kvt", "x;rm -rf $HOME", "\x1b[31m'\\", "é", ""]
)
def test_a_replay_command_can_be_pasted(path: str) -> None:
    word = shell_word(path)
    assert visible(word, None) == word
    told = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True).stdout
    assert told.decode() == path


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_json_is_plain_ascii_and_loses_nothing(name: str) -> None:
    text = json_report.render(hostile(name))
    assert text.isascii()
    assert all(line.isprintable() for line in text.splitlines())
    assert json.loads(text)["findings"][0]["owner"] == name


def test_a_race_between_hostile_requests_still_reads_well() -> None:
    finding = replace(samples.RACE, owner=HOSTILE["ansi"], present=replace(samples.RACE.present, owner=HOSTILE["ansi"]))  # type: ignore[type-var]
    text = render(Report(findings=(finding,)), 120)
    assert 'WRITE  cells [0, 128) by request "\\x1b[2J\\x1b[31mboo\\x1b[0m"' in text
