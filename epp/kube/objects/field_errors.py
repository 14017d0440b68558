# SPDX-License-Identifier: Apache-2.0
"""Impossible values in the fields of an object, in the form `field is value: remedy`."""

import math
from datetime import UTC, datetime

from epp.framework.input_errors import shown

_MOST_FAULTS = 20


class Faults:
    """Impossible values of one object: field, value and remedy of each."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._left_out = 0

    @property
    def found(self) -> tuple[str, ...]:
        """All faults: the first twenty as text, then the number of further ones."""
        more = (f"{self._left_out} further values are impossible as well",) if self._left_out else ()
        return (*self._found, *more)

    def add(self, field: str, value: object, remedy: str) -> None:
        """Record a fault."""
        if len(self._found) < _MOST_FAULTS:
            self._found.append(f"{field} is {shown(value)}: {remedy}")
        else:
            self._left_out += 1

    def number(self, field: str, value: object, low: float, high: float) -> float | None:
        """Return a number within limits; record a fault and return None for any other value."""
        usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if usable and isinstance(value, (int, float)) and low <= value <= high:
            return float(value)
        self.add(field, value, f"write a number from {low:g} to {high:g}")
        return None

    def count(self, field: str, value: object, least: int = 0) -> int | None:
        """Return a whole number; record a fault and return None for any other value."""
        if isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31:
            return value
        self.add(field, value, f"write a whole number of at least {least}")
        return None

    def time(self, field: str, value: object) -> float | None:
        """Return seconds since the epoch; None without a value. Record a fault and return None for an invalid date."""
        if value is None or value == "":
            return None
        if isinstance(value, str):
            try:
                found = datetime.fromisoformat(value)
                return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
            except (ValueError, OverflowError):
                pass
        self.add(field, value, "write a date such as 2030-01-01T00:00:00Z")
        return None

    def choice(self, field: str, value: object, choices: tuple[str, ...]) -> str | None:
        """Return one of the choices; record a fault and return None for any other value."""
        if isinstance(value, str) and value in choices:
            return value
        self.add(field, value, f"write {' or '.join(choices)}")
        return None
