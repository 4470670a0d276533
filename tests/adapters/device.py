"""A device for tests that is none: its tensors say that they are not on the CPU, and hold their numbers there.

It refuses what CUDA refuses, tensors of two devices in one operation. And kvsan may not wait for it: what makes the
host wait raises where kvsan's own code asks for it, and does as usual where an engine or a test does. Everything runs
at once, in the order of the calls, as on one stream. Only what is copied into pinned memory comes late, which holds -1
until then.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any
from unittest import mock

import torch
from kvsan.hooks.sanitizer import is_own
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from .cuda_rules import MOVING, refuse_two_devices, waiting

NAME = "privateuseone"
"""What torch calls a device whose operations are written in Python."""
HERE = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
"""Does this torch know such devices?"""

PASSES_ON = {("probes.py", "call"), ("tap.py", "__torch_function__")}
"""Where kvsan's code calls the engine's, as the engine called it."""


class Waits(BaseException):
    """kvsan made the host wait for the device. Not an Exception, which kvsan would keep from the test."""


class OnDevice(torch.Tensor):
    """A tensor on the device; `held` has its numbers."""

    held: torch.Tensor
    is_cuda = True  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnDevice:
        made: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Where no mode is entered, as in another thread."""
        return entered().run(func, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def record_stream(self, stream: Any) -> None:
        """Its memory is never used again."""

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first.")
        return self.cpu().numpy()

    def __repr__(self, **named: Any) -> str:  # type: ignore[override]
        return f"{self.tolist()} on the device"


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor holds, for a test's own eyes."""
    return tensor.held if isinstance(tensor, OnDevice) else tensor


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a kernel, which works on the memory of tensors that must all be on the device, or none."""

    def launch(*args: Any, **named: Any) -> Any:
        places = {type(each) is OnDevice for each in tensors_in((args, named))}
        assert len(places) == 1, "a kernel cannot reach the host's memory"
        if places == {False}:
            return function(*args, **named)
        return mapped(OnDevice, function(*mapped(on_host, args), **mapped(on_host, named)))

    return launch


class Event:
    """An event of the device: it has passed when the copies queued before it have arrived."""

    def __init__(self, device: Any = None, *, enable_timing: bool = False, **named: Any) -> None:
        self._mark = 0

    def record(self, stream: Any = None) -> None:
        self._mark = entered().queued

    def query(self) -> bool:
        return entered().arrived >= self._mark

    def synchronize(self) -> None:
        entered().wait("an event's synchronize")
        entered().arrive(self._mark)


class Device(TorchDispatchMode):
    """The device, while it is entered. Copies arrive when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.capturing = False
        """Is a device graph captured?"""
        self.queued = 0
        """How many copies to the host there were."""
        self._under_way: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
        self._event = mock.patch.object(torch, "Event", Event)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else it is imported, which takes seconds

    def __enter__(self) -> Device:
        global _entered
        assert _entered is None
        _known_to_torch()
        self._event.start()
        _entered = self
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: Any) -> None:
        global _entered
        super().__exit__(*error)
        _entered = None
        self._event.stop()

    def arrive(self, upto: int | None = None) -> None:
        """Copies arrive, of all that were queued the first `upto`."""
        upto = self.queued if upto is None else upto
        while self.arrived < upto:
            host, numbers = self._under_way.popleft()
            host.copy_(numbers)

    @property
    def arrived(self) -> int:
        """How many of them have arrived."""
        return self.queued - len(self._under_way)

    def wait(self, what: str) -> None:
        """The host waits for the device here."""
        if (place := asked_by_kvsan()) is not None:
            raise Waits(f"{what} waits for the device: {place}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation passes here."""
        kwargs = kwargs or {}
        if OnDevice in types or _device(kwargs) == NAME:
            return self.run(func, args, kwargs)
        if not kwargs.get("pin_memory"):
            return func(*args, **kwargs)
        made = func(*args, **{**kwargs, "pin_memory": False})
        made.is_pinned_for_the_device = True
        return made

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation that has to do with the device."""
        to, op = _device(kwargs), func.overloadpacket
        tensors = tensors_in((args, kwargs))
        plain = {name: value for name, value in mapped(on_host, kwargs).items() if name != "pin_memory"}
        if to is not None:
            plain["device"] = "cpu"
        if op in MOVING:
            target, source = (tensors[0], tensors[1]) if len(tensors) > 1 else (None, tensors[0])
            non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
            if to not in (None, NAME) or (target is not None and type(target) is not OnDevice):
                return self._to_host(func, mapped(on_host, args), plain, target, non_blocking)
            if type(source) is not OnDevice and not (non_blocking and is_pinned(source)):
                self.wait("a copy from the host")
        else:
            refuse_two_devices(func, args, tensors)
            if (what := waiting(func, args, kwargs)) is not None:
                self.wait(what)
        result = func(*mapped(on_host, args), **plain)
        if to not in (None, NAME):
            return result
        known = {id(each.held): each for each in tensors if type(each) is OnDevice}
        assert all(each.shape == each.held.shape for each in known.values()), f"{func} changes a shape in place"
        return mapped(lambda each: known[id(each)] if id(each) in known else OnDevice(each), result)

    def _to_host(self, func: Any, args: Any, kwargs: Any, target: Any, non_blocking: bool) -> torch.Tensor:
        """Pinned memory gets its numbers later; where `to` does not block, it makes some."""
        late = non_blocking and (target is None or is_pinned(target))
        if not late:
            self.wait("a copy to the host")
        host: torch.Tensor = func(*args, **kwargs)
        if late:
            self._under_way.append((host, host.clone()))
            self.queued += 1
            host.fill_(-1)
        return host


def _device(kwargs: Any) -> str | None:
    """The kind of device that an operation's arguments name."""
    return None if kwargs.get("device") is None else torch.device(kwargs["device"]).type


def tensors_in(value: Any) -> list[Any]:
    """All tensors in arguments or results."""
    found: list[Any] = []
    mapped(found.append, value)
    return found


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Arguments or results, with all tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(change, each) for each in value])
    if isinstance(value, dict):
        return {name: mapped(change, each) for name, each in value.items()}
    return value


def is_pinned(tensor: torch.Tensor) -> bool:
    """Was the tensor itself (not what it is a view of) made as pinned memory?"""
    return hasattr(tensor, "is_pinned_for_the_device")


def asked_by_kvsan() -> str | None:
    """Where in kvsan's code the present operation is asked for; None if it is not kvsan that asks."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if f"{os.sep}_pytest{os.sep}" in file or (is_own(file) and (os.path.basename(file), name) in PASSES_ON):
            return None
        if is_own(file):
            return f"{file}:{frame.f_lineno} {name}"
        frame = frame.f_back
    return None


_entered: Device | None = None


def entered() -> Device:
    """The device that a test has entered."""
    assert _entered is not None, "no device is entered"
    return _entered


def _known_to_torch() -> None:
    """Torch learns of the device, once in a process; its tensors from data are made on the CPU and then moved."""
    if not hasattr(torch, NAME):
        module = backend_registration._DummyBackendModule()
        module.is_current_stream_capturing = lambda: entered().capturing  # all that copies ask for
        backend_registration._setup_privateuseone_for_python_backend(backend_module=module)
        torch._C._set_only_lift_cpu_tensors(True)
