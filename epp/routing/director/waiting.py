# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for an admitter, a quota, or room at an endpoint, or are refused at a full pool."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import msgspec
import numpy as np

from epp.admission.flow_control.control import FlowControl
from epp.admission.flow_control.settings import QueuedRequest
from epp.framework import Parameters
from epp.framework.arrays import Floats, Mask
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.errors import RequestError
from epp.framework.flow_control import SaturationDetector, saturation_of
from epp.framework.load import expected_load
from epp.framework.quotas import Blocked
from epp.framework.refusals import SheddableDroppedError
from epp.framework.request import Request
from epp.framework.snapshot import KV_USAGE, WAITING
from epp.routing.datastore import Datastore
from epp.routing.director.incoming_request import IncomingRequest
from epp.routing.director.router import BlockedError, NeedsFullEndpointError, QueueDirective, Router
from epp.routing.director.routing import Cause, Routing

_FULL_QUEUE = 5.0
"""Requests in an engine's queue at which it is full: the default of `utilization-detector`."""
_FULL_KV_USAGE = 0.8
"""Share of an engine's KV cache at which it is full: the default of `utilization-detector`."""
_LONGEST_SECONDS = 0.05
"""Longest time between two dispatches, since the known load of endpoints ages."""


class UsualDetector(SaturationDetector[Parameters]):
    """The default detector of a configuration: `utilization-detector` without a limit of age.

    As in llm-d-router, unknown or old numbers do not make an endpoint full, so that a pool with slow or missing metrics
    pages serves sheddable requests.
    """

    def __init__(self) -> None:
        super().__init__(name="usual-detector")

    def fullness(self, candidates: Candidates) -> Floats:
        """Return the larger of `waiting / 5` and `kv_usage / 0.8`; unknown values are estimated from own requests."""
        with np.errstate(over="ignore"):  # metrics pages can report any number
            fullest: Floats = np.maximum(
                expected_load(candidates, WAITING) / _FULL_QUEUE, expected_load(candidates, KV_USAGE) / _FULL_KV_USAGE
            )
        return fullest

    def saturation(self, candidates: Candidates) -> float:
        with np.errstate(over="ignore"):
            return super().saturation(candidates)


def shed(request: Request, candidates: Candidates, detector: SaturationDetector[Any]) -> None:
    """Raise SheddableDroppedError for a request of negative priority while the pool is saturated."""
    if request.priority < 0 and saturation_of(detector, candidates).effective >= 1.0:
        raise SheddableDroppedError


class QueueStatus(msgspec.Struct, frozen=True):
    requests: int = 0
    size_bytes: int = 0
    since: float | None = None
    """Arrival of the oldest request, in seconds on the clock; None for empty queues."""


_EMPTY = QueueStatus()


class Dispatcher:
    """Dispatches queued requests whenever there may be room."""

    def __init__(self, store: Datastore, clock: Clock, current: Callable[[], FlowControl | None]) -> None:
        self._store = store
        self._clock = clock
        self._current = current
        self._timer: asyncio.TimerHandle | None = None
        self._is_soon = False
        """Whether the timer is for the next iteration."""
        self.latest = _EMPTY
        """Status after the last dispatch; at most 50 ms old, unless the event loop is late."""

    def arm(self) -> None:
        """Start, unless started; dispatch in the next loop iteration if flow control is behind."""
        if self._timer is None:
            self._wait()
        flow = self._current()
        if flow is not None and flow.is_behind and not self._is_soon:
            self.on_update()

    def _wait(self) -> None:
        flow = self._current()
        if flow is None or not flow.queues.requests:
            self._timer = None
            self.latest = _EMPTY
            return
        queues = flow.queues
        oldest = [band.oldest.queued.enqueued_at for band in queues.bands.values() if band.oldest is not None]
        self.latest = QueueStatus(queues.requests, queues.size_bytes, min(oldest, default=None))
        deadline = flow.next_deadline()
        seconds = _LONGEST_SECONDS if deadline is None else min(_LONGEST_SECONDS, deadline - self._clock.now())
        self._store.call_on_release(self.on_update)
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._run)

    def on_update(self) -> None:
        """Dispatch in the next iteration of the event loop, once for all changes of this one."""
        if self._timer is not None:
            self._timer.cancel()
            self._run_soon()

    def _run_soon(self) -> None:
        self._is_soon = True
        self._timer = asyncio.get_running_loop().call_later(0, self._run)

    def _run(self) -> None:
        flow, is_soon, self._is_soon = self._current(), False, False
        try:
            if flow is not None:
                flow.pool_changed(has_endpoints=bool(len(self._store.snapshot().available)))
                is_soon = flow.dispatch()
        finally:  # also after an error, which the event loop logs, since other requests still wait
            if self._timer is not None:  # it may have been set in the meantime
                self._timer.cancel()
            if is_soon:
                self._run_soon()
            else:
                self._wait()


class WaitingRequest(QueuedRequest):
    """A request that waits for room, or may have to."""

    def __init__(self, incoming: IncomingRequest, router: Router) -> None:
        self.request = incoming.request
        self.is_restricted = incoming.request.subset is not None
        self.incoming = incoming
        self.outcome: Routing | QueueDirective | Exception | None = None
        """None while the request waits, and after its refusal was raised."""
        self._router = router
        self._settled: asyncio.Future[None] | None = None

    def candidates(self) -> Candidates:
        return self._router.candidates(self.incoming)

    def fitting(self) -> Candidates:
        return self._router.fitting(self.incoming)

    def blocked(self) -> Blocked | None:
        """Return the quota limit that it waits for; None without one, and if it would be refused instead."""
        blocked = self._router.blocked(self.incoming)
        return blocked if blocked is not None and blocked.waits else None

    def preempt(self) -> bool:
        return self._router.preempt(self.incoming)

    def route(self, candidates: Candidates, room: Mask) -> bool | Blocked:
        """Route the request, or settle it with the error of the attempt."""
        try:
            outcome = self._router.route_with_room(self.incoming, candidates, room)
        except NeedsFullEndpointError:
            return False
        except BlockedError as error:
            if error.blocked.waits:
                return error.blocked
            self._settle(error.blocked.error())
        except Exception as error:  # noqa: BLE001  raised to the task that awaits the request
            self._settle(error)
        else:
            self._settle(outcome)
        return True

    def refuse(self, error: RequestError) -> None:
        self._settle(error)

    async def end(self) -> Routing | QueueDirective:
        """Wait for the outcome and return it; raises the error that ended the wait."""
        if self.outcome is None:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled
        return self.result()

    def result(self) -> Routing | QueueDirective:
        """Return the outcome, once; raises the error that ended the wait."""
        outcome = self.outcome
        assert outcome is not None  # noqa: S101  settled
        if not isinstance(outcome, Exception):
            return outcome
        self.outcome = None
        try:
            raise outcome
        finally:
            del outcome  # avoids a reference cycle through its traceback

    def _settle(self, outcome: Routing | QueueDirective | Exception) -> None:
        self.outcome = outcome
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A held request: await `settle`, then call `routing` for the outcome; or call `abandon`."""

    _proceed: Callable[[], Awaitable[Routing]]
    """Cancelled if the request is abandoned after `settle`."""
    _abandoned: Callable[[], None] = lambda: None
    """Called if the request is abandoned before `settle`."""
    _: KW_ONLY
    longest_seconds: float = 0.0
    """Longest wait for room; infinite for no limit, 0 if it does not wait for room."""
    _has_begun: bool = field(default=False, init=False)
    _outcome: Routing | Exception | None = field(default=None, init=False)

    async def settle(self) -> None:
        """Wait until the request is routed, refused or failed; `routing` raises the error, if any."""
        self._has_begun = True
        try:
            self._outcome = await self._proceed()
        except Exception as error:  # noqa: BLE001  raised by `routing`
            self._outcome = error

    def abandon(self) -> None:
        """Abandon the request; a running `settle` ends by cancellation instead."""
        if not self._has_begun:
            self._has_begun = True
            self._abandoned()
        elif isinstance(self._outcome, Routing):  # settled, but not used
            self._outcome.complete(Cause.CLIENT_DISCONNECT)

    def routing(self) -> Routing:
        """Return the routing; raises the error of the request, once, or RuntimeError before it is settled."""
        outcome = self._outcome
        if outcome is None:
            raise RuntimeError("a held request was not awaited")
        if isinstance(outcome, Routing):
            return outcome
        self._outcome = None
        try:
            raise outcome
        finally:
            del outcome  # avoids a reference cycle through its traceback
