# SPDX-License-Identifier: Apache-2.0
"""A thread that looks at what the event loop does, when it does it for long."""

import asyncio
import gc
import math
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from types import CodeType, FrameType

from epp.observability.stalls.cpu_timer import CpuTimer, ThreadTimes
from epp.observability.stalls.stack_signal import StackSignal
from epp.observability.stalls.stall import GARBAGE, NO_CPU, UNKNOWN, Call, Stall, calls_of, place_of, stack_of

DEFAULT_THRESHOLD_SECONDS = 0.01
_LEAST_SECONDS = 0.001
_REST_SECONDS = 0.25
"""Between two looks at a loop that uses no CPU time. A call that waits for something else is found in this time."""
_PLAIN_REST_SECONDS = 0.02
"""That, where there is no timer of CPU time."""
_ALERT_SECONDS = 10.0
"""Time of frequent looks after a stall without a name."""
_HALF = 0.5
_LOOK = 2.5
"""Thresholds of CPU time between two looks at a busy loop: each takes some 0.1 ms, most of it to change threads."""
_MOST_LOOKS = 100


class _Probe:
    """A callback that the loop was asked for in the middle of a turn, and what was seen until it ran."""

    __slots__ = ("seen", "started_at")

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.seen: deque[tuple[Call, ...]] = deque(maxlen=_MOST_LOOKS)
        """The stacks."""


class StallWatchdog:
    """Tells of turns of the event loop that take longer than a threshold.

    It looks whenever the loop's thread has used two and a half times the threshold of CPU time, and four times a
    second: a loop at rest costs nothing more. Of stalls that are not much longer than that, it sees some. In the middle
    of a turn, it asks for a callback, and takes the stack until that has run. Names are for a loop in the main thread;
    other stalls are unknown.
    """

    def __init__(
        self,
        threshold_seconds: float,
        stalled: Callable[[Stall], None],
        packages: Callable[[], Collection[str]] = lambda: ("epp",),
    ) -> None:
        """`stalled` is called on the loop. Of a stack, the innermost call into one of the `packages` gives the name."""
        self._threshold = max(threshold_seconds, _LEAST_SECONDS)
        self._stalled = stalled
        self._packages = packages
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._timer: CpuTimer | None = None
        self._probe: _Probe | None = None
        self._alert_until = -math.inf
        self._told_at = -math.inf
        self._collecting_since = 0.0
        self._collected: tuple[float, float] = (-math.inf, 0.0)
        """When the last long collection of garbage began, and its seconds."""
        self._waited = 0.0
        self._late = 0.0
        """By how much the last look was late."""
        self._stack: StackSignal | None = None

    async def start(self) -> None:
        """Begin with the running loop, in its own thread."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._times = ThreadTimes(self._loop_thread, threading.get_native_id())
        self._waited = self._times.waited_seconds()
        base: asyncio.Future[CodeType | None] = self._loop.create_future()
        self._loop.call_soon(lambda: base.set_result(_caller_code()))
        self._base = await base
        gc.callbacks.append(self._note_collection)
        self._stack = StackSignal(self._look)
        self._thread = threading.Thread(target=self._watch, name="stall watchdog", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        with suppress(ValueError):
            gc.callbacks.remove(self._note_collection)
        if self._thread is not None:
            self._wake()
            await asyncio.to_thread(self._thread.join)
            self._times.close()
            if self._stack is not None:
                self._stack.close()
            self._thread = None

    def lagged(self, seconds: float) -> None:
        """Count a timer of the loop that was late as a stall, if it was in none; look more often then."""
        before, self._waited = self._waited, self._times.waited_seconds()
        now = time.monotonic()
        if seconds < self._threshold or self._told_at > now - seconds - self._threshold:
            return
        if seconds - (self._waited - before) < self._threshold:
            self._tell(Stall(NO_CPU, seconds))
            return
        self._alert_until = now + _ALERT_SECONDS
        self._wake()
        self._tell(Stall(UNKNOWN, seconds))

    def _wake(self) -> None:
        if self._timer is not None and self._thread is not None and self._thread.is_alive():
            self._timer.wake()

    def _watch(self) -> None:
        timer = self._timer = CpuTimer(self._times.clock, self._threshold * _LOOK)
        rest = _REST_SECONDS if timer.works else _PLAIN_REST_SECONDS
        own = ThreadTimes(threading.get_ident(), threading.get_native_id())
        cpu, waited = self._times.cpu_seconds(), own.waited_seconds()
        try:
            while not self._stopping:
                is_close = self._probe is not None or time.monotonic() < self._alert_until
                timer.wait(self._threshold if is_close else rest)
                before, cpu = cpu, self._times.cpu_seconds()
                late = cpu - before - self._threshold * _LOOK if timer.works else 0.0
                if late > self._threshold or cpu == before:  # else it matters little, and reading takes time
                    unaware = own.waited_seconds() - waited
                    waited += unaware
                    late -= unaware
                self._late = late
                if self._stack is not None:
                    self._stack.ask()
        finally:
            timer.close()
            own.close()

    def _look(self, frame: FrameType) -> None:
        """See what the loop does now; it was to be looked at sooner, where that is late by more than the threshold.

        A call that keeps the interpreter's lock keeps the look off.
        """
        if self._rests(frame):
            return
        probe = self._probe
        if probe is None:
            now = time.monotonic()
            started_at = now - self._late if self._late > self._threshold else now
            probe = self._probe = _Probe(started_at)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._answer)
        probe.seen.append(calls_of(frame))

    def _answer(self) -> None:
        """End a probe: the loop has come around."""
        probe, self._probe = self._probe, None
        now = time.monotonic()
        if probe is None or now - probe.started_at < self._threshold:
            return
        seconds = now - probe.started_at
        collected_at, collected = self._collected
        if collected_at >= probe.started_at - self._threshold and collected > seconds * _HALF:
            return  # that was told
        if seconds - (self._times.waited_seconds() - self._waited) < self._threshold:  # since the last timer, or before
            self._tell(Stall(NO_CPU, seconds))
            return
        packages = self._packages()
        places = [place_of(calls, packages) for calls in probe.seen]
        where, _ = Counter(places).most_common(1)[0]
        last = len(places) - 1 - places[::-1].index(where)
        self._tell(Stall(where, seconds, stack_of(probe.seen[last])))

    def _tell(self, stall: Stall) -> None:
        self._told_at = time.monotonic()
        self._stalled(stall)

    def _note_collection(self, phase: str, _: object) -> None:
        """Tell of a long collection of garbage; called in any thread, all of which it stops."""
        now = time.monotonic()
        if phase == "start":
            self._collecting_since = now
            return
        seconds = now - self._collecting_since
        if seconds >= self._threshold and not self._stopping:
            self._collected = (self._collecting_since, seconds)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._tell, Stall(GARBAGE, seconds))

    def _rests(self, frame: FrameType) -> bool:
        """Whether the loop waits for events: uvloop calls nothing then, asyncio's own a selector."""
        return frame.f_code is self._base or frame.f_globals.get("__name__") == "selectors"


def _caller_code() -> CodeType | None:
    """Return the code that runs the loop."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  the caller of the callback
    return None if frame is None else frame.f_code
