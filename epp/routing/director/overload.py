# SPDX-License-Identifier: Apache-2.0
"""Requests in front of a full pool: refused by priority where there are no queues, or queued and dispatched."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from epp.admission.flow_control import FlowControl
from epp.framework import Parameters
from epp.framework.arrays import Floats
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.flow_control import SaturationDetector, saturation_of
from epp.framework.load import expected_load
from epp.framework.refusals import SheddableDroppedError
from epp.framework.request import Request
from epp.framework.snapshot import KV_USAGE, WAITING
from epp.routing.datastore import Datastore

_FULL_QUEUE = 5.0
"""Requests in an engine's queue at which it is full: the default of `utilization-detector`."""
_FULL_KV_USAGE = 0.8
"""Share of an engine's KV cache at which it is full, likewise."""
_LONGEST_SECONDS = 0.05
"""Longest time between two looks at the queues: known load of endpoints ages."""


class UsualDetector(SaturationDetector[Parameters]):
    """The detector of a configuration that names none: `utilization-detector` without a limit of age.

    Unknown or old numbers do not make an endpoint full, as in llm-d-router: a pool without metrics pages, or with slow
    ones, serves sheddable requests.
    """

    def __init__(self) -> None:
        super().__init__(name="usual-detector")

    def fullness(self, candidates: Candidates) -> Floats:
        """Return the larger of `waiting / 5` and `kv_usage / 0.8`; unknown values are estimated from own requests."""
        with np.errstate(over="ignore"):  # pages can claim any number
            fullest: Floats = np.maximum(
                expected_load(candidates, WAITING) / _FULL_QUEUE, expected_load(candidates, KV_USAGE) / _FULL_KV_USAGE
            )
        return fullest

    def saturation(self, candidates: Candidates) -> float:
        """Return the mean."""
        with np.errstate(over="ignore"):
            return super().saturation(candidates)


def shed(request: Request, candidates: Candidates, detector: SaturationDetector[Any]) -> None:
    """Raise SheddableDroppedError for a request of negative priority while the pool is saturated."""
    if request.priority < 0 and saturation_of(detector, candidates).effective >= 1.0:
        raise SheddableDroppedError


class QueueStatus(msgspec.Struct, frozen=True):
    """Waiting requests at one moment."""

    requests: int = 0
    size_bytes: int = 0
    """Of their bodies."""
    since: float | None = None
    """Arrival of the oldest one, in seconds on the clock; None for empty queues."""


_NOBODY = QueueStatus()


class Dispatcher:
    """Dispatches queued requests whenever there may be room, as long as requests wait."""

    def __init__(self, store: Datastore, clock: Clock, current: Callable[[], FlowControl | None]) -> None:
        self._store = store
        self._clock = clock
        self._current = current
        self._timer: asyncio.TimerHandle | None = None
        self._is_soon = False
        """Whether the timer is for the next iteration."""
        self.latest = _NOBODY
        """Status at the last look; at most 50 ms old, unless the event loop is late."""

    def arm(self) -> None:
        """Start, unless started; look in the next loop iteration if flow control is behind."""
        if self._timer is None:
            self._wait()
        flow = self._current()
        if flow is not None and flow.is_behind and not self._is_soon:
            self.on_update()

    def _wait(self) -> None:
        flow = self._current()
        if flow is None or not flow.queues.requests:
            self._timer = None
            self.latest = _NOBODY
            return
        queues = flow.queues
        oldest = [band.oldest.queued.enqueued_at for band in queues.bands.values() if band.oldest is not None]
        self.latest = QueueStatus(queues.requests, queues.size_bytes, min(oldest, default=None))
        deadline = flow.next_deadline()
        seconds = _LONGEST_SECONDS if deadline is None else min(_LONGEST_SECONDS, deadline - self._clock.now())
        self._store.call_on_news(self.on_update)
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._look)

    def on_update(self) -> None:
        """Look in the next iteration of the event loop, once for all changes of this one."""
        if self._timer is not None:
            self._timer.cancel()
            self._look_soon()

    def _look_soon(self) -> None:
        self._is_soon = True
        self._timer = asyncio.get_running_loop().call_later(0, self._look)

    def _look(self) -> None:
        flow, is_soon, self._is_soon = self._current(), False, False
        try:
            if flow is not None:
                flow.pool_changed(has_endpoints=bool(len(self._store.snapshot().available)))
                is_soon = flow.dispatch()
        finally:  # the event loop logs the error, and other requests still wait
            if self._timer is not None:  # it may have been set meanwhile
                self._timer.cancel()
            if is_soon:
                self._look_soon()
            else:
                self._wait()
