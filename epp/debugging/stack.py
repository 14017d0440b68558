# SPDX-License-Identifier: Apache-2.0
"""Stacks of calls, as profiles count them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType
from typing import NamedTuple, Self, TypeAlias

MOST_CALLS = 128
"""Calls of one stack, the innermost ones."""


class Place(NamedTuple):
    """A line of a function."""

    function: str
    """With its module."""
    file: str
    line: int
    first_line: int = 0
    """Of the function."""

    @classmethod
    def of(cls, frame: FrameType) -> Self:
        """Return where a frame is."""
        code = frame.f_code
        module = frame.f_globals.get("__name__", "")
        return cls(f"{module}.{code.co_qualname}", code.co_filename, frame.f_lineno or 0, code.co_firstlineno)

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


Stack: TypeAlias = tuple[Place, ...]
"""Calls, the innermost first."""


class Kind(NamedTuple):
    """A number that is counted, and its unit."""

    name: str
    unit: str


@dataclass(slots=True)
class Profile:
    """Counts by stack and label."""

    kinds: tuple[Kind, ...]
    """Of each number of a sample; the last one is shown first."""
    period: Kind
    period_value: int
    label: str = ""
    """The key of the labels; empty for none."""
    began: int = 0
    """Nanoseconds since the epoch."""
    nanoseconds: int = 0
    samples: dict[tuple[Stack, str], list[int]] = field(default_factory=dict)
    """Numbers by stack and label."""

    def add(self, stack: Stack, label: str, *numbers: int) -> None:
        """Add to the numbers of a stack."""
        found = self.samples.get((stack, label))
        if found is None:
            self.samples[stack, label] = list(numbers)
        else:
            for index, number in enumerate(numbers):
                found[index] += number

    def as_text(self) -> str:
        """Return a line for each stack, outermost call first, as flame graphs are made of: `a;b;c 7`."""
        lines: Mapping[str, int] = {}
        totals = dict(lines)
        for (stack, label), numbers in self.samples.items():
            names = [*([label] if label else []), *(place.function for place in reversed(stack))]
            line = ";".join(names)
            totals[line] = totals.get(line, 0) + numbers[-1]
        ordered = sorted(totals.items(), key=lambda each: (-each[1], each[0]))
        return "".join(f"{line} {number}\n" for line, number in ordered)


def stack_of(frame: FrameType | None) -> Stack:
    """Return the calls of a frame and those around it."""
    return tuple(Place.of(each) for each in islice(_outwards(frame), MOST_CALLS))


def _outwards(frame: FrameType | None) -> Iterable[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
