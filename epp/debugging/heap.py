# SPDX-License-Identifier: Apache-2.0
"""A profile of memory: where what is still held was allocated, as far as Python allocated it."""

import time
import tracemalloc
from threading import Event

from epp.debugging.stack import Kind, Place, Profile

_CALLS = 16
_MOST_STACKS = 10_000
_SPACE = Kind("inuse_space", "bytes")


def heap_profile(seconds: float, stop: Event) -> Profile:
    """Return what was allocated in so many seconds and is still held; blocks.

    Where Python has traced memory from its start, by PYTHONTRACEMALLOC, it is all that was allocated since, at once.
    """
    profile = Profile((Kind("inuse_objects", "count"), _SPACE), Kind("space", "bytes"), 1, began=time.time_ns())
    began = time.perf_counter_ns()
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start(_CALLS)
    try:
        if not was_tracing:
            stop.wait(seconds)
        snapshot = tracemalloc.take_snapshot()
    finally:
        if not was_tracing:
            tracemalloc.stop()
    ours = tracemalloc.Filter(inclusive=False, filename_pattern=tracemalloc.__file__)
    for found in snapshot.filter_traces((ours,)).statistics("traceback")[:_MOST_STACKS]:
        stack = tuple(
            Place(f"{frame.filename}:{frame.lineno}", frame.filename, frame.lineno)
            for frame in reversed(found.traceback)
        )
        profile.add(stack, "", found.count, found.size)
    profile.nanoseconds = time.perf_counter_ns() - began
    return profile
