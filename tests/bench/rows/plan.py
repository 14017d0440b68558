# SPDX-License-Identifier: Apache-2.0
"""What a run is to do."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rig.pickers import PickerKind


@dataclass(frozen=True)
class Plan:
    """Pickers that take turns, and how much of everything."""

    kinds: Sequence[PickerKind]
    rounds: int
    quick: bool
    wrk: str | None = None
    """The program of that name, to take the place of our own load where it can."""

    def scaled(self, full: int, quick: int) -> int:
        """Return the number for this run."""
        return quick if self.quick else full

    def turns(self, number: int) -> Sequence[PickerKind]:
        """Return the pickers in the order of a round: each begins in its turn."""
        start = number % len(self.kinds)
        return [*self.kinds[start:], *self.kinds[:start]]

    def tell(self, text: str) -> None:
        """Show how far the run is."""
        print(f"... {text}", file=sys.stderr, flush=True)
