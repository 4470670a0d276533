"""`pytest --kvsan`: every test runs in a tracking scope of its own, and a finding fails the test that caused it.

Without `--kvsan` this module adds its options, its marker and its fixture, and imports nothing of kvsan.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kvsan import Sanitizer
    from kvsan.options import Options

LEVELS = ("rows", "slots", "full")
MARKER = (
    'kvsan(expect=KIND, off=False): under --kvsan, `expect="leak"` (or several kinds) lets these findings come and '
    "fails the test when one does not; `off=True` runs the test untracked"
)
SANITIZER = pytest.StashKey["Sanitizer"]()
"""Where a tracked test keeps its sanitizer."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvsan", "sanitizer for KV caches")
    group.addoption(
        "--kvsan", action="store_true", help="track every test in a scope of its own; a finding fails the test"
    )
    group.addoption(
        "--kvsan-level", choices=LEVELS, default=None, help="what is watched (default: [tool.kvsan] level, else slots)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    if config.getoption("--kvsan"):
        from kvsan.pytest_scopes import Scopes

        config.pluginmanager.register(Scopes(_options(config)), "kvsan-scopes")


@pytest.fixture(name="kvsan")
def kvsan_fixture(request: pytest.FixtureRequest) -> Sanitizer:
    """The sanitizer that tracks this test. Skips the test without --kvsan."""
    if not request.config.getoption("--kvsan"):
        pytest.skip("needs pytest --kvsan")
    sanitizer: Sanitizer | None = request.node.stash.get(SANITIZER, None)
    if sanitizer is None:
        pytest.fail("the fixture kvsan cannot be had in a test marked kvsan(off=True)", pytrace=False)
    return sanitizer


def _options(config: pytest.Config) -> Options:
    """Options as everywhere (environment, [tool.kvsan]), the level from the command line, and a run that goes on."""
    from kvsan.errors import OptionError
    from kvsan.options import Options

    try:
        options = Options.from_environment(os.environ, config.rootpath)
    except OptionError as error:
        raise pytest.UsageError(str(error)) from error
    if options.on_error == "halt":  # That is for servers; here a finding ends its test.
        options = replace(options, on_error="log")
    level = config.getoption("--kvsan-level")
    return options if level is None else replace(options, level=level)
