# SPDX-License-Identifier: Apache-2.0
"""An event loop in virtual time: timers end one after the other without a wait."""

import asyncio
import gc
import math
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

from epp.framework.clock import Clock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_YOUNG_OBJECTS = 50_000
"""New objects after which they are collected."""


class VirtualClock(Clock):
    """A clock that is set."""

    __slots__ = ("time",)

    def __init__(self, time: float) -> None:
        self.time = time

    def now(self) -> float:
        return self.time

    def utc(self) -> float:
        return self.time


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a virtual clock: code that waits with asyncio runs in virtual time unchanged.

    Events of `at` run beside the timers of asyncio, in order of time, at a fraction of their cost.
    """

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(_Selector(self))
        self.clock = clock
        self.events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self.has_callbacks = False
        """Whether callbacks or timers were added since the last event."""
        self._numbers = count()

    def time(self) -> float:
        return self.clock.time

    def at(self, due: float, action: Callable[..., object], *arguments: Any) -> None:
        """Call `action` at a time; an exception ends the loop."""
        heappush(self.events, (due, next(self._numbers), action, arguments))

    def after(self, seconds: float, action: Callable[..., object], *arguments: Any) -> None:
        """Call `action` after a number of seconds; an exception ends the loop."""
        heappush(self.events, (self.clock.time + seconds, next(self._numbers), action, arguments))

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.has_callbacks = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self.has_callbacks = True
        return super().call_at(when, callback, *args, context=context)


class _Selector(selectors.SelectSelector):
    """Runs events and advances the clock in place of waiting; sockets are never ready."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Run the events of the next `timeout` seconds; raises RuntimeError if the loop would wait without end."""
        loop, events, clock = self._loop, self._loop.events, self._loop.clock
        until = math.inf if timeout is None else clock.time + timeout
        loop.has_callbacks = False
        while events and events[0][0] <= until:
            due, _, action, arguments = heappop(events)
            if due > clock.time:  # noqa: PLR1730  faster than max, for the most frequent line of a replay
                clock.time = due
            action(*arguments)
            if loop.has_callbacks:
                return []
        if timeout is None:
            raise RuntimeError("nothing is left to happen in virtual time")
        clock.time = until
        return []


def run_virtual(main: Coroutine[Any, Any, T], clock: VirtualClock) -> T:
    """Run a coroutine in virtual time and return its result; other tasks are cancelled at its end.

    Garbage is collected rarely meanwhile: requests leave little that only a collection finds.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(max(_YOUNG_OBJECTS, thresholds[0]), *thresholds[1:])
    try:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
            return runner.run(main)
    finally:
        gc.set_threshold(*thresholds)
