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
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from types import CodeType, FrameType

from epp.observability.stalls.cpu_timer import CpuTimer, ThreadTimes
from epp.observability.stalls.stack_signal import StackSignal
from epp.observability.stalls.stall import GARBAGE, NO_CPU, UNKNOWN, Mark, Stall, marks_of, place_of, stack_of

DEFAULT_THRESHOLD_SECONDS = 0.01
_LEAST_SECONDS = 0.001
_REST_SECONDS = 0.25
"""Between two looks at a loop that uses no CPU time. A call that waits for something else is found in this time."""
_ALERT_SECONDS = 10.0
"""Time of frequent looks after a stall without a name."""
_HALF = 0.5
_LOOK = 0.5
"""Thresholds of CPU time between two looks at a busy loop; the kernel rounds it up to its clock's next tick."""
_MOST_LOOKS = 100


class _Probe:
    """A callback that the loop was asked for in the middle of a turn, and what was seen until it ran."""

    __slots__ = ("seen", "started_at")

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.seen: deque[list[Mark]] = deque(maxlen=_MOST_LOOKS)
        """The stacks."""


class StallWatchdog:
    """Tells of turns of the event loop that take longer than a threshold.

    The loop's thread looks at itself at a signal, of a timer of its CPU time, and of a thread four times a second.
    In the middle of a turn, it asks for a callback, and takes the stack at each further look until that has run. Of
    stalls that are less than twice as long as the threshold, it sees some. Names are for a loop in the main thread;
    others are unknown.
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
        self._held = ExitStack()
        self._thread: threading.Thread | None = None
        self._timer: CpuTimer | None = None
        self._stack: StackSignal | None = None
        self._probe: _Probe | None = None
        self._alert_until = -math.inf
        self._told_at = -math.inf
        self._collecting_since = 0.0
        self._collected: tuple[float, float] = (-math.inf, 0.0)
        """When the last long collection of garbage began, and its seconds."""
        self._waited = 0.0
        self._looked_at = 0.0
        """CPU time of the loop's thread at the last look."""
        self._wakes: SimpleQueue[None] = SimpleQueue()  # unlike an event's, its lock is no matter in a signal handler

    async def start(self) -> None:
        """Begin with the running loop, in its own thread."""
        self._loop = asyncio.get_running_loop()
        self._times = ThreadTimes(threading.get_ident(), threading.get_native_id())
        self._held.callback(self._times.close)
        self._waited = self._times.waited_seconds()
        base: asyncio.Future[CodeType | None] = self._loop.create_future()
        self._loop.call_soon(lambda: base.set_result(_caller_code()))
        self._base = await base
        gc.callbacks.append(self._note_collection)
        self._looked_at = time.thread_time()
        stack = self._stack = StackSignal(self._look)
        if stack.number:
            seconds = self._threshold * _LOOK
            self._timer = CpuTimer(self._times.clock, threading.get_native_id(), stack.number, seconds)
            self._thread = threading.Thread(target=self._watch, args=(stack,), name="stall watchdog", daemon=True)
            self._thread.start()

    async def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        with suppress(ValueError):
            gc.callbacks.remove(self._note_collection)
        if self._thread is not None and self._stack is not None and self._timer is not None:
            self._timer.close()
            self._wakes.put(None)
            await asyncio.to_thread(self._thread.join)
            self._stack.close()
            self._thread = None
        self._held.close()

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
        self._wakes.put(None)
        self._tell(Stall(UNKNOWN, seconds))

    def _watch(self, stack: StackSignal) -> None:
        """Look where no CPU time is used: twice in a short time, and then as long as it is the same turn."""
        rest = _REST_SECONDS
        while not self._stopping:
            with suppress(Empty):
                self._wakes.get(timeout=rest)
            stack.ask()
            is_close = rest == _REST_SECONDS or self._probe is not None or time.monotonic() < self._alert_until
            rest = self._threshold if is_close else _REST_SECONDS

    def _look(self, frame: FrameType) -> None:
        """See what the loop does now; it was to be looked at sooner, where it used more than a timer's CPU time.

        A call that keeps the interpreter's lock keeps the look off.
        """
        before, self._looked_at = self._looked_at, time.thread_time()
        if self._rests(frame):
            return
        probe = self._probe
        if probe is None:
            now = time.monotonic()
            late = self._looked_at - before - self._threshold * _LOOK
            is_late = late > self._threshold
            probe = self._probe = _Probe(now - late if is_late else now)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._answer)
            if not is_late:
                return  # most turns end soon, and the next look comes before one is too long
        probe.seen.append(marks_of(frame))

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
        if not probe.seen:
            self._tell(Stall(UNKNOWN, seconds))
            return
        packages = self._packages()
        places = [place_of(marks, packages) for marks in probe.seen]
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
