from __future__ import annotations

import argparse
import re

import pytest

from kvsan.commands.explain import Explain
from kvsan.errors import OptionError
from kvsan.explain import find, hint_text, references, why_text
from kvsan.explanations import EXPLANATIONS
from kvsan.findings import KINDS
from kvsan.reporters.phrases import PHRASES

from .conftest import flat


def run(*words: str) -> int:
    command = Explain()
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args(words))


def test_every_kind_has_its_words() -> None:
    assert tuple(EXPLANATIONS) == KINDS
    assert tuple(PHRASES) == KINDS
    for kind in KINDS:
        said = EXPLANATIONS[kind]
        for text in (said.rule, said.why, said.seen, said.fix, said.look):
            assert text.endswith((".", "?")) and "  " not in text
        assert said.references and all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", ref) for ref in said.references)
        assert why_text(kind) == said.why and hint_text(kind) == said.fix
        assert references(kind) == list(said.references)


@pytest.mark.parametrize("kind", KINDS)
def test_explain_prints_it_all(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(kind) == 0
    text = capsys.readouterr().out
    said = EXPLANATIONS[kind]
    for words in (kind, said.title, said.rule, said.why, said.seen, said.look, *said.references):
        assert words in flat(text)
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "\x1b" not in text


@pytest.mark.parametrize("spelling", ["use_after_free", "use-after-free", "USE AFTER FREE", "use_after_free:a.b:c.d"])
def test_spellings(spelling: str) -> None:
    assert find(spelling)[0] == "use_after_free"


def test_an_unknown_kind_is_an_error_that_suggests_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"no kind of finding is called 'double-fre'; did you mean double_free\?"):
        run("double-fre")
    with pytest.raises(OptionError, match="known are reserved_slot, double_alloc"):
        run("xyzzy")
    with pytest.raises(OptionError) as caught:
        run("\x1b[31m\u202e")
    assert str(caught.value).isprintable()


def test_without_a_kind_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    text = capsys.readouterr().out
    assert all(f" {kind} " in text for kind in KINDS)


def test_a_plugins_kind_has_plain_words() -> None:
    assert why_text("mine") and hint_text("mine") and references("mine") == []
