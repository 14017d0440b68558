# SPDX-License-Identifier: Apache-2.0
"""Errors of requests that may not wait, or wait no longer, with the time after which their clients may come back."""

from epp.admission.flow_control.band import Waiting
from epp.admission.flow_control.drain import DrainRate, retry_after
from epp.admission.flow_control.outcomes import Outcome
from epp.admission.flow_control.queues import Queues
from epp.framework.clock import Clock
from epp.framework.errors import (
    LATER_SECONDS,
    SOON_SECONDS,
    EvictedError,
    QueueFullError,
    QueueFullNoEndpointsError,
    QueueTimeoutError,
    QueueTimeoutNoEndpointsError,
    RequestError,
    TargetMissedError,
)
from epp.framework.request import Request


class Refusals:
    """Goes by what waits, and by how fast that goes."""

    __slots__ = ("_clock", "_drain", "queues")

    def __init__(self, queues: Queues, drain: DrainRate, clock: Clock) -> None:
        self.queues = queues
        """What waits."""
        self._drain = drain
        self._clock = clock

    def full(self, priority: int, flow: str, *, has_endpoints: bool) -> RequestError:
        """Return the error of a request for which the queues have no place."""
        if not has_endpoints:
            return QueueFullNoEndpointsError(f"{self.queues.requests} requests wait")
        error = QueueFullError("the queue for a model server is full: retry later")
        error.retry_after_seconds = self.retry_after(priority, SOON_SECONDS, flow)
        return error

    def gave_way(self, waiting: Waiting) -> RequestError:
        """Return the error of a request whose place goes to one of higher priority."""
        error = EvictedError("evicted-queue-pressure")
        error.retry_after_seconds = self.retry_after(waiting.priority, LATER_SECONDS, waiting.flow)
        return error

    def timed_out(self, waiting: Waiting, *, has_endpoints: bool) -> tuple[RequestError, Outcome]:
        """Return the error of a request that has waited too long, and what that is called."""
        waited = f"{self._clock.now() - waiting.queued.enqueued_at:.0f} s"
        blocked = self.queues.why_held(waiting)
        if blocked is not None:
            blocked = waiting.entrant.blocked() or blocked  # as things are by now
            return blocked.error(), Outcome.EVICTED_TTL
        if not has_endpoints:
            return QueueTimeoutNoEndpointsError(waited), Outcome.EVICTED_NO_ENDPOINTS
        error = QueueTimeoutError(waited)
        error.retry_after_seconds = self.retry_after(waiting.priority, SOON_SECONDS, waiting.flow)
        return error, Outcome.EVICTED_TTL

    def missed(self, waiting: Waiting, *, has_endpoints: bool) -> tuple[RequestError, Outcome]:
        """Return the error of a request that was to have its first token by now, and what that is called."""
        waited = f"{self._clock.now() - waiting.queued.enqueued_at:.1f} s"
        if not has_endpoints:
            return QueueTimeoutNoEndpointsError(waited), Outcome.EVICTED_NO_ENDPOINTS
        error = TargetMissedError(f"it has waited {waited} for a model server")
        error.retry_after_seconds = self.retry_after(waiting.priority, SOON_SECONDS, waiting.flow)
        return error, Outcome.EVICTED_TTL

    def too_late(self, request: Request, wait: float) -> RequestError:
        """Return the error of a request that would have to wait for longer than it may."""
        error = TargetMissedError(f"it would have to wait {wait:.1f} s for a model server")
        error.retry_after_seconds = self.retry_after(request.priority, SOON_SECONDS)
        return error

    def retry_after(self, priority: int, otherwise: int, flow: str | None = None) -> int:
        """Return after how many seconds what waits at a priority and above will have gone, or waited too long.

        Where the flow of a request has its turns, that is what waits of the flow.
        """
        queues, now = self.queues, self._clock.now()
        own = None if flow is None else queues.in_turn(priority, flow)
        seconds = None if flow is None or own is None else self._drain.seconds_of(flow, own, now, priority)
        if seconds is None:
            seconds = self._drain.seconds_for(queues.at_least(priority), now, priority)
        if seconds is not None:
            seconds = min(seconds, queues.settings(priority).ttl_seconds)
        return retry_after(seconds, otherwise=otherwise)
