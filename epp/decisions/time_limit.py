# SPDX-License-Identifier: Apache-2.0
"""Ends a call on the event loop that takes too long, whatever it does."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
A = TypeVarTuple("A")

_WAITING = 4.0
"""Times the limit that a call may take in all: one that waits has that long, and one that is kept from the CPU."""
_RINGS = 4
"""Times in a limit that a call is looked at."""


class OverTimeError(BaseException):
    """A call has taken too long; no Exception, so that code which goes on after any of those does not go on."""


class TimeLimit:
    """Raises in the midst of a call that has had its CPU time, or four times as long altogether.

    Only Python code can be ended, and what waits in a system call; a long call in C ends as it returns. Outside of the
    main thread, and beside another user of SIGALRM, nothing is ended; `is_over` holds all the same.
    """

    def __init__(self) -> None:
        """Prepare; `open` and all calls belong to one thread."""
        self.works = False
        self._is_armed = False
        self._seconds = 0.0
        self._cpu_until = 0.0
        self._until = 0.0

    def open(self) -> None:
        """Take the signal."""
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
            return
        if signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN):  # else it is somebody else's
            signal.signal(signal.SIGALRM, self._on_signal)
            self.works = True

    def close(self) -> None:
        """Give it back."""
        if self.works:
            self.works = False
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def call(self, seconds: float, function: Callable[[*A], T], *arguments: *A) -> T:
        """Return what a function returns; raises OverTimeError in it."""
        try:
            try:
                self._begin(seconds)
                return function(*arguments)
            finally:
                self._end()
        except BaseException:
            self._end()  # the signal may have come in between
            raise

    def is_over(self) -> bool:
        """Return whether the call under way, or the last one, has had its time."""
        return time.thread_time() >= self._cpu_until or time.perf_counter() >= self._until

    def _begin(self, seconds: float) -> None:
        self._seconds = seconds
        self._cpu_until, self._until = time.thread_time() + seconds, time.perf_counter() + seconds * _WAITING
        if self.works:
            self._is_armed = True
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds / _RINGS)

    def _end(self) -> None:
        self._is_armed = False
        if self.works:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        if self._is_armed and self.is_over():
            seconds = self._seconds  # one that goes on all the same is ended again
            self._cpu_until, self._until = time.thread_time() + seconds, time.perf_counter() + seconds * _WAITING
            raise OverTimeError
