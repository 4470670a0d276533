"""The stack depot: every distinct stack once, rendered only when a report asks for it.

A stack is kept as code objects and bytecode offsets; line numbers are worked out on demand. The lookup key holds the
ids of the code objects, which stay unique because the depot keeps every code object of a stored stack alive.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType

from .encoding import STACK_MASK
from .findings import Frame


class StackDepot:
    """Interns stacks; id 0 is "no stack". `depth` is the number of frames kept, from the innermost on that is not of a
    file that is `own`."""

    def __init__(self, depth: int = 12, own: Callable[[str], bool] | None = None) -> None:
        self.depth = depth
        self._is_own = own or (lambda file: False)
        self._own: dict[int, CodeType] = {}
        """By its id, code of own files that was met: a number is looked up faster than a file's name is judged."""
        self._ids: dict[tuple[int, ...], int] = {(): 0}
        self._stacks: list[tuple[tuple[CodeType, int], ...]] = [()]

    def capture(self, skip: int = 1) -> int:
        """The id of the caller's stack, leaving out the `skip` innermost frames."""
        key: list[int] = []
        depth = self.depth
        if depth <= 0:
            return 0
        try:
            frame: FrameType | None = sys._getframe(skip + 1)
        except ValueError:
            return 0
        own = self._own
        while frame is not None and id(frame.f_code) in own:
            frame = frame.f_back
        start = frame
        while frame is not None and depth:
            key.append(id(frame.f_code))
            key.append(frame.f_lasti)
            frame = frame.f_back
            depth -= 1
        known = self._ids.get(tuple(key))
        return known if known is not None else self._store(start)

    def _store(self, frame: FrameType | None) -> int:
        """The id of a stack that is new, or looks so because of own code that was not met before."""
        while frame is not None and self._is_own(frame.f_code.co_filename):
            self._own[id(frame.f_code)] = frame.f_code
            frame = frame.f_back
        stack: list[tuple[CodeType, int]] = []
        while frame is not None and len(stack) < self.depth:
            stack.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        key = tuple(part for code, offset in stack for part in (id(code), offset))
        known = self._ids.get(key)
        if known is not None:
            return known
        number = len(self._stacks)
        if number > STACK_MASK:  # a million distinct stacks: later ones are not told apart
            return 0
        self._stacks.append(tuple(stack))
        self._ids[key] = number
        return number

    def frames(self, number: int) -> tuple[Frame, ...]:
        """The frames of a stack, innermost first."""
        if not 0 <= number < len(self._stacks):
            return ()
        return tuple(
            Frame(code.co_filename, _line(code, offset), _qualified_name(code)) for code, offset in self._stacks[number]
        )


def frames_from(innermost: FrameType, most: int) -> list[Frame]:
    """A running thread's frames, innermost first, at most so many."""
    found: list[Frame] = []
    frame: FrameType | None = innermost
    while frame is not None and len(found) < most:
        code = frame.f_code
        found.append(Frame(code.co_filename, frame.f_lineno or code.co_firstlineno, _qualified_name(code)))
        frame = frame.f_back
    return found


def _line(code: CodeType, offset: int) -> int:
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= offset < end:
            return number if number is not None else line
    return line


def _qualified_name(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)
