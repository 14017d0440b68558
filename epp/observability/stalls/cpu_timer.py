# SPDX-License-Identifier: Apache-2.0
"""CPU time of another thread: how much it had, how much it waited for, and a timer that runs as it does."""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress

_SIGEV_THREAD_ID = 4
"""Linux: the signal goes to one thread, and no other can be interrupted by it."""


class ThreadTimes:
    """Times of one thread, read from any."""

    def __init__(self, ident: int, native_id: int) -> None:
        """Take the identifiers that `threading` has for it."""
        self._clock = time.pthread_getcpuclockid(ident) if hasattr(time, "pthread_getcpuclockid") else None
        self._waits = -1
        with suppress(OSError):  # not Linux, or a kernel without it
            self._waits = os.open(f"/proc/self/task/{native_id}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def clock(self) -> int | None:
        """The clock of its CPU time, for `clock_gettime`; None where there is none."""
        return self._clock

    def cpu_seconds(self) -> float:
        """Return the CPU time that it has used; NaN for unknown."""
        return float("nan") if self._clock is None else time.clock_gettime(self._clock)

    def waited_seconds(self) -> float:
        """Return the time in which it could have run and had no CPU; 0 for unknown."""
        if self._waits < 0:
            return 0.0
        try:
            return int(os.pread(self._waits, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # the thread has ended, or accounting is off
            return 0.0

    def close(self) -> None:
        """Release the file."""
        if self._waits >= 0:
            os.close(self._waits)
            self._waits = -1


class _SignalEvent(ctypes.Structure):
    """`struct sigevent`, 64 bytes on 64-bit Linux."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread_id", ctypes.c_int),
        ("padding", ctypes.c_char * 44),
    )


class _Interval(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = (
        ("every_seconds", ctypes.c_long),
        ("every_nanoseconds", ctypes.c_long),
        ("first_seconds", ctypes.c_long),
        ("first_nanoseconds", ctypes.c_long),
    )


class CpuTimer:
    """Wakes the thread that made it whenever another has used so much CPU time: one that sleeps wakes no one.

    Python has no such timer; without it, a thread would have to look at the clock all the time. Where the system has
    none either (`works` is false), waiting is for time alone.
    """

    def __init__(self, clock: int | None, seconds: float) -> None:
        """Begin; `clock` is that of the other thread's CPU time. Called in the thread that will wait."""
        self._timer = ctypes.c_void_p()
        self._woken = threading.Event()
        self._thread = threading.get_ident()
        self.works = False
        if clock is None or sys.platform != "linux" or sys.maxsize < 2**32:
            return
        self._signal = signal.SIGRTMIN + 7  # of those that C libraries keep for themselves, there are three
        signal.pthread_sigmask(signal.SIG_BLOCK, {self._signal})
        self._library = ctypes.CDLL(None)
        event = _SignalEvent(None, self._signal, _SIGEV_THREAD_ID, threading.get_native_id())
        whole, part = divmod(round(seconds * 1e9), 1_000_000_000)
        with suppress(AttributeError):  # a C library that has timers elsewhere
            self.works = (
                self._library.timer_create(clock, ctypes.byref(event), ctypes.byref(self._timer)) == 0
                and self._library.timer_settime(self._timer, 0, ctypes.byref(_Interval(whole, part, whole, part)), None)
                == 0
            )

    def wait(self, seconds: float) -> None:
        """Wait for the timer, for `wake`, or for so long."""
        if self.works:
            signal.sigtimedwait({self._signal}, seconds)
        else:
            self._woken.wait(seconds)
            self._woken.clear()

    def wake(self) -> None:
        """Let the wait end, or the next one; called in any thread while the waiting one lives."""
        if self.works:
            signal.pthread_kill(self._thread, self._signal)
        else:
            self._woken.set()

    def close(self) -> None:
        """End; called in the thread that made it."""
        if self.works:
            self._library.timer_delete(self._timer)
            self.works = False
