# SPDX-License-Identifier: Apache-2.0
"""The director, which parses a request, assigns priority, model and flow, and routes, queues or refuses it."""

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from epp.admission.flow_control.control import FlowControl
from epp.admission.flow_control.guarded import GuardedDetector, guarded
from epp.admission.flow_control.in_flight_eviction import Evictions
from epp.admission.quotas import Quotas
from epp.framework.candidates import Candidates, Subset
from epp.framework.errors import AdmissionDeniedError, RequestError
from epp.framework.flow_control import SaturationDetector
from epp.framework.headers import ATTEMPT_COUNT
from epp.framework.quotas import Blocked, QuotaSource
from epp.framework.refusals import ClientGoneError, StartingError
from epp.framework.request import Headers, Request, RequestBody
from epp.framework.roles import Admitter, EndpointObserver
from epp.framework.snapshot import Snapshot
from epp.routing.datastore import Change
from epp.routing.director.incoming_request import IncomingRequest, Seeds
from epp.routing.director.observers import TRACE, FlowReports, Refusal, RequestTrace
from epp.routing.director.open_requests import RESERVATION_SECONDS, Attempts, Reservations
from epp.routing.director.pipeline import NO_POLICIES, Pipeline, PoolPolicies
from epp.routing.director.router import (
    BlockedError,
    NeedsFullEndpointError,
    QueueDirective,
    Router,
    Runtime,
    none_eligible,
)
from epp.routing.director.routing import Cause, Routing
from epp.routing.director.simulation import InFlight, Simulation
from epp.routing.director.waiting import Dispatcher, PendingRequest, QueueStatus, UsualDetector, WaitingRequest, shed
from epp.routing.outliers.outlier_detector import OutlierDetector
from epp.routing.settings import OutlierSettings

_MOST_SEARCHED = 10_000


class Director:
    """Routes requests synchronously, unless a request must wait."""

    def __init__(
        self,
        runtime: Runtime,
        pipeline: Pipeline,
        *,
        use_subset: bool = True,
        seeds: Seeds | None = None,
        reservation_seconds: float = RESERVATION_SECONDS,
        outliers: OutlierSettings | None = None,
    ) -> None:
        """`reservation_seconds` is the time after which an unanswered request no longer counts as load."""
        store, clock, observer = runtime.store, runtime.clock, runtime.observer
        self.clock = clock
        self.reservations = Reservations(clock, seconds=reservation_seconds)
        """Routed requests that have not been answered."""
        self.attempts = Attempts()
        """Open requests of gateways that count their attempts."""
        self._runtime = runtime
        self._pipeline = pipeline
        self._policies = NO_POLICIES
        self._use_subset = use_subset
        self._observer = observer
        self._guard = runtime.guard
        self._seeds = seeds or Seeds()
        self.is_closed = False
        """Whether all requests are refused, because too little is known to route them."""
        self._flow: FlowControl | None = None
        self._shedding: SaturationDetector[Any] = UsualDetector()
        self._evictions = Evictions(clock, observer)
        self.quotas = Quotas(clock, guard=self._guard, observer=observer)
        self.quotas.on_release = self._quota_released
        self.outliers = OutlierDetector(store, clock, outliers, observer=observer)
        self._router = Router(
            runtime,
            pipeline,
            evictions=self._evictions,
            quotas=self.quotas,
            reservations=self.reservations,
            attempts=self.attempts,
            outliers=self.outliers,
        )
        self._dispatcher = Dispatcher(store, clock, lambda: self._flow)
        self.use(pipeline)
        store.subscribe(self._pool_changed)

    def use(self, pipeline: Pipeline) -> None:
        """Replace the pipeline for new and queued requests; routed requests keep theirs."""
        self._pipeline = self._router.pipeline = pipeline
        self.quotas.use(pipeline.of(QuotaSource))
        if pipeline.flow_control is None:
            named = pipeline.shedding
            self._shedding = UsualDetector() if named is None else GuardedDetector(named, self._guard)
            if self._flow is not None:
                self._evictions.settings = None
                self._flow.end()
            return
        settings = guarded(pipeline.flow_control, self._guard)
        if self._flow is None:
            self._flow = FlowControl(
                settings, self.clock, observer=FlowReports(self._observer), evictions=self._evictions
            )
        else:
            self._flow.use(settings)
            self._dispatcher.on_update()

    @property
    def flow(self) -> FlowControl | None:
        """Queues in front of full endpoints; None if requests never wait for room."""
        return None if self._flow is None or self._flow.has_ended else self._flow

    @property
    def line(self) -> QueueStatus | None:
        """Status of the queues; None without queues. May be read in any thread."""
        return None if self.flow is None else self._dispatcher.latest

    def refuse_waiting(self) -> int:
        """Refuse queued requests, in steps, and all further requests that would wait; return the number queued."""
        if self._flow is None:
            return 0
        count = self._flow.queues.requests
        self._flow.stop()
        self._dispatcher.on_update()
        return count

    def in_flight(self, ids: Collection[str]) -> Mapping[str, InFlight]:
        """Return the requests in flight with these ids, if they are unanswered or their tenant has a quota.

        At most 10,000 requests of each kind are searched.
        """
        found: dict[str, InFlight] = {}
        for routing in islice(self.reservations, _MOST_SEARCHED):
            if routing.request.id in ids:
                found[routing.request.id] = InFlight(routing.request, (routing.served.id,))
        for each in islice(self.quotas.reservations(), _MOST_SEARCHED):
            if each.request.id in ids:
                places = tuple(place.endpoint for place in each.places)
                found[each.request.id] = InFlight(each.request, places, each)
        return found

    def simulation(
        self, pipeline: Pipeline | None = None, snapshot: Snapshot | None = None, ended: Sequence[InFlight] = ()
    ) -> Simulation:
        """Return a simulation of the current routing; it has no side effects.

        `pipeline` replaces the current one, `snapshot` the current endpoints; `ended` requests are treated as ended.
        """
        return Simulation(
            self._runtime,
            pipeline or self._pipeline,
            snapshot=snapshot,
            policies=self._policies,
            quotas=self.quotas,
            queues=None if self.flow is None else self.flow.queues,
            outliers=self.outliers,
            use_subset=self._use_subset,
            is_closed=self.is_closed,
            ended=ended,
        )

    def use_policies(self, policies: PoolPolicies) -> None:
        self._policies = policies

    def refuse(self, headers: Headers, error: RequestError) -> RequestError:
        """Record a request that is not routed; return the error."""
        self._observer.refused(Refusal(error, headers))
        return error

    def processed(self, since: float) -> None:
        """Record that a request was routed or refused; its first message arrived at `since`."""
        self._observer.request_processed(self.clock.now() - since)

    def route(
        self,
        headers: Headers,
        body: bytes,
        subset: Subset | None,
        *,
        incomplete: bool = False,
        trace: RequestTrace | None = None,
        began_at: float | None = None,
        parsed: RequestBody | None = None,
    ) -> Routing | PendingRequest:
        """Return the routing of a request, or a PendingRequest if it waits; raises a RequestError to refuse it.

        `began_at` is the time at which its headers arrived, now by default. `parsed` replaces the body if the caller
        does not have its bytes.

        A request without a body names no model and may be sent to any endpoint that the profiles allow, unless it is a
        POST to an API of a parser. An `incomplete` body that is empty or names no model is treated the same.
        """
        if self.is_closed:
            raise self.refuse(headers, StartingError())
        subset = subset if self._use_subset else None
        try:
            incoming = IncomingRequest.read(self._pipeline, headers, body, subset, incomplete=incomplete, parsed=parsed)
        except RequestError as error:
            self.refuse(headers, error)
            raise
        request = incoming.request
        if trace is not None:
            request.put(TRACE, trace)
        outcome = self._arrive(incoming, began_at)
        if isinstance(outcome, Routing):
            return outcome
        flow = self.flow if isinstance(outcome, WaitingRequest) else None
        longest = 0.0 if flow is None else flow.settings.longest_wait(request.priority)
        return PendingRequest(
            partial(self._wait, incoming, outcome),
            partial(self._client_left, incoming, outcome),
            longest_seconds=longest,
        )

    def _arrive(self, incoming: IncomingRequest, began_at: float | None) -> Routing | QueueDirective | WaitingRequest:
        """Return the routing of a parsed request, or the directive or queue that holds it."""
        request = incoming.request
        identified: Request | None = None
        try:
            incoming.identify(
                self._policies,
                seed=self._seeds.next(),
                now=self.clock.now(),
                observer=self._observer,
                began_at=began_at,
            )
            identified = request
            incoming.assign_flow(self._guard)
            if ATTEMPT_COUNT in request.headers:
                self.attempts.supersede_former(request)
            if self.quotas.is_active:
                self.quotas.check_single(request)
            return self._proceed(incoming)
        except RequestError as error:
            self._observer.refused(Refusal(error, request.headers, request.body.model, request=identified))
            raise

    def _proceed(self, incoming: IncomingRequest) -> Routing | QueueDirective | WaitingRequest:
        """Return the routing, or the directive or queue that holds the request."""
        candidates, flow = self._router.candidates(incoming), self.flow
        if incoming.admitted:
            return self._route_or_wait(incoming, candidates)
        if flow is None:
            if len(candidates):
                shed(incoming.request, candidates, self._shedding)
            incoming.admitted = True
            return self._route_or_wait(incoming, candidates)
        if incoming.request.subset is not None and not len(candidates) and len(candidates.snapshot.available):
            raise none_eligible(candidates.snapshot)  # it cannot use room at other endpoints
        return self._enter(flow, incoming, candidates)

    def _route_or_wait(
        self, incoming: IncomingRequest, candidates: Candidates
    ) -> Routing | QueueDirective | WaitingRequest:
        """Route a request that does not wait for room, or hold it back for its quota."""
        blocked = self._router.blocked(incoming)
        if blocked is None:
            try:
                return self._schedule(incoming, candidates)
            except BlockedError as error:
                blocked = error.blocked
        return self._hold_back(WaitingRequest(incoming, self._router), blocked)

    def _schedule(self, incoming: IncomingRequest, candidates: Candidates) -> Routing | QueueDirective:
        """Return the routing to a candidate with room, if flow control is enabled and any has room; else to any."""
        flow = self.flow
        room = None if flow is None else flow.room(candidates, incoming.request.priority)
        if room is not None and room.any():
            with suppress(NeedsFullEndpointError):
                return self._router.route_with_room(incoming, candidates, room)
        return self._router.schedule(incoming, candidates)

    def _enter(
        self, flow: FlowControl, incoming: IncomingRequest, candidates: Candidates
    ) -> Routing | QueueDirective | WaitingRequest:
        """Route a request if there is room, or queue it."""
        waiting = WaitingRequest(incoming, self._router)
        has_endpoints = bool(len(candidates))
        blocked = self._router.blocked(incoming)
        if blocked is not None:
            return self._hold_back(waiting, blocked, has_endpoints=has_endpoints)
        if not has_endpoints:
            flow.pool_changed(has_endpoints=bool(len(candidates.snapshot.available)))
        room = flow.enter(waiting, candidates)
        if room is not None:
            try:
                return self._router.route_with_room(incoming, candidates, room)
            except NeedsFullEndpointError:
                flow.wait(waiting)
            except BlockedError as error:
                return self._hold_back(waiting, error.blocked)
        elif waiting.outcome is not None:
            return waiting.result()
        self._dispatcher.arm()
        return waiting

    def _hold_back(self, waiting: WaitingRequest, blocked: Blocked, *, has_endpoints: bool = True) -> WaitingRequest:
        """Queue a request until its quota has room; raises QuotaExceededError if it may not wait, or would expire."""
        flow = self.flow
        if flow is None or not flow.settings.may_wait(blocked, waiting.request.priority, self.clock.now()):
            raise blocked.error()
        flow.wait(waiting, has_endpoints=has_endpoints)
        self._dispatcher.arm()
        return waiting

    def _quota_released(self, tenant: str) -> None:
        if self._flow is not None:
            self._flow.resume(tenant)
            self._dispatcher.on_update()

    async def _wait(self, incoming: IncomingRequest, hold: QueueDirective | WaitingRequest) -> Routing:
        """Continue with a new snapshot each time the request is released, until it is routed."""
        try:
            while True:
                if isinstance(hold, WaitingRequest):
                    outcome: Routing | QueueDirective | WaitingRequest = await hold.end()
                else:
                    await self._released(hold)
                    outcome = self._proceed(incoming)
                if isinstance(outcome, Routing):
                    return outcome
                hold = outcome
        except RequestError as error:
            self._refused(incoming.request, error)
            raise
        except asyncio.CancelledError:
            self._client_left(incoming, hold)
            raise

    def _client_left(self, incoming: IncomingRequest, hold: QueueDirective | WaitingRequest) -> None:
        """Record that the client of a held request has left."""
        if isinstance(hold, WaitingRequest) and self._flow is not None:
            self._flow.leave(hold)
            self.quotas.forget_nomination(incoming.request)
        outcome = hold.outcome if isinstance(hold, WaitingRequest) else hold
        if isinstance(outcome, Routing):  # released in the same iteration
            outcome.complete(Cause.CLIENT_DISCONNECT)
            return
        if isinstance(outcome, QueueDirective):
            outcome.abandon()
        self._refused(incoming.request, ClientGoneError("while the request was held"))

    def _refused(self, request: Request, error: RequestError) -> None:
        seconds = self.clock.now() - request.received_at
        self._observer.refused(Refusal(error, request.headers, request.body.model, seconds, request))

    async def _released(self, hold: QueueDirective) -> None:
        try:
            await self._guard.wait(Admitter.role, hold.admitter, _end_of(hold.awaited))
        except RequestError as error:
            raise AdmissionDeniedError(error) from error

    def _pool_changed(self, change: Change) -> None:
        slots = [slot for slot, _ in change.removed]
        if slots:
            self._evictions.forget(slots)
            for observer in self._pipeline.of(EndpointObserver):
                observer.slots_removed(slots)


async def _end_of(awaited: Awaitable[None]) -> None:
    """Wait for an awaitable; raises RuntimeError if it was cancelled, but not this task."""
    try:
        await awaited
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("the awaitable that held the request was cancelled") from None
