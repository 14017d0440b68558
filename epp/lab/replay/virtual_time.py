# SPDX-License-Identifier: Apache-2.0
"""An event loop in virtual time: timers end one after the other, and nothing waits."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from epp.framework import ManualClock

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Advances the clock in place of waiting; sockets are never ready."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Advance the clock; raises RuntimeError if no timer is set, because the loop would wait forever."""
        if timeout is None:
            raise RuntimeError("nothing is left to happen in virtual time")
        if timeout > 0:
            self._clock.advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a manual clock: code that waits with asyncio runs in virtual time unchanged."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(_Selector(clock))
        self._virtual_clock = clock

    def time(self) -> float:
        """Return the time of the clock."""
        return self._virtual_clock.now()


def run_virtual(main: Coroutine[Any, Any, T], clock: ManualClock) -> T:
    """Run a coroutine in virtual time and return its result; other tasks are cancelled at its end."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main)
