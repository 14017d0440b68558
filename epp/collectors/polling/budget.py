# SPDX-License-Identifier: Apache-2.0
"""A limit on all polls together: with many endpoints, each is polled less often."""

import asyncio
from collections import deque

MOST_POLLS_PER_SECOND = 2000.0
"""Two fifths of a CPU; what is left is for requests."""
_TICK_SECONDS = 0.01


class PollBudget:
    """Lets polls begin in turns, some in each tick of 10 ms; what a busy event loop missed is not caught up with."""

    def __init__(self, polls_per_second: float = MOST_POLLS_PER_SECOND) -> None:
        self._polls_per_second = polls_per_second
        self._per_tick = max(1, round(polls_per_second * _TICK_SECONDS))
        self._left = self._per_tick
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def delay_seconds(self) -> float:
        """Time that a poll waits for its turn."""
        return len(self._waiting) / self._polls_per_second

    async def turn(self) -> None:
        """Return when the next poll may begin; first come, first served."""
        self._start_tick()
        if self._left and not self._waiting:
            self._left -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _start_tick(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._end_tick)

    def _end_tick(self) -> None:
        self._timer = None
        self._left = self._per_tick
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled with its task
                turn.set_result(None)
                self._left -= 1
        if self._left < self._per_tick:
            self._start_tick()
