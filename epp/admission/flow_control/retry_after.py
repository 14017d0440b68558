# SPDX-License-Identifier: Apache-2.0
"""Refusals of requests by flow control, with `retry-after` computed from the rate of dispatches."""

from collections import Counter, deque
from math import ceil

from epp.admission.flow_control.bands import Bands
from epp.admission.flow_control.settings import Outcome, QueuedRequest
from epp.framework.clock import Clock
from epp.framework.errors import RequestError
from epp.framework.refusals import (
    LATER_SECONDS,
    SOON_SECONDS,
    EvictedError,
    QueueFullError,
    QueueFullNoEndpointsError,
    QueueTimeoutError,
    QueueTimeoutNoEndpointsError,
    TargetMissedError,
)
from epp.framework.request import Request

WINDOW_SECONDS = 10.0
LONGEST_SECONDS = 300
_FLOW_WINDOW_SECONDS = 30.0
"""Time over which the dispatches of a single flow are counted, which are few."""
_MOST = 4096
_LEAST = 16
"""Dispatches that count regardless of their age, so that a low rate can be measured."""
_LEAST_OF_FLOW = 4
"""Dispatches of a flow from which its own rate is computed."""
_LEAST_SHARE = 1 / 32
"""Share of the rate that a priority is assumed to get, regardless of arrivals of higher priority."""


class _Events:
    """Times, priorities and flows of the latest events."""

    __slots__ = ("_by_flow", "_by_priority", "_events")

    def __init__(self) -> None:
        self._events: deque[tuple[float, int, str]] = deque()
        self._by_priority: Counter[int] = Counter()
        self._by_flow: Counter[tuple[int, str]] = Counter()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def oldest(self) -> float:
        return self._events[0][0]

    def add(self, at: float, priority: int, flow: str = "") -> None:
        self._events.append((at, priority, flow))
        self._by_priority[priority] += 1
        self._by_flow[priority, flow] += 1
        if len(self._events) > _MOST:
            self._drop()

    def drop_before(self, at: float, least: int) -> None:
        while len(self._events) > least and self._events[0][0] < at:
            self._drop()

    def above(self, priority: int) -> int:
        return sum(count for each, count in self._by_priority.items() if each > priority)

    def of(self, priority: int, flow: str) -> int:
        return self._by_flow[priority, flow]

    def _drop(self) -> None:
        _, priority, flow = self._events.popleft()
        self._by_priority[priority] -= 1
        if not self._by_priority[priority]:
            del self._by_priority[priority]
        self._by_flow[priority, flow] -= 1
        if not self._by_flow[priority, flow]:
            del self._by_flow[priority, flow]


class DrainRate:
    """Rate of dispatches from the queues, over the last seconds in which any request was queued.

    Time with empty queues is ignored, since the rate then equals that of arrivals.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        """Time at which the first request was queued; None while the queues are empty."""
        self._before = 0.0
        """Seconds with queued requests before that time."""
        self._dispatches = _Events()
        self._by_flow = _Events()
        """Dispatches over a longer time, by flow."""
        self._arrivals = _Events()

    def start(self, now: float) -> None:
        if self._since is None:
            self._since = now

    def stop(self, now: float) -> None:
        self._before = self._at(now)
        self._since = None

    def arrived(self, now: float, priority: int) -> None:
        self._arrivals.add(self._at(now), priority)

    def dispatched(self, now: float, priority: int, flow: str = "") -> None:
        self._dispatches.add(self._at(now), priority)
        self._by_flow.add(self._at(now), priority, flow)

    def per_second(self, now: float) -> float:
        """Return the rate over the last ten seconds, or over the last few requests if they took longer."""
        at, dispatches = self._at(now), self._dispatches
        dispatches.drop_before(at - WINDOW_SECONDS, _LEAST)
        return len(dispatches) / max(at - self._start(at), 0.1) if dispatches else 0.0

    def seconds_for(self, requests: int, now: float, priority: int) -> float | None:
        """Return the time to dispatch a number of requests of this and higher priorities; None if unknown.

        Arrivals of higher priorities are assumed to continue at their recent rate, and are dispatched first.
        """
        rate = self.per_second(now)
        if not rate:
            return None
        at = self._at(now)
        start = self._start(at)
        self._arrivals.drop_before(start, 0)
        since = max(start, self._arrivals.oldest) if len(self._arrivals) == _MOST else start
        above = self._arrivals.above(priority) / max(at - since, 0.1)
        return requests / max(rate - above, rate * _LEAST_SHARE)

    def seconds_of(self, flow: str, requests: int, now: float, priority: int) -> float | None:
        """Return the time to dispatch a number of requests of a flow with a share of its own; None if unknown.

        The flow is assumed to keep its recent share of all dispatches.
        """
        rate, dispatches = self.per_second(now), self._by_flow
        dispatches.drop_before(self._at(now) - _FLOW_WINDOW_SECONDS, _LEAST)
        own = dispatches.of(priority, flow)
        return requests * len(dispatches) / (rate * own) if rate and own >= _LEAST_OF_FLOW else None

    def _at(self, now: float) -> float:
        return self._before + (0.0 if self._since is None else now - self._since)

    def _start(self, at: float) -> float:
        """Return the start of the time that the rate covers."""
        oldest = self._dispatches.oldest
        return oldest if len(self._dispatches) == _MOST else min(oldest, max(0.0, at - WINDOW_SECONDS))


def retry_after(seconds: float | None, *, otherwise: int) -> int:
    """Return whole seconds for a client, from 1 to 300; `otherwise` if the time is unknown."""
    return otherwise if seconds is None else max(1, min(LONGEST_SECONDS, ceil(seconds)))


class Refusals:
    """Errors of refused requests, with `retry-after` by the length of the queues and their drain rate."""

    def __init__(self, queues: Bands, drain: DrainRate, clock: Clock) -> None:
        self._queues = queues
        self._drain = drain
        self._clock = clock

    def full(self, priority: int, flow: str, *, has_endpoints: bool) -> RequestError:
        if not has_endpoints:
            return QueueFullNoEndpointsError(f"{self._queues.requests} requests wait")
        error = QueueFullError("the queue for a model server is full: retry later")
        return self._after_queue(error, priority, flow)

    def evicted(self, queued: QueuedRequest) -> RequestError:
        return self._after_queue(EvictedError("evicted-queue-pressure"), queued.priority, queued.flow, LATER_SECONDS)

    def expired(self, queued: QueuedRequest, *, has_endpoints: bool) -> tuple[RequestError, Outcome]:
        waited = f"{self._clock.now() - queued.queued.enqueued_at:.0f} s"
        throttled = self._queues.bands[queued.priority].throttled_by(queued)
        if throttled is not None:
            return (queued.blocked() or throttled).error(), Outcome.EVICTED_TTL  # if possible, with the current usage
        if not has_endpoints:
            return QueueTimeoutNoEndpointsError(waited), Outcome.EVICTED_NO_ENDPOINTS
        return self._after_queue(QueueTimeoutError(waited), queued.priority, queued.flow), Outcome.EVICTED_TTL

    def missed(self, queued: QueuedRequest, *, has_endpoints: bool) -> tuple[RequestError, Outcome]:
        waited = f"{self._clock.now() - queued.queued.enqueued_at:.1f} s"
        if not has_endpoints:
            return QueueTimeoutNoEndpointsError(waited), Outcome.EVICTED_NO_ENDPOINTS
        error = TargetMissedError(f"it has waited {waited} for a model server")
        return self._after_queue(error, queued.priority, queued.flow), Outcome.EVICTED_TTL

    def too_late(self, request: Request, wait: float) -> RequestError:
        """Return the error of a request that would wait in the queue for longer than its target allows."""
        error = TargetMissedError(f"it would have to wait {wait:.1f} s for a model server")
        return self._after_queue(error, request.priority, None)

    def _after_queue(
        self, error: RequestError, priority: int, flow: str | None, otherwise: int = SOON_SECONDS
    ) -> RequestError:
        error.retry_after_seconds = self.retry_after(priority, otherwise, flow)
        return error

    def retry_after(self, priority: int, otherwise: int, flow: str | None = None) -> int:
        """Return the seconds until the requests of this and higher priorities are dispatched or expire.

        Only the requests of `flow` count if flows have shares at this priority.
        """
        queues, now = self._queues, self._clock.now()
        band = queues.bands.get(priority)
        own = None if flow is None or band is None else band.queue_length(flow)
        seconds = None if flow is None or own is None else self._drain.seconds_of(flow, own, now, priority)
        if seconds is None:
            seconds = self._drain.seconds_for(queues.at_least(priority), now, priority)
        if seconds is not None:
            seconds = min(seconds, queues.settings(priority).ttl_seconds)
        return retry_after(seconds, otherwise=otherwise)
