# SPDX-License-Identifier: Apache-2.0
"""Warnings of a pool that is too large to be polled as asked."""

import asyncio
import contextlib

import structlog

from epp.pool.collectors.polling.poll import CollectorObserver
from epp.pool.collectors.polling.poller import Poller
from epp.runtime.process import shortage

_GROWING_SECONDS = 0.5
"""Time in which further endpoints join before the pool is judged."""
_CHECK_SECONDS = 5.0
_STRETCHED = 2.0
"""Growth of the time between polls that is worth another line in the log."""

_log = structlog.get_logger()


class Capacity:
    """Warns of too few file descriptors, and of polls that are rarer than asked for; again as the pool grows."""

    def __init__(self, poller: Poller, observer: CollectorObserver) -> None:
        self._poller = poller
        self._observer = observer
        self._changed = asyncio.Event()
        self._connections = 0
        self._endpoints = 0
        self._interval_seconds = 0.0
        self._warned_of = 0
        self._told_seconds = 0.0

    def changed(self, *, endpoints: int, connections: int, interval_seconds: float) -> None:
        """Record the size of the pool, the connections for polls, and the interval asked for."""
        self._endpoints, self._connections, self._interval_seconds = endpoints, connections, interval_seconds
        self._changed.set()

    async def follow(self) -> None:
        """Judge the pool now and then, and after changes, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._changed.wait()
            await asyncio.sleep(_GROWING_SECONDS)
            self._changed.clear()
            self.judge()

    def judge(self) -> None:
        """Warn where there is something new to warn of."""
        self._check_descriptors()
        self._check_interval()

    def _check_descriptors(self) -> None:
        problem = shortage(self._connections)
        if problem is None:
            self._warned_of = 0
        elif self._connections > self._warned_of:
            self._warned_of = self._connections
            _log.warning("too few file descriptors", endpoints=self._endpoints, problem=problem)

    def _check_interval(self) -> None:
        seconds = max(self._poller.delay_seconds, self._interval_seconds)
        self._observer.poll_interval(seconds)
        if seconds <= self._interval_seconds:
            self._told_seconds = self._interval_seconds
        elif seconds >= _STRETCHED * max(self._told_seconds, self._interval_seconds):
            self._told_seconds = seconds
            _log.warning(
                "endpoints are polled less often than asked",
                endpoints=self._endpoints,
                asked_seconds=self._interval_seconds,
                seconds=round(seconds, 3),
                remedy="none needed; but a metricsStalenessThreshold below these seconds distrusts most endpoints",
            )
