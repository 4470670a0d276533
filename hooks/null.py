"""The sanitizer of a process without kvsan: every operation does nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING


def _nothing(*arguments: object, **named: object) -> None:
    """Does nothing."""


if TYPE_CHECKING:
    from .operations import Operations as _Base
else:

    class _Base:
        """Any operation is `_nothing`, without loading what operations need."""

        def __getattr__(self, name: str) -> object:
            if name.startswith("_"):
                raise AttributeError(name)
            return _nothing


class NullSanitizer(_Base):
    """Has every operation of `Sanitizer`, and does nothing."""

    enabled = False
    data = False


NULL = NullSanitizer()
