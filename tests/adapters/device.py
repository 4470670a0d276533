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
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any
from unittest import mock

import torch
from kvsan.hooks.sanitizer import is_own
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

NAME = "privateuseone"
"""What torch calls a device whose operations are written in Python."""
HERE = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
"""Does this torch know such devices?"""

aten = torch.ops.aten
MOVING = {aten.copy_, aten._to_copy}
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
WAITING = {
    aten._local_scalar_dense, aten.equal, aten.allclose, aten.nonzero, aten.masked_select, aten._unique,
    aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.bincount,
}  # fmt: skip
"""What the host must know numbers or sizes of: also how `int`, `bool`, `tolist` and their like are asked."""
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
        places = {isinstance(each, OnDevice) for each in tree_leaves((args, named)) if isinstance(each, torch.Tensor)}
        assert len(places) == 1, "a kernel cannot reach the host's memory"
        if places == {False}:
            return function(*args, **named)
        args, named = tree_map_only(OnDevice, on_host, (args, named))
        return tree_map_only(torch.Tensor, OnDevice, function(*args, **named))

    return launch


class Event:
    """An event of the device: it has passed when the copies queued before it have arrived."""

    def __init__(self, device: Any = None, *, enable_timing: bool = False, **named: Any) -> None:
        self._mark = 0

    def record(self, stream: Any = None) -> None:
        self._mark = entered().queued

    def query(self) -> bool:
        return entered().asked_for(self._mark)

    def synchronize(self) -> None:
        entered().wait("an event's synchronize")
        entered().arrive(self._mark)


class Device(TorchDispatchMode):
    """The device, while it is entered. Copies arrive when a test says so, or when events before which they were queued
    have been asked `patience` times for nothing."""

    def __init__(self, patience: int | None = None) -> None:
        super().__init__()
        self.capturing = False
        self.queued = 0
        """How many copies to the host there were."""
        self._patience, self._asked = patience, 0
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

    # -- late copies

    def arrive(self, upto: int | None = None) -> None:
        """Copies arrive, of all that were queued the first `upto`."""
        upto = self.queued if upto is None else upto
        while self._under_way and self.queued - len(self._under_way) < upto:
            host, numbers = self._under_way.popleft()
            host.copy_(numbers)

    def asked_for(self, mark: int) -> bool:
        """Have so many copies arrived?"""
        if self.queued - len(self._under_way) < mark:
            self._asked += 1
            if self._patience is None or self._asked <= self._patience:
                return False
            self._asked = 0
            self.arrive(mark)
        return True

    def _send(self, host: torch.Tensor, numbers: torch.Tensor) -> None:
        self._under_way.append((host, numbers.expand(host.shape).clone()))
        self.queued += 1
        host.fill_(-1)

    def wait(self, what: str) -> None:
        """The host waits for the device here."""
        if (place := asked_by_kvsan()) is not None:
            raise Waits(f"{what} waits for the device: {place}")

    # -- operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation passes here."""
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One operation."""
        op = func.overloadpacket
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        there = [each for each in tensors if isinstance(each, OnDevice)]
        names = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
        if not there and names != NAME:
            return _on_host(func, args, kwargs)
        plain_args, plain = tree_map_only(OnDevice, on_host, (args, dict(kwargs)))
        plain.pop("pin_memory", None)
        if names is not None:
            plain["device"] = "cpu"
        if op in MOVING:
            source, non_blocking = tensors[-1], kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
            target = tensors[0] if op is aten.copy_ else None
            stays = names in (None, NAME) if target is None else isinstance(target, OnDevice)
            if not stays:
                return self._to_host(func, plain_args, plain, target, source, non_blocking)
            if not isinstance(source, OnDevice) and not (non_blocking and is_pinned(source)):
                self.wait("a copy from the host")
        else:
            _refuse_two_devices(op, args, tensors)
            self._wait_for(func, args, kwargs)
        result = func(*plain_args, **plain)
        if names not in (None, NAME):
            return result
        known = {id(each.held): each for each in there}
        assert all(each.shape == each.held.shape for each in there), f"{func} changes a shape in place"
        return tree_map_only(
            torch.Tensor, lambda each: known[id(each)] if id(each) in known else OnDevice(each), result
        )

    def _to_host(self, func: Any, args: Any, kwargs: Any, target: Any, source: Any, non_blocking: bool) -> torch.Tensor:
        """Pinned memory is filled later; `to` makes some where it does not block."""
        if not non_blocking or not (target is None or is_pinned(target)):
            self.wait("a copy to the host")
            return func(*args, **kwargs)  # type: ignore[no-any-return]
        host = func(*args, **kwargs) if target is None else target
        self._send(host, host if target is None else source.held)
        return host  # type: ignore[no-any-return]

    def _wait_for(self, func: Any, args: Any, kwargs: Any) -> None:
        op = func.overloadpacket
        if op in WAITING or (op is aten.repeat_interleave and _lacks_size(func, args, kwargs)):
            self.wait(str(func))
        if op in INDEXED:
            indices = [each for each in args[1] if each is not None]
            masks = [each for each in indices if each.dtype in (torch.bool, torch.uint8)]
            fills = len(args) > 2 and len(indices) == 1 and args[2].numel() == 1  # a mask, with one number
            if not all(isinstance(each, OnDevice) for each in indices):
                self.wait(f"{func} with indices that are on the host")
            if masks and not fills:
                self.wait(f"{func} with a mask")


def _on_host(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation of the CPU's; memory is pinned only in name."""
    pinned = bool(kwargs.get("pin_memory"))
    made = func(*args, **{**kwargs, "pin_memory": False} if pinned else kwargs)
    if pinned:
        made.is_pinned_for_the_device = True
    return made


def is_pinned(tensor: torch.Tensor) -> bool:
    """Was the tensor itself (not what it is a view of) made as pinned memory?"""
    return hasattr(tensor, "is_pinned_for_the_device")


def _lacks_size(func: Any, args: Any, kwargs: Any) -> bool:
    return func is aten.repeat_interleave.Tensor and len(args) < 2 and kwargs.get("output_size") is None


def _refuse_two_devices(op: Any, args: Any, tensors: Iterable[torch.Tensor]) -> None:
    """What has no dimension may be on the CPU; so may indices."""
    if op in INDEXED:
        own, _, *values = args[:3]
        if not isinstance(own, OnDevice):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        tensors = [own, *values]
    if any(each.dim() and not isinstance(each, OnDevice) for each in tensors):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu! ({op})"
        )


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


# -- torch's side

_entered: Device | None = None


def entered() -> Device:
    """The device that a test has entered."""
    assert _entered is not None, "no device is entered"
    return _entered


class _Module(backend_registration._DummyBackendModule if HERE else object):  # type: ignore[misc]
    """As much of `torch.cuda` as copies ask for."""

    def is_current_stream_capturing(self) -> bool:
        """Is a device graph captured?"""
        return entered().capturing


def _known_to_torch() -> None:
    """Torch learns of the device, once in a process; its tensors from data are made on the CPU and then moved."""
    if not hasattr(torch, NAME):
        backend_registration._setup_privateuseone_for_python_backend(backend_module=_Module())
        torch._C._set_only_lift_cpu_tensors(True)
