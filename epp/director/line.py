# SPDX-License-Identifier: Apache-2.0
"""Requests in front of a full pool: what keeps their queues moving, and what each of them waits for."""

import asyncio
from collections.abc import Callable

from epp.datastore import Datastore
from epp.flow_control import FlowControl
from epp.framework.clock import Clock

_LONGEST_SECONDS = 0.05
"""Time after which queues are looked at although nothing was heard: what is known of endpoints ages."""


class LineDriver:
    """Looks at the queues whenever there may be room, for as long as requests wait."""

    def __init__(self, store: Datastore, clock: Clock, current: Callable[[], FlowControl | None]) -> None:
        self._store = store
        self._clock = clock
        self._current = current
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        """Begin, unless it has begun."""
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        flow = self._current()
        if flow is None or not flow.queues.requests:
            self._timer = None
            return
        deadline = flow.next_deadline()
        seconds = _LONGEST_SECONDS if deadline is None else min(_LONGEST_SECONDS, deadline - self._clock.now())
        self._store.call_on_news(self._hear)
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._look)

    def _hear(self) -> None:
        """Look in the next turn of the event loop: much may change in this one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(0, self._look)

    def _look(self) -> None:
        flow = self._current()
        if flow is not None:
            flow.pool_changed(has_endpoints=bool(len(self._store.snapshot().available)))
            if flow.dispatch():
                self._timer = asyncio.get_running_loop().call_later(0, self._look)
                return
        self._wait()
