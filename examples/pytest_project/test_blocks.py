"""Run `pytest --kvsan` here: plain pytest passes all of these, kvsan fails the second."""

from __future__ import annotations

import pytest
from blocks import Blocks


def test_a_finished_request_gives_its_blocks_back() -> None:
    blocks = Blocks(16)
    assert blocks.take("a", 3) == [1, 2, 3]
    blocks.finish("a")
    assert len(blocks.free) == 15


def test_an_aborted_request_is_forgotten() -> None:
    blocks = Blocks(16)
    blocks.take("b", 3)
    blocks.abort("b")
    assert "b" not in blocks.held  # True, and yet three blocks are gone for good.


@pytest.mark.kvsan(expect="leak")
def test_the_leak_is_known() -> None:
    blocks = Blocks(16)
    blocks.take("c", 2)
    blocks.abort("c")
