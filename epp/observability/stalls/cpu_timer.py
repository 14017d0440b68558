# SPDX-License-Identifier: Apache-2.0
"""CPU time of a thread: how much it had, how much it waited for, and a timer that runs as it does."""

import ctypes
import os
import sys
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
    """Sends a thread a signal whenever it has used so much CPU time: one that sleeps is left alone.

    Python has no such timer. Where the system has none either, `works` is false, and nothing is sent.
    """

    def __init__(self, clock: int | None, native_id: int, number: int, seconds: float) -> None:
        """Begin; `clock` is that of the thread's CPU time, and `number` the signal's."""
        self._timer = ctypes.c_void_p()
        self.works = False
        if clock is None or sys.platform != "linux" or sys.maxsize < 2**32:
            return
        self._library = ctypes.CDLL(None)
        event = _SignalEvent(None, number, _SIGEV_THREAD_ID, native_id)
        whole, part = divmod(round(seconds * 1e9), 1_000_000_000)
        with suppress(AttributeError):  # a C library that has timers elsewhere
            self.works = (
                self._library.timer_create(clock, ctypes.byref(event), ctypes.byref(self._timer)) == 0
                and self._library.timer_settime(self._timer, 0, ctypes.byref(_Interval(whole, part, whole, part)), None)
                == 0
            )

    def close(self) -> None:
        """End; a signal may still be under way."""
        if self.works:
            self._library.timer_delete(self._timer)
            self.works = False
