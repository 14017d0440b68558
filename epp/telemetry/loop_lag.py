# SPDX-License-Identifier: Apache-2.0
"""Delays of the event loop, which all requests share."""

import asyncio
from collections.abc import Callable

import structlog

from epp.telemetry.families import Families

_INTERVAL_SECONDS = 0.1
_SECONDS_BETWEEN_LINES = 10.0
_MOST_OF_IT = 0.5
"""Share of a delay that a plugin must have taken to be named."""
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

_log = structlog.get_logger()


class LoopLag:
    """Measures how late a timer of the event loop is, ten times a second."""

    def __init__(self, families: Families, slowest_call: Callable[[], tuple[float, str]]) -> None:
        """`slowest_call` returns the seconds and the plugin of the longest call since it was last asked."""
        self._histogram = families.histograms(
            "event_loop_lag_seconds",
            "Delay of a timer of the event loop, ten times a second: requests that arrive meanwhile wait as long.",
            _BUCKETS,
        ).labels()
        self._slowest_call = slowest_call

    async def follow(self, log_seconds: float) -> None:
        """Measure until cancelled; log delays of `log_seconds` and more, none for 0, one in ten seconds at most."""
        loop = asyncio.get_running_loop()
        next_line_at, unlogged = 0.0, 0
        while True:
            due = loop.time() + _INTERVAL_SECONDS
            await asyncio.sleep(_INTERVAL_SECONDS)
            lag = max(loop.time() - due, 0.0)
            self._histogram.observe(lag)
            in_plugin, plugin = self._slowest_call()
            if not log_seconds or lag < log_seconds:
                continue
            if loop.time() < next_line_at:
                unlogged += 1
                continue
            named = {"plugin": plugin, "plugin_seconds": round(in_plugin, 4)} if in_plugin > lag * _MOST_OF_IT else {}
            more = {"more_since_last_line": unlogged} if unlogged else {}
            _log.warning("event loop delayed", seconds=round(lag, 4), **named, **more)
            next_line_at, unlogged = loop.time() + _SECONDS_BETWEEN_LINES, 0
