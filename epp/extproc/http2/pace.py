# SPDX-License-Identifier: Apache-2.0
"""Work that clients cause by leaving, some of it in each turn of the event loop: all may leave at once."""

import asyncio
from collections import deque
from collections.abc import Callable

MOST_IN_A_TURN = 16
"""Calls that end in a turn: with what is recorded of each, that takes a millisecond or two."""


class Pace:
    """For all connections of a server together."""

    def __init__(self) -> None:
        self._left = MOST_IN_A_TURN
        self._later: deque[tuple[Callable[[], object], int]] = deque()
        self._is_due = False

    def do(self, act: Callable[[], object], calls: int = 1) -> None:
        """Act at once, or in a later turn, in this order; `calls` is how many end by it."""
        if self._later or self._left < calls:
            self._later.append((act, calls))
        else:
            self._left -= calls
            act()
        self._resume()

    def _resume(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due, self._left = False, MOST_IN_A_TURN
        later = self._later
        try:
            while later and later[0][1] <= self._left:
                act, calls = later.popleft()
                self._left -= calls
                act()
        finally:
            if self._left < MOST_IN_A_TURN:
                self._resume()
