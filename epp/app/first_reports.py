# SPDX-License-Identifier: Apache-2.0
"""The wait of a picker that starts for the first report of each endpoint."""

import asyncio

import structlog

from epp.pool.collectors import Collector

_LOOKS = 150
"""Looks for the first reports, 3 s together: a silent endpoint has failed after a second, and in a pool of thousands
the polls take their turns."""
_LOOK_SECONDS = 0.02

_log = structlog.get_logger()


class FirstReports:
    """Await `wait` once the polls have begun."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.awaited = ""
        """What is waited for, in words; may be read in any thread."""

    async def wait(self) -> None:
        """Wait until each endpoint has been asked for its load once, whatever came of it, but not long."""
        untried = self._collector.untried
        for _ in range(_LOOKS):  # not for a time, in which this program may have been busy with its own start
            if not untried:
                break
            self.awaited = f"first reports of endpoints: {untried} to come"
            await asyncio.sleep(_LOOK_SECONDS)
            untried = self._collector.untried
        self.awaited = ""
        if untried:
            _log.warning(
                "start without the first reports of all endpoints: the load of some is unknown", endpoints=untried
            )
