"""What the engine calls to tell kvsan what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from kvsan.hooks import NullSanitizer

if TYPE_CHECKING:
    from kvsan.hooks.sanitizer import Sanitizer

Probe = Union["Sanitizer", NullSanitizer]
