# SPDX-License-Identifier: Apache-2.0
"""One stall of the event loop, and the name of what held it up."""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from types import CodeType, FrameType
from typing import NamedTuple, TypeAlias

GARBAGE = "garbage collection"
NO_CPU = "waiting for a CPU"
UNKNOWN = "unknown"
_STACK_LINES = 8
_MOST_CALLS = 64


class Stall(NamedTuple):
    """A time in which the event loop did not turn."""

    where: str
    """`module:function` of the picker or of a plugin, or one of the constants above."""
    seconds: float
    stack: tuple[str, ...] = ()
    """The innermost calls at one moment of it, innermost first: `module:function:line`."""


Mark: TypeAlias = tuple[CodeType, int, Mapping[str, object]]
"""One call of a stack, as the plain tuple that takes the least time to note; a `Call` has its words."""


class Call(NamedTuple):
    """One call of a stack."""

    code: CodeType
    instruction: int
    names: Mapping[str, object]
    """The globals of its module."""

    @property
    def module(self) -> str:
        """Name of the module."""
        return str(self.names.get("__name__", "?"))

    @property
    def line(self) -> int:
        """Number of the line; 0 for unknown."""
        position = next(islice(self.code.co_positions(), self.instruction // 2, None), (None,))
        return position[0] or 0

    @property
    def name(self) -> str:
        """`module:function`."""
        return f"{self.module}:{self.code.co_qualname}"


def marks_of(frame: FrameType | None) -> list[Mark]:
    """Return the innermost calls, innermost first; it is asked for many times a second."""
    marks: list[Mark] = []
    while frame is not None and len(marks) < _MOST_CALLS:
        marks.append((frame.f_code, frame.f_lasti, frame.f_globals))
        frame = frame.f_back
    return marks


def place_of(marks: Sequence[Mark], packages: Collection[str]) -> str:
    """Return `module:function` of the innermost call into these packages; that of the innermost call where none is."""
    calls = [Call(*mark) for mark in marks]
    ours = (call for call in calls if call.module.partition(".")[0] in packages)
    return next(ours, calls[0]).name


def stack_of(marks: Sequence[Mark]) -> tuple[str, ...]:
    """Return the innermost calls as `module:function:line`."""
    calls = (Call(*mark) for mark in marks[:_STACK_LINES])
    return tuple(f"{call.name}:{call.line}" for call in calls)
