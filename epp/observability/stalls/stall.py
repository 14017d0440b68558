# SPDX-License-Identifier: Apache-2.0
"""One stall of the event loop, and the name of what held it up."""

from collections.abc import Collection, Sequence
from types import CodeType, FrameType
from typing import NamedTuple

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


class Call(NamedTuple):
    """One call of a stack: what takes little time to note, and has its words later."""

    code: CodeType
    line: int
    module: str

    @property
    def name(self) -> str:
        """`module:function`."""
        return f"{self.module}:{self.code.co_qualname}"


def calls_of(frame: FrameType | None) -> tuple[Call, ...]:
    """Return the innermost calls, innermost first."""
    calls: list[Call] = []
    while frame is not None and len(calls) < _MOST_CALLS:
        calls.append(Call(frame.f_code, frame.f_lineno, str(frame.f_globals.get("__name__", "?"))))
        frame = frame.f_back
    return tuple(calls)


def place_of(calls: Sequence[Call], packages: Collection[str]) -> str:
    """Return `module:function` of the innermost call into these packages; that of the innermost call where none is."""
    ours = (call for call in calls if call.module.partition(".")[0] in packages)
    return next(ours, calls[0]).name


def stack_of(calls: Sequence[Call]) -> tuple[str, ...]:
    """Return the innermost calls as `module:function:line`."""
    return tuple(f"{call.name}:{call.line}" for call in calls[:_STACK_LINES])
