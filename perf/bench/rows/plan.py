# SPDX-License-Identifier: Apache-2.0
"""Plan of a run."""

import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perf.rig.pickers import PickerKind
from perf.rig.stand import Loader, loader
from perf.rig.wrk import WrkLoader

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """The pickers of a run, and the number of rounds and requests."""

    kinds: Sequence[PickerKind]
    quick: bool = False
    rounds: int | None = None
    """Rounds of each picker; None for the default of each group of rows."""
    wrk: str | None = None
    """Path of `wrk`, which replaces the built-in load if possible."""

    @contextlib.asynccontextmanager
    async def loader(self) -> AsyncIterator[Loader]:
        """Run the load generator until the block ends."""
        async with loader() as ours:
            yield ours if self.wrk is None else WrkLoader(ours, self.wrk)

    @property
    def programs(self) -> Sequence[PickerKind]:
        """The pickers with only the first transport of this program, for rows that do not depend on it."""
        return [kind for number, kind in enumerate(self.kinds) if number == 0 or not kind.ours]

    def scaled(self, full: int, quick: int) -> int:
        """Return the number for this run."""
        return quick if self.quick else full

    def rounds_of(self, title: str, full: int, *, seconds: float) -> Iterator[int]:
        """Yield the numbers of the rounds of a group; none begins after a time limit, for slow machines."""
        started = time.monotonic()
        for number in range(self.rounds or self.scaled(full, 1)):
            if number and self.rounds is None and time.monotonic() - started > seconds:
                self.tell(f"{title}: no more rounds, the time is up")
                return
            self.tell(f"{title}, round {number + 1}")
            yield number

    def turns(self, each: Sequence[T], number: int) -> Sequence[T]:
        """Return the items, rotated by the number of the round."""
        start = number % len(each)
        return [*each[start:], *each[:start]]

    def tell(self, text: str) -> None:
        """Show the progress of the run."""
        print(f"... {text}", file=sys.stderr, flush=True)
