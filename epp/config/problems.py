# SPDX-License-Identifier: Apache-2.0
"""Problems and warnings of a configuration: one line each, with the place in the file."""

from collections.abc import Iterable
from dataclasses import dataclass

from epp.config.document import Path, Position
from epp.framework import ConfigurationError


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: place, message and remedy."""

    message: str
    path: Path = ()
    position: Position | None = None
    origin: str = ""
    remedy: str = ""
    """Empty where the message says it all."""
    inside: str = ""
    """Place within a text that the file quotes, where that has no line of its own."""

    def __str__(self) -> str:
        """Write `file.yaml:3:5: plugins[0].type: message; remedy`, which editors follow."""
        place = f"{self.origin}:{self.position}" if self.position else self.origin
        text = f"{self.message}; {self.remedy}" if self.remedy else self.message
        return ": ".join(part for part in (place, self.inside, written(self.path), text) if part)


class InvalidConfigError(ConfigurationError):
    """A configuration that cannot be used, with everything that was found wrong with it."""

    def __init__(self, problems: Iterable[Problem], warnings: Iterable[Problem] = ()) -> None:
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)
        super().__init__("\n".join(map(str, self.problems)))


def in_order_of_the_file(problems: Iterable[Problem]) -> list[Problem]:
    """Sort by position; those without one come first."""
    return sorted(problems, key=lambda problem: problem.position or Position(1, 1))


def written(path: Path) -> str:
    """Write `plugins[0].type` for ("plugins", 0, "type")."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")
