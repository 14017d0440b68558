# SPDX-License-Identifier: Apache-2.0
"""Inputs of a plugin or of a flag, such as files, and those of their versions that are not in effect."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class InputProblem:
    """A file, or an object of one, whose newest version is not in effect."""

    file: str
    object: str = ""
    """Kind and name of the object; empty for the file as a whole."""
    reason: str = ""
    """Field, value and remedy."""
    kept: int = 0
    """Objects that are in effect in an earlier version."""

    def __str__(self) -> str:
        """Return one sentence for the log."""
        what = f"{self.file}: {self.object}" if self.object else self.file
        if not self.kept:
            return f"{what} is skipped: {self.reason}"
        objects = f", with {self.kept} object{'s' if self.kept > 1 else ''}" if not self.object else ""
        return f"{what} stays as it was{objects}: {self.reason}"


@dataclass(frozen=True, slots=True)
class IgnoredValue:
    """A value that cannot be true, of an object that is in effect without it."""

    file: str
    kind: str
    """Kind of the object."""
    object: str
    """Name of the object."""
    reason: str
    """Field, value and remedy."""

    def __str__(self) -> str:
        """Return one sentence for the log."""
        return f"{self.file}: {self.kind} {self.object}: {self.reason}; it is ignored"


@dataclass(frozen=True, slots=True)
class InputState:
    """Inputs of one plugin or flag at one moment."""

    problems: tuple[InputProblem, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Versions of each file, and of its objects, that were rejected since the start; 0 where none was."""
    ignored: tuple[IgnoredValue, ...] = ()
    """Values that objects in effect are used without."""
    remarks: tuple[str, ...] = ()
    """Further sentences on objects in effect: on those without use, on names that occur twice."""


class HasInputs(Protocol):
    """A plugin, or a flag that names files."""

    @property
    def name(self) -> str:
        """Name in log lines, metrics and `/healthz`."""

    @property
    def inputs(self) -> InputState:
        """Its inputs now."""
