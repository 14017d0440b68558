# SPDX-License-Identifier: Apache-2.0
"""The process and its background tasks: limits of descriptors, garbage collection, and restarts of failed tasks."""

import asyncio
import contextlib
import errno
import gc
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import structlog

_RESERVE = 256
"""Descriptors for connections of gateways and scrapers and for files; at most half of the limit."""
_BRIEF_SHARE = 8
_OWN = 32
"""Descriptors that a picker opens at its start, for listeners and pipes."""
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
"""Error numbers for a lack of descriptors."""
_YOUNG = 4_000
"""Net new objects between two collections; Python's default is 700. Requests leave no cycles."""
_MIDDLE = 1
"""Collections of the young generation before one of the middle generation; Python's default is 10. One of the middle
generation visits 12,000 objects in 2 or 3 ms; after a change of pool or configuration, all of them may survive."""
_FULL = 250
"""Collections of the middle generation between two full ones; Python's default is 10."""
_NEVER = 2**31 - 1
_SWEEP_SECONDS = 0.004
"""Work on lasting objects, such as joining endpoints, between two sweeps: about 10,000 objects."""
_CHECK_SECONDS = 5.0
_FULL_SECONDS = 0.005
"""Allowed time of a full collection when it becomes due; the allowance grows while the collection is due."""
_SECONDS_PER_BLOCK = 3e-7
"""Estimated time of a full collection for each small block of memory in use, until the first collection."""
_FEW_BLOCKS = 10_000
"""Number of blocks up to which a measurement is unreliable."""
_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 30.0
_RECOVERED_SECONDS = 10.0
"""Time without a failure after which a task counts as healthy again."""

_log = structlog.get_logger()


def raise_limit() -> None:
    """Raise the soft limit to the hard limit, if the platform allows it."""
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  not available on Windows

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit() -> int | None:
    """Return the limit of descriptors of this process; None for no limit."""
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415  not available on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def within_limit(connections: int, share: int) -> int:
    """Return the connection limit of a port: `connections`, but at most one `share`-th of the descriptors."""
    most = limit()
    return connections if most is None else max(min(connections, most // share), 1)


def shortage(connections: int) -> str | None:
    """Return a warning if the limit is too low for this number of polling connections; None if it suffices."""
    most, bound = limit(), polling_bound(kept=True)
    if most is None or bound is None or connections <= bound - _OWN:
        return None
    remedy = connections + _RESERVE + _RESERVE // _BRIEF_SHARE + _OWN
    return (
        f"polling needs {connections} connections, but the limit of {most} file descriptors leaves "
        f"{max(bound - _OWN, 0)}, with {_reserve(most)} kept for listeners and files: the other endpoints are polled "
        f"less often; raise the limit to {remedy} or more (ulimit -n, LimitNOFILE of a systemd unit)"
    )


def polling_bound(*, kept: bool) -> int | None:
    """Return the upper bound (exclusive) of the descriptor numbers for polling; None for no limit.

    A new descriptor gets the lowest free number, so the numbers from the bound on stay free for other uses. The bound
    is lower for connections that are `kept`; the remaining endpoints share the rest.
    """
    most = limit()
    if most is None:
        return None
    reserve = _reserve(most)
    return most - reserve - (reserve // _BRIEF_SHARE if kept else 0)


def _reserve(most: int) -> int:
    return min(_RESERVE, most // 2)


def collect_rarely() -> None:
    """Make garbage collections, which stop the event loop, rare, and exclude imported modules from them.

    Automatic collections are never full, because a full one visits all waiting requests; see
    `collect_in_quiet_moments`.
    """
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
    gc.freeze()


def freeze() -> None:
    """Exclude all current objects from collections permanently: call it once, at the start."""
    gc.collect()
    gc.freeze()


class Sweeps:
    """Collections of the middle generation between parts of long work, so that each collection is short.

    Python collects when the number of objects has grown. While endpoints replace others, it does not grow: the objects
    of a thousand endpoints are then young, and one collection takes 50 ms.
    """

    def __init__(self) -> None:
        self._worked_seconds = 0.0
        self.count = 0
        """Number of sweeps since the last full collection."""

    def is_due(self, worked_seconds: float) -> bool:
        """Add the time of a part of the work; return whether a sweep is due."""
        self._worked_seconds += worked_seconds
        return self._worked_seconds >= _SWEEP_SECONDS

    def sweep(self) -> None:
        """Collect the young and middle generations."""
        self._worked_seconds = 0.0
        self.count += 1
        gc.collect(1)


SWEEPS = Sweeps()
"""The sweeps of the process; garbage collection is per process."""


class FullCollections:
    """Full collections of garbage, at a time when they are short.

    100,000 waiting requests are two million objects, and a full collection takes a second. Long-lived cycles, such as a
    replaced configuration, are rare and can wait for a quiet moment.
    """

    def __init__(self, sweeps: Sweeps = SWEEPS) -> None:
        self._sweeps = sweeps
        self._base = sys.getallocatedblocks()
        """Number of frozen or lasting blocks."""
        self._seconds_per_block = _SECONDS_PER_BLOCK
        self._count = 0

    def check(self) -> bool:
        """Collect if a collection is due and short enough; return whether it was done."""
        total = gc.get_count()[2]
        if total < self._count:  # `freeze` has collected since the last check
            self._base, self._sweeps.count = sys.getallocatedblocks(), 0
        self._count = total
        count = total - self._sweeps.count
        if count < _FULL or self.expected_seconds > _FULL_SECONDS * count / _FULL:
            return False
        blocks = self._blocks
        started = time.thread_time()
        gc.collect()
        if blocks > _FEW_BLOCKS:
            self._seconds_per_block = (time.thread_time() - started) / blocks
        self._count = self._sweeps.count = 0
        return True

    @property
    def expected_seconds(self) -> float:
        """Estimated CPU time of a full collection now."""
        return self._blocks * self._seconds_per_block

    @property
    def _blocks(self) -> int:
        return max(0, sys.getallocatedblocks() - self._base)


async def collect_in_quiet_moments() -> None:
    """Do all full collections of the process, until cancelled."""
    collections = FullCollections()
    while True:
        await asyncio.sleep(_CHECK_SECONDS)
        collections.check()


class TaskObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def task_failed(self, kind: str, error: Exception) -> None:
        """Record that a background task raised and is restarted."""


class Supervisor:
    """Owns background tasks: restarts failed ones with back-off and jitter, and lists them as `failing`."""

    def __init__(self, *, observer: TaskObserver | None = None) -> None:
        self._observer = observer or TaskObserver()
        self.tasks: set[asyncio.Task[None]] = set()
        self.failing: dict[str, str] = {}
        """Last error of each failing task by name, until the task has run for a while without an error."""

    def start(self, kind: str, work: Callable[[], Awaitable[None]], *, name: str = "") -> asyncio.Task[None]:
        """Run `work` until it returns or the task is cancelled; `kind` is a metric label, `name` is unique."""
        task = asyncio.create_task(self._keep(kind, name or kind, work), name=name or kind)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def stop(self) -> None:
        await end(self.tasks)

    async def _keep(self, kind: str, name: str, work: Callable[[], Awaitable[None]]) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        delay = _FIRST_DELAY_SECONDS
        try:
            while True:
                started = loop.time()
                recovery = loop.call_later(_RECOVERED_SECONDS, self.failing.pop, name, None)
                try:
                    await work()
                except Exception as error:  # noqa: BLE001  one failure must not end the task
                    self.failing[name] = f"{type(error).__name__}: {error}"
                    self._observer.task_failed(kind, error)
                    if loop.time() - started > _RECOVERED_SECONDS:
                        delay = _FIRST_DELAY_SECONDS
                    if task is not None and task.cancelling():  # it failed in its clean-up, and is awaited
                        _log.error("background task failed as it ended", task=name, exc_info=error)
                        return
                    _log.error("background task failed", task=name, restart_seconds=delay, exc_info=error)
                else:
                    return
                finally:
                    recovery.cancel()
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311  spreads restarts
                delay = min(2 * delay, _LONGEST_DELAY_SECONDS)
        finally:
            self.failing.pop(name, None)


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end; their exceptions are ignored."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(*waits: Coroutine[Any, Any, object], most_seconds: float | None = None) -> bool:
    """Wait until one of the coroutines ends or the time is up, then cancel the rest; return whether the first ended.

    Raises the exception of a coroutine that fails.
    """
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=most_seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return tasks[0] in done
    finally:
        await end(tasks)
