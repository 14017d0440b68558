# SPDX-License-Identifier: Apache-2.0
"""One stall of the event loop, and the name of what held it up."""

from collections.abc import Collection, Iterator
from types import FrameType
from typing import NamedTuple

GARBAGE = "garbage collection"
NO_CPU = "waiting for a CPU"
UNKNOWN = "unknown"
_STACK_LINES = 8


class Stall(NamedTuple):
    """A time in which the event loop did not turn."""

    where: str
    """`module:function` of the picker or of a plugin, or one of the constants above."""
    seconds: float
    stack: tuple[str, ...] = ()
    """The innermost calls at one moment of it, innermost first: `module:function:line`."""


def place_of(frame: FrameType, packages: Collection[str]) -> str:
    """Return `module:function` of the innermost call into these packages; that of the innermost call where none is."""
    for each in _outwards(frame):
        if _module(each).partition(".")[0] in packages:
            return _name(each)
    return _name(frame)


def stack_of(frame: FrameType) -> tuple[str, ...]:
    """Return the innermost calls."""
    lines = (f"{_name(each)}:{each.f_lineno}" for each in _outwards(frame))
    return tuple(line for line, _ in zip(lines, range(_STACK_LINES), strict=False))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _name(frame: FrameType) -> str:
    return f"{_module(frame)}:{frame.f_code.co_qualname}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?"))
