"""The stand-in for a device: each of its rules once where it refuses, and once where it does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from kvsan.hooks import sanitizer
from kvsan.hooks.adapters import probes
from kvsan.hooks.adapters.readback import Copy, Readback

from .device import HERE, NAME, Device, OnDevice, Waits, on_host

pytestmark = pytest.mark.skipif(not HERE, reason="this torch knows no devices in Python")


@pytest.fixture
def device() -> Iterator[Device]:
    """The device, entered."""
    with Device() as device:
        yield device


def there(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, device=NAME)


def here(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def in_kvsan(call: Callable[[], Any]) -> Any:
    """What the call gives if kvsan's code makes it."""
    code = compile(
        "def read(call):\n    return call()", os.path.join(os.path.dirname(sanitizer.__file__), "a.py"), "exec"
    )
    names: dict[str, Any] = {}
    exec(code, names)
    return names["read"](call)


MADE: dict[str, Callable[[], torch.Tensor]] = {
    "zeros": lambda: torch.zeros(3, device=NAME),
    "arange": lambda: torch.arange(3, device=NAME),
    "tensor": lambda: torch.tensor([1, 2, 3], device=NAME),
    "to": lambda: here(1, 2, 3).to(NAME),
    "like": lambda: torch.empty_like(there(1, 2, 3)),
    "new": lambda: there(1).new_zeros(3),
    "new from data": lambda: there(1).new_tensor([1, 2, 3]),
    "an operation": lambda: there(1, 2, 3) + 1,
    "a number of the host's": lambda: there(1, 2, 3) * torch.tensor(2),
    "a view": lambda: there(0, 1, 2, 3)[1:],
    "of nothing": lambda: torch.where(there(1, 2, 3) > 1, 1, 2),
}


@pytest.mark.parametrize("how", MADE)
def test_what_is_on_the_device(device: Device, how: str) -> None:
    made = MADE[how]()
    assert (type(made), made.device.type, made.is_cuda, made.shape) == (OnDevice, NAME, True, (3,))


def test_what_is_not(device: Device) -> None:
    for made in (
        torch.zeros(3),
        there(1).cpu(),
        torch.zeros(3, device="cpu"),
        torch.empty_like(there(1), device="cpu"),
    ):
        assert (type(made), made.device.type) == (torch.Tensor, "cpu")


def test_views_share_what_they_see(device: Device) -> None:
    whole = torch.zeros(6, dtype=torch.int64, device=NAME)
    part = whole.view(2, 3)[1]
    assert part.add_(2) is part
    whole[there(0)] = 7
    assert on_host(whole).tolist() == [7, 0, 0, 2, 2, 2]
    assert part.data_ptr() == on_host(part).data_ptr() != whole.data_ptr()


TWO: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "cat": (lambda: torch.cat((there(1), here(2))), lambda: torch.cat((there(1), there(2)))),
    "cat of nothing": (lambda: torch.cat((here(), there(1))), lambda: torch.cat((there(), there(1)))),
    "add": (lambda: there(1) + here(2), lambda: there(1) + torch.tensor(2)),
    "isin": (lambda: torch.isin(there(1), here(1)), lambda: torch.isin(there(1), there(1))),
    "where": (
        lambda: torch.where(there(1) > 0, here(2), 3),
        lambda: torch.where(there(1) > 0, torch.tensor(2), there(3)),
    ),
    "a number of the device's": (lambda: here(1) + there(2)[0], lambda: there(1) + there(2)[0]),
    "indices": (lambda: here(1, 2)[there(0)], lambda: there(1, 2)[here(0)]),
    "what is put": (
        lambda: there(1, 2).__setitem__(there(0, 1), here(3, 4)),
        lambda: there(1, 2).__setitem__(here(0, 1), there(3, 4)),
    ),
    "out": (lambda: torch.add(there(1), 1, out=here(0)), lambda: torch.add(there(1), 1, out=there(0))),
}


@pytest.mark.parametrize("what", TWO)
def test_two_devices_in_one_operation(device: Device, what: str) -> None:
    refused, allowed = TWO[what]
    with pytest.raises(RuntimeError, match="on the same device"):
        refused()
    allowed()


WAITS: dict[str, Callable[[], Any]] = {
    "item": lambda: there(1).item(),
    "int": lambda: int(there(1)),
    "bool": lambda: bool(there(1) == 1),
    "an index": lambda: [0, 1][there(1)],
    "tolist": lambda: there(1, 2).tolist(),
    "elements": lambda: [int(each) for each in there(1, 2)],
    "printing": lambda: f"{there(1, 2)}",
    "cpu": lambda: there(1).cpu(),
    "to": lambda: there(1).to("cpu"),
    "forced": lambda: there(1).numpy(force=True),
    "to memory that is not pinned": lambda: here(0).copy_(there(1), non_blocking=True),
    "to pinned memory, blocking": lambda: torch.empty(1, pin_memory=True).copy_(there(1)),
    "from the host": lambda: there(1).copy_(here(2)),
    "from a list": lambda: torch.tensor([1], device=NAME),
    "nonzero": lambda: there(1, 0).nonzero(),
    "a mask": lambda: there(1, 2)[there(1, 2) > 1],
    "a mask in a write": lambda: there(1, 2).__setitem__(there(1, 2) > 0, there(3, 4)),
    "indices of the host's": lambda: there(1, 2)[here(0)],
    "unique": lambda: torch.unique(there(1, 1)),
    "masked_select": lambda: torch.masked_select(there(1, 2), there(1, 2) > 1),
    "repeat_interleave": lambda: torch.repeat_interleave(there(1, 2), there(1, 2)),
    "equal": lambda: torch.equal(there(1), there(1)),
    "allclose": lambda: torch.allclose(there(1) * 1.0, there(1) * 1.0),
    "an event": lambda: torch.Event(NAME).synchronize(),
}


@pytest.mark.parametrize("what", WAITS)
def test_who_may_wait(device: Device, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine may, and a test; kvsan may not."""
    WAITS[what]()
    ready = {numbers: there(*numbers) for numbers in ((1,), (1, 0), (1, 1), (1, 2), (3, 4))}  # making them waits, too
    monkeypatch.setitem(globals(), "there", lambda *numbers: ready[numbers])
    with pytest.raises(Waits, match=r"a\.py:2 read"):
        in_kvsan(WAITS[what])


DOES_NOT: dict[str, Callable[[torch.Tensor], Any]] = {
    "sizes": lambda some: (len(some), some.numel(), some.shape, some.dtype, some.stride()),
    "operations": lambda some: torch.cat((some, some))[some.clamp(0, 1)] // 2,
    "a table": lambda some: torch.zeros(4, 4, dtype=torch.int64, device=some.device)[:, :2].index_select(0, some),
    "a mask and a number": lambda some: some.clone().__setitem__(some > 1, 0),
    "repeat_interleave": lambda some: torch.repeat_interleave(some, some, output_size=3),
    "pinned memory": lambda some: torch.empty(2, dtype=torch.int64, pin_memory=True).copy_(some, non_blocking=True),
    "to, not blocking": lambda some: some.to("cpu", non_blocking=True),
    "from pinned memory": lambda some: some.copy_(torch.empty(2, pin_memory=True), non_blocking=True),
    "events": lambda some: (event := torch.Event(NAME)).record() or event.query(),
}


@pytest.mark.parametrize("what", DOES_NOT)
def test_what_nobody_waits_for(device: Device, what: str) -> None:
    some = there(1, 2)
    in_kvsan(lambda: DOES_NOT[what](some))


@pytest.mark.parametrize("what", [np.asarray, lambda tensor: tensor.numpy()])
def test_numbers_that_numpy_cannot_see(device: Device, what: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu"):
        what(there(1))
    what(on_host(there(1)))


@pytest.mark.parametrize("asks", ["the engine", "the reader"])
def test_the_engines_own_calls_are_not_kvsans(device: Device, asks: str) -> None:
    """A probe lies between an engine's function and who calls it."""
    tensor = there(1)

    def reader(watch: Any) -> Any:
        if asks == "the reader":
            in_kvsan(tensor.item)
        yield

    watch = type("Watch", (), {"blind": False})()
    call = probes.wrap(probes.Probe("engine:call", "", reader, ""), tensor.item, watch)
    if asks == "the engine":
        assert in_kvsan(call) == 1
    else:
        with pytest.raises(Waits):
            call()


def test_copies_arrive_late(device: Device) -> None:
    numbers, host = there(3, 1), torch.empty(2, dtype=torch.int64, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    event = torch.Event(NAME, enable_timing=False)
    event.record()
    numbers.zero_()
    moved = numbers.to("cpu", non_blocking=True)
    assert (event.query(), host.tolist(), moved.tolist()) == (False, [-1, -1], [-1, -1])
    event.synchronize()
    assert (event.query(), host.tolist(), moved.tolist()) == (True, [3, 1], [-1, -1])
    device.arrive()
    assert moved.tolist() == [0, 0]


def test_readback(device: Device) -> None:
    """What kvsan copies is not waited for, and has what the tensor had then."""
    tensor = there(3, 1, 2, 7).reshape(2, 2)
    copy = in_kvsan(lambda: Readback(NAME).copy(tensor))
    tensor.zero_()
    assert isinstance(copy, Copy)
    assert not copy.ready()
    device.arrive()
    assert copy.ready()
    assert copy.value().tolist() == [3, 1, 2, 7]
    device.capturing = True
    with pytest.raises(RuntimeError, match="while a device graph is captured"):
        Readback(NAME).copy(tensor)


# -- the same of the device that is imitated, where there is one

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
UNNOTICED = {"an event", "to memory that is not pinned", "from a list"}
"""What torch's own alarm does not ring for, or what names the other device."""


@on_a_gpu
@pytest.mark.parametrize("what", TWO)
def test_cuda_refuses_the_same(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "there", lambda *numbers: torch.tensor(numbers, dtype=torch.int64, device="cuda"))
    refused, allowed = TWO[what]
    with pytest.raises(RuntimeError, match="device"):
        refused()
    allowed()


@on_a_gpu
@pytest.mark.parametrize("what", sorted(WAITS.keys() - UNNOTICED))
def test_cuda_makes_the_host_wait_for_the_same(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = {numbers: torch.tensor(numbers, device="cuda") for numbers in ((1,), (1, 0), (1, 1), (1, 2), (3, 4))}
    monkeypatch.setitem(globals(), "there", lambda *numbers: ready[numbers])
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            WAITS[what]()
    finally:
        torch.cuda.set_sync_debug_mode("default")
