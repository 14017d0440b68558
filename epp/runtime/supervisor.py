# SPDX-License-Identifier: Apache-2.0
"""Background tasks that are restarted when they fail, and waits for the first of several."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import structlog

_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 30.0
_RECOVERED_SECONDS = 10.0
"""Time without a failure after which a task counts as healthy again."""

_log = structlog.get_logger()


class TaskObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def task_failed(self, kind: str, error: Exception) -> None:
        """Record that a background task raised and is restarted."""


class Supervisor:
    """Owns background tasks: restarts failed ones with back-off and jitter, and lists them as `failing`."""

    def __init__(self, *, observer: TaskObserver | None = None, generator: random.Random | None = None) -> None:
        self._observer = observer or TaskObserver()
        self._generator = generator or random.Random()  # noqa: S311  spreads restarts, guards nothing
        self._tasks: set[asyncio.Task[None]] = set()
        self._failing: dict[str, str] = {}

    @property
    def failing(self) -> Mapping[str, str]:
        """The last error of each task that failed and has not run for a while without failing, by the task's name."""
        return self._failing

    @property
    def count(self) -> int:
        """Tasks that have not ended."""
        return len(self._tasks)

    def start(self, kind: str, work: Callable[[], Awaitable[None]], *, name: str = "") -> asyncio.Task[None]:
        """Run `work` until it returns or the task is cancelled; `kind` is a label of metrics, `name` is unique."""
        task = asyncio.create_task(self._keep(kind, name or kind, work), name=name or kind)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """Cancel all tasks and wait for their end."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, kind: str, name: str, work: Callable[[], Awaitable[None]]) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        delay = _FIRST_DELAY_SECONDS
        try:
            while True:
                started = loop.time()
                recovery = loop.call_later(_RECOVERED_SECONDS, self._failing.pop, name, None)
                try:
                    await work()
                except Exception as error:  # noqa: BLE001  one failure must not end the task
                    self._failing[name] = f"{type(error).__name__}: {error}"
                    self._observer.task_failed(kind, error)
                    if loop.time() - started > _RECOVERED_SECONDS:
                        delay = _FIRST_DELAY_SECONDS
                    if task is not None and task.cancelling():  # it failed as it cleaned up, and is awaited
                        _log.error("background task failed as it ended", task=name, exc_info=error)
                        return
                    _log.error("background task failed", task=name, restart_seconds=delay, exc_info=error)
                else:
                    return
                finally:
                    recovery.cancel()
                await asyncio.sleep(delay * self._generator.uniform(0.5, 1.0))
                delay = min(2 * delay, _LONGEST_DELAY_SECONDS)
        finally:
            self._failing.pop(name, None)


async def first_of(*waits: Coroutine[Any, Any, object], most_seconds: float | None = None) -> bool:
    """Wait until one of them ends or the time is up, then cancel the others; return whether the first one ended.

    Raises the exception of one that fails.
    """
    tasks = [asyncio.create_task(each) for each in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=most_seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return tasks[0] in done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
