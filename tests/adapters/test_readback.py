"""Copies from a device, over a stand-in for one whose stream runs when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from kvsan.hooks.adapters.readback import Readback


class Stream:
    """A device's stream: what is queued on it runs at `run`."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], object]] = []
        self.capturing = False

    def run(self) -> None:
        queue, self.queue = self.queue, []
        for each in queue:
            each()


class OnDevice:
    """A tensor whose numbers only the stream may look at."""

    device = SimpleNamespace(type="cuda")

    def __init__(self, numbers: torch.Tensor) -> None:
        self.numbers, self.shape, self.dtype = numbers, numbers.shape, numbers.dtype

    def detach(self) -> OnDevice:
        return self

    def reshape(self, size: int) -> OnDevice:
        return OnDevice(self.numbers.reshape(size))

    def numpy(self) -> Any:
        raise AssertionError("read without the stream")


class Pinned:
    """Host memory that a device copies into."""

    def __init__(self, stream: Stream, shape: Any, dtype: Any) -> None:
        self._stream = stream
        self._memory = torch.full(shape, -1, dtype=dtype)

    def copy_(self, source: OnDevice, non_blocking: bool) -> None:
        assert non_blocking
        self._stream.queue.append(lambda: self._memory.copy_(source.numbers))

    def numpy(self) -> Any:
        return self._memory.numpy()


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """The only stream of the device "cuda"."""
    stream = Stream()

    class Event:
        def __init__(self, device: str, *, enable_timing: bool) -> None:
            assert (device, enable_timing) == ("cuda", False)
            self._passed = False

        def record(self) -> None:
            stream.queue.append(lambda: setattr(self, "_passed", True))

        def query(self) -> bool:
            return self._passed

    def empty(shape: Any, *, dtype: Any, device: str, pin_memory: bool) -> Pinned:
        assert pin_memory
        assert device == "cpu"  # else an engine's default device would be asked for pinned memory
        return Pinned(stream, shape, dtype)

    monkeypatch.setattr(
        torch, "get_device_module", lambda name: SimpleNamespace(is_current_stream_capturing=lambda: stream.capturing)
    )
    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch, "empty", empty)
    return stream


def test_a_copy_has_what_the_tensor_had_when_the_stream_came_by(stream: Stream) -> None:
    tensor = OnDevice(torch.tensor([[3, 1], [2, 7]], dtype=torch.int32))
    stream.queue.append(lambda: tensor.numbers.add_(10))  # the engine's kernel that computes the ids
    copy = Readback("cuda").copy(tensor)
    stream.queue.append(lambda: tensor.numbers.zero_())  # and one that uses the memory again
    assert not copy.ready()
    stream.run()
    assert copy.ready()
    numbers = copy.value()
    assert (numbers.dtype, numbers.tolist()) == (np.int64, [13, 11, 12, 17])


def test_numbers_do_not_change_with_the_memory_that_they_came_in(stream: Stream) -> None:
    copy = Readback("cuda").copy(OnDevice(torch.tensor([4, 5])))
    stream.run()
    numbers = copy.value()
    copy._host._memory.zero_()  # type: ignore[union-attr]
    assert numbers.tolist() == [4, 5]


def test_what_is_on_the_host_is_there(stream: Stream) -> None:
    tensor = torch.tensor([1, 2])
    there = Readback("cuda").copy(tensor)
    tensor.zero_()
    assert there.ready()
    assert there.value().tolist() == [1, 2]
    assert stream.queue == []


def test_a_graph_that_is_captured_is_left_alone(stream: Stream) -> None:
    stream.capturing = True
    with pytest.raises(RuntimeError, match="while a device graph is captured"):
        Readback("cuda").copy(OnDevice(torch.tensor([1])))
    assert stream.queue == []
