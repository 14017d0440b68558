# SPDX-License-Identifier: Apache-2.0
"""Decides which requests wait for room at an endpoint, and releases them in turn; has no event loop of its own."""

from math import inf
from time import perf_counter

import numpy as np

from epp.admission.flow_control.band import Waiting
from epp.admission.flow_control.drain import DrainRate
from epp.admission.flow_control.entrant import Entrant
from epp.admission.flow_control.eviction import Evictions
from epp.admission.flow_control.outcomes import Outcome
from epp.admission.flow_control.patience import Patience
from epp.admission.flow_control.queues import Queues
from epp.admission.flow_control.refusals import Refusals
from epp.admission.flow_control.settings import FlowControlSettings
from epp.admission.flow_control.targets import Targets, due_at
from epp.framework.arrays import Mask
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.errors import (
    LATER_SECONDS,
    RequestError,
    ShuttingDownError,
)
from epp.framework.flow_control import Queued
from epp.framework.quotas import Blocked
from epp.framework.request import Request

_TRIED_AGAIN = 4
"""Requests of a band that were set aside and are tried in a round, since each costs as much as a decision."""
_SET_ASIDE = 16
"""Requests of a band that are set aside in a round, likewise."""
_RELEASED = 32
"""Requests released in a round: others have their turn before the next."""
_REFUSED = 32
"""Requests refused in a round, likewise: with their answers, that takes a millisecond."""
_QUEUED_ANEW = 128
"""Requests queued in another order in a round, likewise."""


class FlowObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def queued(self, waiting: Waiting) -> None:
        """Record that a request begins to wait."""

    def left(self, request: Request, outcome: Outcome, seconds: float) -> None:
        """Record what became of a request, after so many seconds in a queue."""

    def enqueued(self, request: Request, seconds: float, *, waits: bool) -> None:
        """Record how long it took to put a request into its queue, or to find that it may not wait."""

    def cycled(self, seconds: float) -> None:
        """Record how long a look at the queues took."""


class FlowControl:
    """One for each pool; its settings may change while requests wait."""

    def __init__(
        self,
        settings: FlowControlSettings,
        clock: Clock,
        *,
        observer: FlowObserver | None = None,
        evictions: Evictions | None = None,
    ) -> None:
        self._settings = settings
        self._evictions = Evictions(clock) if evictions is None else evictions
        self._evictions.use(settings.eviction)
        self._clock = clock
        self._observer = observer or FlowObserver()
        self._queues = Queues(settings.of, settings.limits)
        self._waiting: dict[Entrant, Waiting] = {}
        self._targets = Targets()
        self._numbers = 0
        self._drain = DrainRate()
        self._refusals = Refusals(self._queues, self._drain, clock)
        self._patience = Patience()
        self._is_dispatching = False
        self._is_behind = False
        self._surplus_of: int | None = None
        """Priority of a request that came although the limits for all did not allow it yet."""
        self._is_stopped = False
        self._has_ended = False

    @property
    def settings(self) -> FlowControlSettings:
        """Detector, policies and limits in effect."""
        return self._settings

    @property
    def has_ended(self) -> bool:
        """Whether it holds no more requests, and lets those go that it has."""
        return self._has_ended

    @property
    def is_behind(self) -> bool:
        """Whether the last look left something to do at once."""
        return self._is_behind

    @property
    def queues(self) -> Queues:
        """What waits."""
        return self._queues

    @property
    def drain(self) -> DrainRate:
        """How fast the queues empty."""
        return self._drain

    def enter(self, entrant: Entrant, candidates: Candidates) -> Mask | None:
        """Return which candidates have room, for a request that may go at once; None for one that waits from now on.

        One that waits may have been told to go before this returns. Raises a RequestError where it can neither go nor
        wait.
        """
        request = entrant.request
        queues = self._queues
        if not queues.requests or (queues.all_held and not queues.holds(request.fairness_id)):
            room = self.room(candidates, request.priority)
            if room.any():
                self._observer.left(request, Outcome.DISPATCHED, 0.0)
                return room
        self.wait(entrant, has_endpoints=bool(len(candidates)))
        if not self._is_behind:  # the next look is due anyhow, and this turn may have many more requests
            self.dispatch()
        return None

    def wait(self, entrant: Entrant, *, has_endpoints: bool = True) -> None:
        """Let a request wait; raises a RequestError where it cannot."""
        started = perf_counter()
        try:
            self._enqueue(entrant, has_endpoints=has_endpoints)
        finally:
            self._observer.enqueued(entrant.request, perf_counter() - started, waits=entrant in self._waiting)

    def _enqueue(self, entrant: Entrant, *, has_endpoints: bool) -> None:
        request, now, queues = entrant.request, self._clock.now(), self._queues
        if self._is_stopped:
            self._observer.left(request, Outcome.REJECTED_OTHER, 0.0)
            raise ShuttingDownError("requests that would have to wait are refused")
        self._check_target(request, now)
        self._make_room(request, has_endpoints=has_endpoints)
        self._drain.start(now)
        self._drain.came(now, request.priority)
        self._numbers += 1
        queued = Queued(request, self._numbers, now, now + queues.settings(request.priority).ttl_seconds)
        waiting = Waiting(entrant, queued, request.fairness_id, request.priority, request.size_bytes)
        queues.add(waiting)
        self._waiting[entrant] = waiting
        self._targets.add(waiting)
        self._observer.queued(waiting)

    def leave(self, entrant: Entrant) -> None:
        """Take out a request whose client has left; nothing where it does not wait."""
        waiting = self._waiting.get(entrant)
        if waiting is not None:
            self._take_out(waiting, Outcome.EVICTED_CONTEXT_CANCELLED)

    def room(self, candidates: Candidates, priority: int) -> Mask:
        """Mark the candidates that have room for a request of a priority."""
        room: Mask = self._settings.detector.fullness(candidates) < self._settings.ceiling(priority, candidates)
        return room

    def dispatch(self) -> bool:
        """Release requests while there is room; refuse expired ones and ones that missed their target.

        Returns whether there may be more to do at once: other requests should have a turn before that.
        """
        if self._is_dispatching:  # by a request that leaves in its own release, say
            return False
        self._is_dispatching, started = True, perf_counter()
        try:
            self._is_behind = self._look()
            return self._is_behind
        finally:
            self._is_dispatching = False
            self._observer.cycled(perf_counter() - started)

    def _look(self) -> bool:
        """Do some of what there is to do; return whether there may be more."""
        if self._is_stopped:
            return self._refuse_some()
        if self._has_ended:
            return self._let_go()
        is_behind = self._queues.settle(_QUEUED_ANEW) | self._expire()
        is_behind |= self._end_surplus()
        is_behind |= self._queues.resume_due(self._clock.now(), _QUEUED_ANEW)
        released = 0
        for priority in self._queues.priorities:
            found = self._dispatch_band(priority, _RELEASED - released)
            if found is None:
                break
            released += found
            if released >= _RELEASED:
                return True
        self._evict()
        return is_behind

    def next_deadline(self) -> float | None:
        """Return when the next request will have waited too long; None where none will."""
        ends = [self._end_of_patience(band.oldest) for band in self._queues.bands.values() if band.oldest is not None]
        holds = [band.next_end_of_hold for band in self._queues.bands.values()]
        return min(*ends, *holds, self._targets.next) if ends else None

    def resume(self, flow: str) -> None:
        """Resume a held flow: its tenant has quota again."""
        self._queues.resume(flow)

    def pool_changed(self, *, has_endpoints: bool) -> None:
        """Note whether the pool is empty."""
        self._patience.pool_changed(self._clock.now(), has_endpoints=has_endpoints)

    def use(self, settings: FlowControlSettings) -> None:
        """Apply other settings. Re-sorting a long queue spans several dispatches.

        What waits keeps its number and the time it came.
        """
        self._settings, self._has_ended = settings, False
        self._evictions.use(settings.eviction)
        self._queues.use(settings.of, settings.limits)
        self.dispatch()

    def end(self) -> None:
        """Stop queueing: waiting requests are released in this dispatch and the next ones, even without room."""
        self._has_ended = True
        self.dispatch()

    def stop(self) -> None:
        """Refuse all that waits, in this dispatch and the next ones, and from now on all that would have to."""
        self._is_stopped = True
        self.dispatch()

    def _refuse_some(self) -> bool:
        """Refuse some requests; return whether there are more."""
        queues = self._queues
        for _ in range(min(_REFUSED, queues.requests)):
            waiting = queues.bands[queues.priorities[0]].oldest
            assert waiting is not None  # noqa: S101  a band without requests is dropped
            self._refuse(waiting, ShuttingDownError("requests that wait are refused"), Outcome.EVICTED_OTHER)
        return bool(queues.requests)

    def _let_go(self) -> bool:
        """Release some requests, whatever the room; return whether there are more."""
        queues = self._queues
        for _ in range(min(_RELEASED, queues.requests)):
            waiting = queues.bands[queues.priorities[0]].oldest
            assert waiting is not None  # noqa: S101  a band without requests is dropped
            candidates = waiting.entrant.candidates()
            went = waiting.entrant.go(candidates, np.ones(len(candidates), dtype=np.bool_))
            if isinstance(went, Blocked):
                self._refuse(waiting, went.error(), Outcome.EVICTED_OTHER)
            else:
                self._take_out(waiting, Outcome.DISPATCHED)
        return bool(queues.requests)

    def _dispatch_band(self, priority: int, most: int) -> int | None:
        """Release what can go at a priority, and hold back flows; return how many of both.

        None where the pool is full, for lower priorities too.
        """
        band = self._queues.bands.get(priority)
        if band is None:
            return 0
        done = set_aside = 0
        for tried in band.aside(min(most, _TRIED_AGAIN)):
            if tried.entrant.blocked() is None and self._try(tried) is True:
                done += 1
            else:
                band.set_aside(tried)
        while done < most and set_aside < _SET_ASIDE and (waiting := band.first) is not None:
            blocked = waiting.entrant.blocked()
            if blocked is not None:
                band.hold(waiting.flow, blocked)
                done += 1
                continue
            candidates = waiting.entrant.candidates()
            room = self.room(candidates, priority)
            if not room.any() and not waiting.entrant.is_restricted:
                return None
            went = self._go(waiting, candidates, room)
            if went is False:
                band.set_aside(waiting)
                set_aside += 1
                continue
            if isinstance(went, Blocked):
                band.hold(waiting.flow, went)
            done += 1
        return done

    def _try(self, waiting: Waiting) -> bool | Blocked:
        candidates = waiting.entrant.candidates()
        return self._go(waiting, candidates, self.room(candidates, waiting.priority))

    def _go(self, waiting: Waiting, candidates: Candidates, room: Mask) -> bool | Blocked:
        """Return whether a request was released, or has ended; Blocked where it may not go at all."""
        went = room.any() and waiting.entrant.go(candidates, room)
        if went is not True:
            return went if isinstance(went, Blocked) else False
        now = self._clock.now()
        self._drain.dispatched(now, waiting.priority, waiting.flow)
        self._take_out(waiting, Outcome.DISPATCHED, in_turn=not waiting.is_aside)
        return True

    def _evict(self) -> None:
        """End requests of lower priority where the first that waits could go, if that is allowed now."""
        tried = 0
        for priority in self._queues.priorities:
            if not self._evictions.may_decide(priority):
                break  # of lower ones even less may be ended
            band = self._queues.bands[priority]
            first = [] if band.first is None else [band.first]
            for waiting in (*first, *band.aside(_TRIED_AGAIN)):
                if self._evict_for(waiting):
                    return
                tried += 1
            for waiting in band.some_held(_TRIED_AGAIN):
                if waiting.entrant.preempt():
                    return
                tried += 1
            if tried >= _TRIED_AGAIN:
                break
        if tried:
            self._evictions.put_off()

    def _evict_for(self, waiting: Waiting) -> bool:
        candidates, settings = waiting.entrant.fitting(), self._settings
        if not len(candidates):
            return False
        fullness = settings.detector.fullness(candidates)
        ceiling = settings.ceiling(waiting.priority, candidates)
        retry_after_seconds = self._refusals.retry_after(self._queues.priorities[-1], LATER_SECONDS)
        return self._evictions.make_room(waiting.priority, candidates, fullness, ceiling, retry_after_seconds) > 0

    def _check_target(self, request: Request, now: float) -> None:
        """Refuse a request that would wait longer than the time that it has left."""
        left = due_at(request) - now
        if left == inf:
            return
        ahead = self._queues.ahead_of(request.priority, request.fairness_id)
        wait = self._drain.seconds_for(ahead, now, request.priority)
        if wait is not None and wait > left:
            self._observer.left(request, Outcome.REJECTED_OTHER, 0.0)
            raise self._refusals.too_late(request, wait)

    def _make_room(self, request: Request, *, has_endpoints: bool) -> None:
        """Refuse what is in the way of a request; raises a RequestError where it cannot wait."""
        queues, priority, size_bytes = self._queues, request.priority, request.size_bytes
        victims = queues.giving_way(priority, request.fairness_id, size_bytes)
        if self._surplus_of is not None and queues.in_the_way(priority, 1, size_bytes) is not None:
            victims = None  # others already give way to one that is here: nobody goes for a second one meanwhile
        if victims is None:
            outcome = Outcome.REJECTED_CAPACITY if has_endpoints else Outcome.REJECTED_NO_ENDPOINTS
            self._observer.left(request, outcome, 0.0)
            raise self._refusals.full(priority, request.fairness_id, has_endpoints=has_endpoints)
        for victim in victims:
            error = self._refusals.full(priority, victim.flow, has_endpoints=has_endpoints)
            self._refuse(victim, error, Outcome.EVICTED_OTHER)
        if self._clear(priority, 1, size_bytes):
            self._surplus_of = priority  # thousands of short bodies may go for a long one

    def _clear(self, priority: int, requests: int, size_bytes: int) -> bool:
        """Refuse some of what is of lower priority and in the way of so much more; return whether there is more."""
        for _ in range(_REFUSED):
            lower = self._queues.in_the_way(priority, requests, size_bytes)
            if lower is None:
                return False
            self._refuse(lower, self._refusals.gave_way(lower), Outcome.EVICTED_OTHER)
        return self._queues.in_the_way(priority, requests, size_bytes) is not None

    def _end_surplus(self) -> bool:
        """Refuse some of what is in the way of a request that came before it was gone; return whether there is more."""
        if self._surplus_of is None:
            return False
        if not self._clear(self._surplus_of, 0, 0):
            self._surplus_of = None
        return self._surplus_of is not None

    def _expire(self) -> bool:
        """Refuse some of the requests that have waited for too long; return whether there may be more."""
        now, has_endpoints, most = self._clock.now(), self._patience.has_endpoints, _REFUSED
        for priority in self._queues.priorities:
            band = self._queues.bands[priority]
            while (oldest := band.oldest) is not None and self._end_of_patience(oldest) <= now:
                if not most:
                    return True
                self._refuse(oldest, *self._refusals.timed_out(oldest, has_endpoints=has_endpoints))
                most -= 1
        while (late := self._targets.missed(now)) is not None:
            if not most:
                return True
            self._refuse(late, *self._refusals.missed(late, has_endpoints=has_endpoints))
            most -= 1
        return False

    def _end_of_patience(self, waiting: Waiting) -> float:
        ttl = self._queues.settings(waiting.priority).ttl_seconds
        return self._patience.end(waiting, ttl, self._settings.no_endpoint_ttl_seconds)

    def _refuse(self, waiting: Waiting, error: RequestError, outcome: Outcome) -> None:
        self._take_out(waiting, outcome)
        waiting.entrant.refuse(error)

    def _take_out(self, waiting: Waiting, outcome: Outcome, *, in_turn: bool = False) -> None:
        del self._waiting[waiting.entrant]
        self._targets.discard(waiting)
        self._queues.remove(waiting, in_turn=in_turn)
        now = self._clock.now()
        if not self._queues.requests:
            self._drain.stop(now)
        seconds = now - waiting.queued.enqueued_at
        self._observer.left(waiting.queued.request, outcome, seconds)
