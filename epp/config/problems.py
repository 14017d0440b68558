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

    def __str__(self) -> str:
        """Write `file.yaml:3:5: plugins[0].type: message`, which editors follow."""
        place = f"{self.origin}:{self.position}" if self.position else self.origin
        return ": ".join(part for part in (place, written(self.path), self.message) if part)


class InvalidConfigError(ConfigurationError):
    """A configuration that cannot be used, with everything that was found wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def in_order_of_the_file(problems: Iterable[Problem]) -> list[Problem]:
    """Sort by position; those without one come first."""
    return sorted(problems, key=lambda problem: problem.position or Position(1, 1))


def written(path: Path) -> str:
    """Write `plugins[0].type` for ("plugins", 0, "type")."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")
