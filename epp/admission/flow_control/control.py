# SPDX-License-Identifier: Apache-2.0
"""Flow control without an event loop: queues requests while endpoints have no room, and dispatches them in order."""

from collections.abc import Iterator, Sequence
from math import inf
from time import perf_counter

import numpy as np

from epp.admission.flow_control.bands import Bands
from epp.admission.flow_control.in_flight_eviction import Evictable, Evictions
from epp.admission.flow_control.retry_after import DrainRate, Refusals
from epp.admission.flow_control.settings import FlowControlSettings, Outcome, QueuedRequest, due_at
from epp.framework.arrays import Mask
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.errors import RequestError
from epp.framework.flow_control import Queued, SortedEntries
from epp.framework.quotas import Blocked
from epp.framework.refusals import LATER_SECONDS, ShuttingDownError
from epp.framework.request import Request

# Limits of one dispatch, which blocks the event loop for about a millisecond:
_RETRIED = 4
"""Set-aside requests of a band that are tried again; each attempt costs as much as a routing decision."""
_SET_ASIDE = 16
_DISPATCHED = 32
_REFUSED = 32
_REQUEUED = 128
"""Requests that are queued again in another order, and flows that are resumed."""


class FlowObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def queued(self, request: Request) -> None:
        """Record that a request was queued."""

    def left(self, request: Request, outcome: Outcome, seconds: float) -> None:
        """Record the outcome of a request, and its time in a queue."""

    def enqueued(self, request: Request, seconds: float, *, waits: bool) -> None:
        """Record the time taken to queue or refuse a request."""

    def cycled(self, seconds: float) -> None:
        """Record the duration of a dispatch."""


class FlowControl:
    """Flow control of one pool; its settings may change while requests are queued."""

    def __init__(
        self,
        settings: FlowControlSettings,
        clock: Clock,
        *,
        observer: FlowObserver | None = None,
        evictions: Evictions | None = None,
    ) -> None:
        self.settings = settings
        """Detector, policies and limits in effect."""
        self._evictions = Evictions(clock) if evictions is None else evictions
        self._evictions.settings = settings.eviction
        self._clock = clock
        self._observer = observer or FlowObserver()
        self.queues = Bands(settings.of, settings.limits)
        self._queued: set[QueuedRequest] = set()
        self._has_endpoints = True
        self._changed_at = -inf
        """Time at which the pool last became empty or got endpoints; times to live restart at that time."""
        self._targets: SortedEntries[QueuedRequest] = SortedEntries()
        """Queued requests with a target for the first token, by the time at which it is due."""
        self._numbers = 0
        self.drain = DrainRate()
        self._refusals = Refusals(self.queues, self.drain, clock)
        self._is_dispatching = False
        self.is_behind = False
        """Whether the last dispatch left work that can be done now."""
        self._surplus_priority: int | None = None
        """Priority of a request that was queued before enough requests of lower priority could be evicted for it."""
        self._is_stopped = False
        self.has_ended = False
        """Whether queueing is switched off, and the queues are being emptied."""

    def enter(self, entering: QueuedRequest, candidates: Candidates) -> Mask | None:
        """Return the candidates with room if the request need not wait; else queue it and return None.

        A queued request may be routed or refused before this returns. Raises a RequestError if it cannot be queued.
        """
        request = entering.request
        if self.queues.has_turn(request.fairness_id):
            room = self.room(candidates, request.priority)
            if room.any():
                self._observer.left(request, Outcome.DISPATCHED, 0.0)
                return room
        self.wait(entering, has_endpoints=bool(len(candidates)))
        if not self.is_behind:  # if it is, the next dispatch is due anyway, and many requests may arrive before it
            self.dispatch()
        return None

    def wait(self, entering: QueuedRequest, *, has_endpoints: bool = True) -> None:
        """Queue a request; raises a RequestError if it cannot be queued."""
        started = perf_counter()
        try:
            self._enqueue(entering, has_endpoints=has_endpoints)
        finally:
            self._observer.enqueued(entering.request, perf_counter() - started, waits=entering in self._queued)

    def _enqueue(self, entering: QueuedRequest, *, has_endpoints: bool) -> None:
        request, now, queues = entering.request, self._clock.now(), self.queues
        if self._is_stopped:
            self._observer.left(request, Outcome.REJECTED_OTHER, 0.0)
            raise ShuttingDownError("requests that would have to wait are refused")
        self._check_target(request, now)
        self._make_room(request, has_endpoints=has_endpoints)
        self.drain.start(now)
        self.drain.arrived(now, request.priority)
        self._numbers += 1
        entering.queued = Queued(request, self._numbers, now, now + queues.settings(request.priority).ttl_seconds)
        queues.add(entering)
        self._queued.add(entering)
        if (due := due_at(request)) < inf:
            self._targets.push(due, entering.number, entering)
        self._observer.queued(request)

    def leave(self, queued: QueuedRequest) -> None:
        """Remove a request whose client has disconnected; no effect if it is not queued."""
        if queued in self._queued:
            self._remove(queued, Outcome.EVICTED_CONTEXT_CANCELLED)

    def room(self, candidates: Candidates, priority: int) -> Mask:
        room: Mask = self.settings.detector.fullness(candidates) < self.settings.ceiling(priority, candidates)
        return room

    def dispatch(self) -> bool:
        """Dispatch requests while there is room; refuse requests that have expired or missed their target.

        Returns whether there may be more to do now; the caller should let other tasks run first.
        """
        if self._is_dispatching:  # for example, if a request leaves while it is routed
            return False
        self._is_dispatching, started = True, perf_counter()
        try:
            self.is_behind = self._dispatch_some()
            return self.is_behind
        finally:
            self._is_dispatching = False
            self._observer.cycled(perf_counter() - started)

    def _dispatch_some(self) -> bool:
        """Do a limited part of the work; return whether there may be more."""
        if self._is_stopped:
            return self._refuse_some()
        if self.has_ended:
            return self._release_some()
        is_behind = self.queues.apply_some(_REQUEUED) | self._expire_some()
        is_behind |= self._evict_surplus()
        is_behind |= self.queues.resume_due(self._clock.now(), _REQUEUED)
        dispatched = 0
        for priority in self.queues.priorities:
            found = self._dispatch_band(priority, _DISPATCHED - dispatched)
            if found is None:
                break
            dispatched += found
            if dispatched >= _DISPATCHED:
                return True
        self._evict_at_endpoint()
        return is_behind

    def next_deadline(self) -> float | None:
        """Return the time of the next expiry or resumption of a flow, in seconds on the clock; None without one."""
        ends = [self._expires_at(band.oldest) for band in self.queues.bands.values() if band.oldest is not None]
        resumes = [band.throttled.next_end for band in self.queues.bands.values()]
        due = self._targets.first()
        return min(*ends, *resumes, inf if due is None else due[0]) if ends else None

    def resume(self, flow: str) -> None:
        self.queues.resume(flow)

    def pool_changed(self, *, has_endpoints: bool) -> None:
        if has_endpoints != self._has_endpoints:
            self._has_endpoints, self._changed_at = has_endpoints, self._clock.now()

    def use(self, settings: FlowControlSettings) -> None:
        """Apply other settings, in several dispatches; queued requests keep their position in the order of arrival."""
        self.settings, self.has_ended = settings, False
        self._evictions.settings = settings.eviction
        self.queues.use(settings.of, settings.limits)
        self.dispatch()

    def end(self) -> None:
        """Stop queueing; this and the next dispatches route queued requests even without room."""
        self.has_ended = True
        self.dispatch()

    def stop(self) -> None:
        """Shut down: this and the next dispatches refuse queued requests, and no more are queued."""
        self._is_stopped = True
        self.dispatch()

    def _refuse_some(self) -> bool:
        for queued in self._some(_REFUSED):
            self._refuse(queued, ShuttingDownError("requests that wait are refused"), Outcome.EVICTED_OTHER)
        return bool(self.queues.requests)

    def _release_some(self) -> bool:
        """Route some requests without regard to room; return whether there are more."""
        for queued in self._some(_DISPATCHED):
            candidates = queued.candidates()
            routed = queued.route(candidates, np.ones(len(candidates), dtype=np.bool_))
            if isinstance(routed, Blocked):
                self._refuse(queued, routed.error(), Outcome.EVICTED_OTHER)
            else:
                self._remove(queued, Outcome.DISPATCHED)
        return bool(self.queues.requests)

    def _some(self, most: int) -> Iterator[QueuedRequest]:
        """Yield at most `most` requests, the oldest of the highest priority first; the caller removes each."""
        queues = self.queues
        for _ in range(min(most, queues.requests)):
            if (queued := next(iter(queues), None)) is None:
                return
            yield queued

    def _dispatch_band(self, priority: int, most: int) -> int | None:
        """Dispatch requests of a priority, and throttle flows; return the number of both.

        Returns None if the pool has no room; lower priorities then have no room either.
        """
        band = self.queues.bands.get(priority)
        if band is None:
            return 0
        done = set_aside = 0
        for retried in band.some_set_aside(min(most, _RETRIED)):
            if retried.blocked() is None and self._route(retried, retried.candidates()) is True:
                done += 1
            else:
                band.set_aside(retried)
        while done < most and set_aside < _SET_ASIDE and (queued := band.first) is not None:
            blocked = queued.blocked()
            if blocked is not None:
                band.throttle(queued.flow, blocked)
                done += 1
                continue
            candidates = queued.candidates()
            room = self.room(candidates, priority)
            if not room.any() and not queued.is_restricted:
                return None
            routed = self._route(queued, candidates, room)
            if routed is False:
                band.set_aside(queued)
                set_aside += 1
                continue
            if isinstance(routed, Blocked):
                band.throttle(queued.flow, routed)
            done += 1
        return done

    def _route(self, queued: QueuedRequest, candidates: Candidates, room: Mask | None = None) -> bool | Blocked:
        """Route a request if there is room for it; return the same as `QueuedRequest.route`."""
        room = self.room(candidates, queued.priority) if room is None else room
        routed = room.any() and queued.route(candidates, room)
        if routed is not True:
            return routed if isinstance(routed, Blocked) else False
        self.drain.dispatched(self._clock.now(), queued.priority, queued.flow)
        self._remove(queued, Outcome.DISPATCHED, dispatched=not queued.is_set_aside)
        return True

    def _evict_at_endpoint(self) -> None:
        """Evict requests in flight for a queued request of higher priority, if eviction is enabled and due."""
        tried = 0
        for priority in self.queues.priorities:
            if not self._evictions.may_decide(priority):
                break  # nor at lower priorities
            band, endable = self.queues.bands[priority], self._evictions.endable(priority)
            first = [] if band.first is None else [band.first]
            for queued in (*first, *band.some_set_aside(_RETRIED)):
                if self._evict_for(queued, endable):
                    return
                tried += 1
            for queued in band.some_throttled(_RETRIED):
                if queued.preempt():
                    return
                tried += 1
            if tried >= _RETRIED:
                break
        if tried:
            self._evictions.postpone()

    def _evict_for(self, queued: QueuedRequest, endable: Sequence[Evictable]) -> bool:
        candidates, settings = queued.fitting(), self.settings
        if not len(candidates):
            return False
        fullness = settings.detector.fullness(candidates)
        ceiling = settings.ceiling(queued.priority, candidates)
        retry_after_seconds = self._refusals.retry_after(self.queues.priorities[-1], LATER_SECONDS)
        issued = self._evictions.make_room(
            endable,
            candidates,
            fullness,
            ceiling,
            priority=queued.priority,
            retry_after_seconds=retry_after_seconds,
        )
        return issued > 0

    def _check_target(self, request: Request, now: float) -> None:
        """Refuse a request that would miss its target for the first token in the queue."""
        left = due_at(request) - now
        if left == inf:
            return
        ahead = self.queues.ahead_of(request.priority, request.fairness_id)
        wait = self.drain.seconds_for(ahead, now, request.priority)
        if wait is not None and wait > left:
            self._observer.left(request, Outcome.REJECTED_OTHER, 0.0)
            raise self._refusals.too_late(request, wait)

    def _make_room(self, request: Request, *, has_endpoints: bool) -> None:
        """Evict queued requests for a new one; raises a RequestError if that is not possible."""
        queues, priority, size_bytes = self.queues, request.priority, request.size_bytes
        victims = queues.victims(priority, request.fairness_id, size_bytes)
        if self._surplus_priority is not None and queues.next_victim(priority, 1, size_bytes) is not None:
            victims = None  # requests are still being evicted for another request
        if victims is None:
            outcome = Outcome.REJECTED_CAPACITY if has_endpoints else Outcome.REJECTED_NO_ENDPOINTS
            self._observer.left(request, outcome, 0.0)
            raise self._refusals.full(priority, request.fairness_id, has_endpoints=has_endpoints)
        for victim in victims:
            error = self._refusals.full(priority, victim.flow, has_endpoints=has_endpoints)
            self._refuse(victim, error, Outcome.EVICTED_OTHER)
        if self._evict_lower(priority, 1, size_bytes):
            self._surplus_priority = priority  # a long body may replace thousands of short ones

    def _evict_lower(self, priority: int, requests: int, size_bytes: int) -> bool:
        """Evict queued requests of lower priority until this amount fits; return whether more must be evicted."""
        for _ in range(_REFUSED):
            lower = self.queues.next_victim(priority, requests, size_bytes)
            if lower is None:
                return False
            self._refuse(lower, self._refusals.evicted(lower), Outcome.EVICTED_OTHER)
        return self.queues.next_victim(priority, requests, size_bytes) is not None

    def _evict_surplus(self) -> bool:
        """Evict some requests for one that was queued before there was room; return whether there are more."""
        if self._surplus_priority is not None and not self._evict_lower(self._surplus_priority, 0, 0):
            self._surplus_priority = None
        return self._surplus_priority is not None

    def _expire_some(self) -> bool:
        """Refuse some of the requests that expired or missed their target; return whether there may be more."""
        now, has_endpoints, most = self._clock.now(), self._has_endpoints, _REFUSED
        for priority in self.queues.priorities:
            band = self.queues.bands[priority]
            while (oldest := band.oldest) is not None and self._expires_at(oldest) <= now:
                if not most:
                    return True
                self._refuse(oldest, *self._refusals.expired(oldest, has_endpoints=has_endpoints))
                most -= 1
        while (due := self._targets.first()) is not None and due[0] <= now:
            if not most:
                return True
            self._refuse(due[1], *self._refusals.missed(due[1], has_endpoints=has_endpoints))
            most -= 1
        return False

    def _expires_at(self, queued: QueuedRequest) -> float:
        """Return the time at which a request expires; within one band, later arrivals expire later."""
        ttl = self.queues.settings(queued.priority).ttl_seconds
        seconds = ttl if self._has_endpoints else self.settings.no_endpoint_ttl_seconds
        return max(queued.queued.enqueued_at, self._changed_at) + seconds

    def _refuse(self, queued: QueuedRequest, error: RequestError, outcome: Outcome) -> None:
        self._remove(queued, outcome)
        queued.refuse(error)

    def _remove(self, queued: QueuedRequest, outcome: Outcome, *, dispatched: bool = False) -> None:
        self._queued.remove(queued)
        self._targets.discard(queued.number)
        self.queues.remove(queued, dispatched=dispatched)
        now = self._clock.now()
        if not self.queues.requests:
            self.drain.stop(now)
        self._observer.left(queued.request, outcome, now - queued.queued.enqueued_at)
