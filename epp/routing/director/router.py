# SPDX-License-Identifier: Apache-2.0
"""Routing of admitted requests: narrows the candidates, runs admission and scheduler, and reserves resources."""

import asyncio
import re
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec.structs import replace

from epp.admission.flow_control.in_flight_eviction import Evictions
from epp.admission.quotas import Quotas, Reservation
from epp.framework.arrays import Mask
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.errors import AdmissionDeniedError, PreconditionFailedError, RequestError
from epp.framework.headers import ATTEMPT_COUNT, PREFER
from epp.framework.plugin import Failure, Guard
from epp.framework.quotas import Blocked
from epp.framework.refusals import (
    LATER_SECONDS,
    AllBusyError,
    NoEndpointsError,
    OverQuotaError,
    ResourceExhaustedError,
    ScreenedOutError,
    ServiceUnavailableError,
    UnavailableError,
    UnmetConstraintError,
)
from epp.framework.request import IN_FLIGHT_COST, PREFIX_MATCH, DataKey, Headers, Request
from epp.framework.result import SchedulingResult
from epp.framework.roles import Admitter, PreRequest, Producer, Screener
from epp.framework.snapshot import Snapshot
from epp.routing.datastore import Datastore, Flow, Ticket
from epp.routing.director.incoming_request import IncomingRequest
from epp.routing.director.observers import DirectorObserver
from epp.routing.director.open_requests import Attempts, Reservations
from epp.routing.director.pipeline import Pipeline
from epp.routing.director.routing import Routing
from epp.routing.outliers.outlier_detector import OutlierDetector

_IF_AVAILABLE = re.compile(r"(?:\A|,)\s*+if-available\s*+(?:[;=,]|\Z)", re.IGNORECASE | re.ASCII)
RETRY_WITH_FULL = (UnmetConstraintError, OverQuotaError, ResourceExhaustedError, ServiceUnavailableError)
"""Refusals after which full endpoints are tried too, since they may be able to serve the request."""
_NO_COSTS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Runtime:
    """State shared by all requests, independent of the pipeline."""

    store: Datastore
    clock: Clock
    observer: DirectorObserver = field(default_factory=DirectorObserver)
    guard: Guard = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "guard", Guard(self.observer))


@dataclass(frozen=True, slots=True)
class QueueDirective:
    admitter: Admitter[Any]
    awaited: Awaitable[None]

    def abandon(self) -> None:
        """Close or cancel the awaitable."""
        if isinstance(self.awaited, Coroutine):
            self.awaited.close()
        elif isinstance(self.awaited, asyncio.Future):
            self.awaited.cancel()


class NeedsFullEndpointError(Exception):
    """Only full endpoints can serve the request."""


class BlockedError(Exception):
    """A request does not fit into the quota of its tenant at any endpoint."""

    def __init__(self, blocked: Blocked) -> None:
        super().__init__(str(blocked.breach))
        self.blocked = blocked


@dataclass(slots=True, eq=False)
class Router:
    """Routes admitted requests; each call uses the current snapshot."""

    runtime: Runtime
    pipeline: Pipeline
    """The pipeline for requests that have waited."""
    _: KW_ONLY
    evictions: Evictions
    quotas: Quotas
    reservations: Reservations
    attempts: Attempts
    outliers: OutlierDetector

    def candidates(self, incoming: IncomingRequest) -> Candidates:
        """Return the endpoints of the current snapshot that the gateway allows for a request."""
        return self.among(self.runtime.store.snapshot(), incoming)

    def among(self, snapshot: Snapshot, incoming: IncomingRequest) -> Candidates:
        """Return the endpoints of a snapshot that the gateway allows for a request."""
        slots, subset = snapshot.available, incoming.request.subset
        eligible = slots if subset is None else slots[subset.mask(snapshot, slots)]
        return Candidates(snapshot, eligible, now=self.runtime.clock.now())

    def blocked(self, incoming: IncomingRequest) -> Blocked | None:
        """Return the quota limit that a request exceeds at every endpoint; None if it fits."""
        return self.quotas.breach(incoming.request) if self.quotas.is_active else None

    def preempt(self, incoming: IncomingRequest) -> bool:
        """Evict requests of the same tenant and lower priority to fit a request; return whether any are evicted."""
        request, quotas = incoming.request, self.quotas
        endable = {each.request: each for each in self.evictions.endable(request.priority)}
        if not endable:
            return False
        candidates = self.fitting(incoming)
        victims = quotas.victims(request, lambda victim: victim.request in endable, candidates)
        if not victims:
            return False
        ended = [endable[each.request] for each in victims]
        if not self.evictions.end(ended, LATER_SECONDS, priority=request.priority):
            return False
        quotas.nominate(request, victims)
        return True

    def route_with_room(
        self, incoming: IncomingRequest, candidates: Candidates, room: Mask
    ) -> Routing | QueueDirective:
        """Route a request that has waited, with the current pipeline, to one of the candidates with room.

        Raises NeedsFullEndpointError if only full candidates can serve it, BlockedError if its quota has no room, or a
        RequestError to refuse it.
        """
        incoming.use(self.pipeline)
        incoming.admitted = True
        if room.all():
            return self.schedule(incoming, candidates)
        try:
            return self.schedule(incoming, candidates.keep(room))
        except (*RETRY_WITH_FULL, BlockedError) as error:
            self._check_others(incoming, candidates, error)
            raise NeedsFullEndpointError from error

    def fitting(self, incoming: IncomingRequest) -> Candidates:
        """Return the endpoints that could serve a request if they had room."""
        candidates = self.candidates(incoming)
        if not len(candidates):
            return candidates
        try:
            candidates = self._screened(incoming, candidates)
            for producer in incoming.pipeline.of(Producer):
                self.runtime.guard.call(Producer.role, producer, producer.produce, incoming.request, candidates)
            return incoming.pipeline.scheduler.schedule(incoming.request, candidates).primary.candidates
        except ResourceExhaustedError:  # filters dropped full endpoints
            return candidates
        except (RequestError, BlockedError):
            return candidates.keep(np.zeros(len(candidates), dtype=np.bool_))

    def schedule(self, incoming: IncomingRequest, candidates: Candidates) -> Routing | QueueDirective:
        """Return the routing to one of these candidates, or an admitter's directive to wait; raises BlockedError."""
        outcome = self.decide(incoming, candidates)
        if isinstance(outcome, QueueDirective):
            return outcome
        routing = self._routing(incoming.pipeline, incoming.request, outcome, candidates.now)
        incoming.content = b""
        return routing

    def decide(self, incoming: IncomingRequest, candidates: Candidates) -> SchedulingResult | QueueDirective:
        """Return the scheduling result of a request among these candidates, or an admitter's directive to wait.

        Reserves nothing. Raises BlockedError, or a RequestError to refuse the request.
        """
        snapshot, request = candidates.snapshot, incoming.request
        if not len(candidates):
            raise none_eligible(snapshot)
        eligible = len(candidates)
        candidates = self._screened(incoming, candidates)
        self.runtime.observer.candidates_found(request, snapshot, eligible, len(candidates))
        request.content = incoming.content
        try:
            shortlist = incoming.pipeline.shortlist
            few = candidates if shortlist is None else shortlist.of(request, candidates)
            for producer in incoming.pipeline.of(Producer):
                given = few if producer.per_candidate else candidates
                self.runtime.guard.call(Producer.role, producer, producer.produce, request, given)
            for admitter in incoming.admitters:
                is_of_few = isinstance(admitter, Producer) and admitter.per_candidate
                awaited = self._admit(admitter, request, few if is_of_few else candidates)
                if awaited is not None:
                    self.runtime.observer.held(request, admitter.name)
                    return QueueDirective(admitter, awaited)
        finally:
            request.content = b""
        began = self.runtime.clock.now()
        try:
            result = incoming.pipeline.scheduler.schedule(request, candidates)
        except RequestError:
            self.runtime.observer.scheduled(request, self.runtime.clock.now() - began, None)
            raise
        self.runtime.observer.scheduled(request, self.runtime.clock.now() - began, result)
        if _prefers_cached(request.headers) and not _is_cached(incoming.pipeline, request, result):
            error = PreconditionFailedError()
            error.scheduling = result.as_failed()
            raise error
        return result

    def _routing(self, pipeline: Pipeline, request: Request, result: SchedulingResult, started: float) -> Routing:
        """Reserve the resources of a request, and return its routing; raises BlockedError."""
        reservation = self._assume(request, result)
        try:
            for plugin in pipeline.of(PreRequest):
                added = self.runtime.guard.call(PreRequest.role, plugin, plugin.added_headers, request, result)
                if added and not isinstance(added, Failure):
                    headers = {**result.destination.headers, **added}
                    result = replace(result, destination=replace(result.destination, headers=headers))
            self.runtime.observer.routed(request, result, self.runtime.clock.now() - started)
        except BaseException as error:  # no other code releases it
            if reservation is not None:
                reservation.release(None)
            if isinstance(error, RequestError):
                error.scheduling = result.as_failed()
            raise
        routing = Routing(
            request,
            result,
            self._credit(request, result),
            pipeline,
            guard=self.runtime.guard,
            observer=self.runtime.observer,
            find=self.runtime.store.find,
            outliers=self.outliers,
            settled=self.reservations.settle,
            reservation=reservation,
        )
        if self.outliers.on_trial:
            self.outliers.picked(routing.slot)
        self.reservations.assume(routing, started)
        if ATTEMPT_COUNT in request.headers:
            self.attempts.opened(routing)
            routing.add_end_listener(self.attempts.ended)
        if self.evictions.started(routing):
            routing.add_end_listener(self.evictions.ended)
        return routing

    def _check_others(
        self, incoming: IncomingRequest, candidates: Candidates, error: RequestError | BlockedError
    ) -> None:
        """Raise `error` unless the request could be scheduled if all candidates had room."""
        try:
            incoming.pipeline.scheduler.schedule(incoming.request, self._screened(incoming, candidates))
        except AllBusyError:  # filters dropped full endpoints
            return
        except (RequestError, BlockedError):
            raise error from None

    def _screened(self, incoming: IncomingRequest, candidates: Candidates) -> Candidates:
        """Return the candidates that the tenant's quota allows and all screeners keep."""
        if self.quotas.is_active:
            candidates = self._within_quota(incoming.request, candidates)
        screeners = incoming.pipeline.of(Screener)
        if not screeners:
            return candidates
        masks = [
            self.runtime.guard.call(Screener.role, screener, screener.mask, incoming.request, candidates)
            for screener in screeners
        ]
        kept = [mask for mask in masks if not isinstance(mask, Failure)]
        if not kept:
            return candidates
        left = candidates.keep(np.logical_and.reduce(kept))
        if not len(left):
            raise ScreenedOutError
        return left

    def _within_quota(self, request: Request, candidates: Candidates) -> Candidates:
        """Return the candidates that the tenant's quota allows.

        Raises OverQuotaError if the request is too large for all of them, and BlockedError if it does not fit beside
        the requests in flight.
        """
        quotas = self.quotas
        large = quotas.fits_single(request, candidates)
        fits = None if large is None else quotas.fitting(request, candidates)
        if fits is None:
            return candidates
        left = candidates.keep(fits)
        if not len(left):
            blocked = quotas.shortage(request, candidates)
            if blocked is not None:
                raise BlockedError(blocked)
        return left

    def _assume(self, request: Request, result: SchedulingResult) -> Reservation | None:
        """Reserve the request's share of its tenant's quota; raises BlockedError."""
        if not self.quotas.is_active:
            return None
        primary = result.primary
        legs = [leg.slot for leg in result.profiles.values() if leg is not None and leg.slot != primary.slot]
        reservation = self.quotas.assume(request, primary.candidates.snapshot, primary.slot, legs)
        if isinstance(reservation, Blocked):
            raise BlockedError(reservation)
        return reservation

    def _admit(self, admitter: Admitter[Any], request: Request, candidates: Candidates) -> Awaitable[None] | None:
        try:
            awaited = self.runtime.guard.call(Admitter.role, admitter, admitter.admit, request, candidates)
        except RequestError as error:
            raise AdmissionDeniedError(error) from error
        return None if isinstance(awaited, Failure) else awaited

    def _credit(self, request: Request, result: SchedulingResult) -> Ticket:
        costs = request.get(IN_FLIGHT_COST) or _NO_COSTS
        flow = Flow(request.fairness_id, request.priority)
        ledger = self.runtime.store.ledger
        primary = result.primary
        slot = primary.slot
        legs: Sequence[Ticket] = ()
        if len(result.profiles) > 1:
            legs = [
                ledger.open(leg.slot, costs.get(profile, 0), flow)
                for profile, leg in result.profiles.items()
                if leg is not None and leg.slot != slot
            ]
        return ledger.open(slot, costs.get(primary.profile, 0), flow, legs)


def none_eligible(snapshot: Snapshot) -> RequestError:
    """Return the refusal of a request without candidates in the gateway's subset or the pool."""
    if len(snapshot.slots) and not len(snapshot.available):
        return UnavailableError(detail=f"none of {len(snapshot.slots)} endpoints can be reached")
    return NoEndpointsError()


def _prefers_cached(headers: Headers) -> bool:
    """Return whether a `prefer` header contains `if-available`, with or without a value and parameters."""
    if headers.first_of(PREFER) is None:
        return False
    return any(_IF_AVAILABLE.search(value) for name, value in headers.fields() if name == PREFER)


def _is_cached(pipeline: Pipeline, request: Request, result: SchedulingResult) -> bool:
    """Return whether any producer of prefix matches expects the target to cache the beginning of the prompt."""
    keys = {datum for producer in pipeline.of(Producer) for datum in producer.writes if isinstance(datum, DataKey)}
    matches = [request.get(key) for key in keys if key.name == PREFIX_MATCH.name]
    return any(match is not None and match.matched_blocks[result.primary.slot] > 0 for match in matches)
