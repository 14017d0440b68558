# SPDX-License-Identifier: Apache-2.0
"""A profile of CPU time: where threads are, a hundred times a second, and how much each has computed since."""

import sys
import threading
import time
from threading import Event

from epp.debugging.stack import Kind, Profile, stack_of

_INTERVAL_SECONDS = 0.01
_LEAST_NANOSECONDS = 200_000
"""CPU time of a thread, since it was last counted, from which it is counted where it is."""
_THREAD_CPU_CLOCK = 0b110
"""Linux: in the number of a clock, that it is of the CPU time of a thread, whose id the other bits have, inverted. Of a
thread that has ended the kernel says so; `pthread_getcpuclockid` would read freed memory."""
_CPU = Kind("cpu", "nanoseconds")


def cpu_profile(seconds: float, stop: Event) -> Profile:
    """Return a profile of so many seconds, less where `stop` is set meanwhile; blocks."""
    profile = Profile(
        (Kind("samples", "count"), _CPU), _CPU, int(_INTERVAL_SECONDS * 1e9), "thread", began=time.time_ns()
    )
    times = _ThreadTimes()
    began = time.perf_counter_ns()
    while (left := seconds - (time.perf_counter_ns() - began) / 1e9) > 0:
        if stop.wait(min(_INTERVAL_SECONDS, left)):
            break
        _sample(profile, times)
    profile.nanoseconds = time.perf_counter_ns() - began
    return profile


def _sample(profile: Profile, times: "_ThreadTimes") -> None:
    frames = sys._current_frames()  # noqa: SLF001  the only way to the frames of other threads
    own = threading.get_ident()
    for thread in threading.enumerate():
        frame = None if thread.ident is None else frames.get(thread.ident)
        if frame is None or thread.ident == own or thread.native_id is None:
            continue
        spent = times.taken(thread.native_id, _LEAST_NANOSECONDS)
        if spent:
            profile.add(stack_of(frame), thread.name, 1, spent)


class _ThreadTimes:
    """CPU time of threads, by the kernel's account."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def taken(self, native_id: int, least: int) -> int:
        """Return the nanoseconds since it was last counted, if they are as many; 0 where the kernel does not tell."""
        try:
            now = time.clock_gettime_ns((~native_id << 3) | _THREAD_CPU_CLOCK)
        except OSError:  # the thread has ended, or this is not Linux
            return 0
        spent = now - self._last.setdefault(native_id, now)
        if spent < least:
            return 0
        self._last[native_id] = now
        return spent
