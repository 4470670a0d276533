"""A tap on one tensor: which ids it is indexed by, as the code that reads it really does."""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode


class Tap(TorchFunctionMode):
    """Notes the ids by which one tensor is indexed while it is entered."""

    def __init__(self, tensor: Any) -> None:
        super().__init__()
        self._tensor = tensor
        self.ids: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every torch call passes here; only indexing is looked at."""
        name = getattr(func, "__name__", "")
        if name in ("__getitem__", "index_select") and args and args[0] is self._tensor:
            ids = args[-1] if name == "__getitem__" else (kwargs or {}).get("index", args[-1])
            if hasattr(ids, "detach"):
                self.ids.append(ids)
        return func(*args, **(kwargs or {}))
