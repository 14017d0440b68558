# SPDX-License-Identifier: Apache-2.0
"""The director: reads a request, assigns priority, model and flow, and routes, queues or refuses it."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any

from epp.admission.flow_control import Evictions, FlowControl, GuardedDetector, guarded
from epp.admission.quotas import Quotas
from epp.framework.addresses import Subset
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.errors import AdmissionDeniedError, ClientGoneError, RequestError, StartingError
from epp.framework.flow_control import SaturationDetector
from epp.framework.guard import Guard
from epp.framework.headers import ATTEMPT_COUNT
from epp.framework.quotas import Blocked, QuotaSource
from epp.framework.request import Headers, Request
from epp.framework.roles import Admitter, EndpointObserver
from epp.framework.snapshot import Snapshot
from epp.routing.datastore import Change, Datastore
from epp.routing.director.arrivals import Arrival, BlockedError, NeedsFullEndpointError, QueuedArrival, QueueDirective
from epp.routing.director.attempts import Attempts
from epp.routing.director.dispatcher import Dispatcher, QueueStatus
from epp.routing.director.observers import DirectorObserver, Refusal
from epp.routing.director.pending_request import PendingRequest
from epp.routing.director.pipeline import ParsedBody, Pipeline
from epp.routing.director.policies import NO_POLICIES, PoolPolicies
from epp.routing.director.reading import IncomingRequest, path_of, read
from epp.routing.director.reports import FlowReports
from epp.routing.director.requests import give_flow, request_of
from epp.routing.director.reservations import RESERVATION_SECONDS, Reservations
from epp.routing.director.router import Router, none_eligible
from epp.routing.director.routing import Cause, Routing
from epp.routing.director.seeds import Seeds
from epp.routing.director.shedding import UsualDetector, shed
from epp.routing.director.simulation import Simulation
from epp.routing.director.tracing import RequestTrace
from epp.routing.outliers import OutlierDetector, OutlierSettings


class Director:
    """Synchronous from end to end, unless an admitter holds a request."""

    def __init__(
        self,
        store: Datastore,
        pipeline: Pipeline,
        clock: Clock,
        *,
        observer: DirectorObserver | None = None,
        use_subset: bool = True,
        seeds: Seeds | None = None,
        reservation_seconds: float = RESERVATION_SECONDS,
        outliers: OutlierSettings | None = None,
    ) -> None:
        """`reservation_seconds` is the time for an answer, after which a request counts for its endpoint no more."""
        self.clock = clock
        self.reservations = Reservations(clock, seconds=reservation_seconds)
        """Routed requests that have not been answered."""
        self.attempts = Attempts()
        """Open requests of gateways that count their attempts."""
        self._store = store
        self._pipeline = pipeline
        self._policies = NO_POLICIES
        self._use_subset = use_subset
        self._observer = observer or DirectorObserver()
        self._guard = Guard(self._observer)
        self._seeds = seeds or Seeds()
        self._is_closed = False
        self._flow: FlowControl | None = None
        self._shedding: SaturationDetector[Any] = UsualDetector()
        self._evictions = Evictions(clock, self._observer)
        self.quotas = Quotas(clock, guard=self._guard, observer=self._observer)
        """What tenants have taken of what they may."""
        self.quotas.on_release(self._quota_released)
        self.outliers = OutlierDetector(store, clock, outliers, observer=self._observer)
        """Endpoints at which requests failed."""
        self._router = Router(
            store,
            pipeline,
            clock,
            observer=self._observer,
            guard=self._guard,
            evictions=self._evictions,
            quotas=self.quotas,
            reservations=self.reservations,
            attempts=self.attempts,
            outliers=self.outliers,
            use_subset=use_subset,
        )
        self._dispatcher = Dispatcher(store, clock, lambda: self._flow)
        self.use(pipeline)
        store.subscribe(self._pool_changed)

    def use(self, pipeline: Pipeline) -> None:
        """Route new and queued requests by another pipeline; routed requests keep theirs."""
        self._pipeline = self._router.pipeline = pipeline
        self.quotas.use(pipeline.of(QuotaSource))
        if pipeline.flow_control is None:
            named = pipeline.shedding
            self._shedding = UsualDetector() if named is None else GuardedDetector(named, self._guard)
            if self._flow is not None:
                self._evictions.use(None)
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
        """What holds requests in front of full endpoints; None where nothing does."""
        return None if self._flow is None or self._flow.has_ended else self._flow

    @property
    def line(self) -> QueueStatus | None:
        """What waits; None where nothing ever does. May be read in any thread."""
        return None if self.flow is None else self._dispatcher.latest

    def refuse_waiting(self) -> int:
        """Refuse all that waits for room, some in each turn, and what would have to; return the number of requests."""
        if self._flow is None:
            return 0
        count = self._flow.queues.requests
        self._flow.stop()
        self._dispatcher.on_update()
        return count

    def close(self) -> None:
        """Refuse all requests until `open`: too little is known to route them."""
        self._is_closed = True

    def open(self) -> None:
        """Route requests from now on."""
        self._is_closed = False

    def simulation(self, pipeline: Pipeline | None = None, snapshot: Snapshot | None = None) -> Simulation:
        """Return a simulation of the current routing; it has no side effects.

        A `pipeline` stands in for the one in effect, a `snapshot` for the endpoints as they are.
        """
        return Simulation(
            self._store,
            pipeline or self._pipeline,
            self.clock,
            snapshot=snapshot,
            policies=self._policies,
            quotas=self.quotas,
            queues=None if self.flow is None else self.flow.queues,
            outliers=self.outliers,
            use_subset=self._use_subset,
            is_closed=self._is_closed,
        )

    def use_policies(self, policies: PoolPolicies) -> None:
        """Give all further requests priorities and models by other policies."""
        self._policies = policies

    def refuse(self, headers: Headers, error: RequestError) -> RequestError:
        """Record a request that does not come to be routed; return the error."""
        self._observer.refused(Refusal(error, headers))
        return error

    def processed(self, since: float) -> None:
        """Record that a request was answered: it goes to an endpoint, or is refused. Its first message came then."""
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
    ) -> Routing | PendingRequest:
        """Return the routing of a request, or Held where it has to wait; raises a RequestError that refuses it.

        Its headers came at `began_at` on the clock, just now by default.

        A request without a body names no model and may go to any endpoint that the profiles allow, unless it is a POST
        to an API that a parser reads; so may one of whose body only an `incomplete` beginning is known, or nothing, if
        that does not say enough.
        """
        if self._is_closed:
            raise self.refuse(headers, StartingError())
        call = IncomingRequest(self._pipeline, path_of(headers), headers, len(body), subset, trace, began_at)
        try:
            parsed = read(call, body, incomplete=incomplete)
        except RequestError as error:
            self._observer.refused(Refusal(error, headers))
            raise
        outcome = self._arrive(call, parsed)
        if isinstance(outcome, Routing):
            return outcome
        arrival, hold = outcome
        flow = self.flow
        waits = flow is not None and isinstance(hold, QueuedArrival)
        longest = flow.settings.longest_wait(arrival.request.priority) if flow is not None and waits else 0.0
        return PendingRequest(partial(self._wait, *outcome), partial(self._left, *outcome), longest_seconds=longest)

    def _arrive(
        self, call: IncomingRequest, parsed: ParsedBody
    ) -> Routing | tuple[Arrival, QueueDirective | QueuedArrival]:
        """Return the routing of a request that has been read, or what it has to wait for."""
        pipeline, headers = call.pipeline, call.headers
        request: Request | None = None
        try:
            request = request_of(
                call,
                parsed,
                self._policies,
                seed=self._seeds.next(),
                now=self.clock.now(),
                observer=self._observer,
                use_subset=self._use_subset,
            )
            give_flow(request, pipeline, self._guard)
            if ATTEMPT_COUNT in headers:
                self.attempts.supersede_former(request)
            if self.quotas.is_active:
                self.quotas.check_single(request)
            arrival = Arrival(pipeline, request, call.subset, iter(pipeline.of(Admitter)))
            outcome = self._proceed(arrival)
        except RequestError as error:
            self._observer.refused(Refusal(error, headers, parsed.body.model, request=request))
            raise
        return outcome if isinstance(outcome, Routing) else (arrival, outcome)

    def _proceed(self, arrival: Arrival) -> Routing | QueueDirective | QueuedArrival:
        """Return the routing, or what to wait for."""
        candidates, flow = self._router.candidates(arrival), self.flow
        if arrival.admitted:
            return self._route_or_wait(arrival, candidates)
        if flow is None:
            if len(candidates):
                shed(arrival.request, candidates, self._shedding)
            arrival.admitted = True
            return self._route_or_wait(arrival, candidates)
        if arrival.subset is not None and not len(candidates) and len(candidates.snapshot.available):
            raise none_eligible(candidates.snapshot)  # room at other endpoints is of no use to it
        return self._enter(flow, arrival, candidates)

    def _route_or_wait(self, arrival: Arrival, candidates: Candidates) -> Routing | QueueDirective | QueuedArrival:
        """Return the routing, or what to wait for, of a request that does not wait for room."""
        blocked = self._router.blocked(arrival)
        if blocked is None:
            try:
                return self._router.schedule(arrival, candidates)
            except BlockedError as error:
                blocked = error.blocked
        return self._hold_back(QueuedArrival(arrival, self._router), blocked)

    def _enter(
        self, flow: FlowControl, arrival: Arrival, candidates: Candidates
    ) -> Routing | QueueDirective | QueuedArrival:
        """Return the routing where there is room, or what to wait for."""
        entrant = QueuedArrival(arrival, self._router)
        has_endpoints = bool(len(candidates))
        blocked = self._router.blocked(arrival)
        if blocked is not None:
            return self._hold_back(entrant, blocked, has_endpoints=has_endpoints)
        if not has_endpoints:
            flow.pool_changed(has_endpoints=bool(len(candidates.snapshot.available)))
        room = flow.enter(entrant, candidates)
        if room is not None:
            try:
                return self._router.go(arrival, candidates, room)
            except NeedsFullEndpointError:
                flow.wait(entrant)
            except BlockedError as error:
                return self._hold_back(entrant, error.blocked)
        elif entrant.outcome is not None:
            return entrant.result()
        self._dispatcher.arm()
        return entrant

    def _hold_back(self, entrant: QueuedArrival, blocked: Blocked, *, has_endpoints: bool = True) -> QueuedArrival:
        """Let a request wait for the quota of its tenant; raises QuotaExceededError where it may not, or in vain."""
        flow = self.flow
        if flow is None or not blocked.waits:
            raise blocked.error()
        patience = flow.settings.of(entrant.request.priority).ttl_seconds
        if blocked.until is not None and blocked.until - self.clock.now() > patience:
            raise blocked.error()
        flow.wait(entrant, has_endpoints=has_endpoints)
        self._dispatcher.arm()
        return entrant

    def _quota_released(self, tenant: str) -> None:
        if self._flow is not None:
            self._flow.resume(tenant)
            self._dispatcher.on_update()

    async def _wait(self, arrival: Arrival, hold: QueueDirective | QueuedArrival) -> Routing:
        """Proceed each time that the request is released: on a new snapshot, since the old one has aged."""
        try:
            while True:
                if isinstance(hold, QueuedArrival):
                    outcome: Routing | QueueDirective | QueuedArrival = await hold.end()
                else:
                    await self._released(hold)
                    outcome = self._proceed(arrival)
                if isinstance(outcome, Routing):
                    return outcome
                hold = outcome
        except RequestError as error:
            self._refused(arrival.request, error)
            raise
        except asyncio.CancelledError:
            self._left(arrival, hold)
            raise

    def _left(self, arrival: Arrival, hold: QueueDirective | QueuedArrival) -> None:
        """Record that the client of a held request has left."""
        if isinstance(hold, QueuedArrival) and self._flow is not None:
            self._flow.leave(hold)
            self.quotas.forget_nomination(arrival.request)
        if isinstance(hold, QueuedArrival) and isinstance(hold.outcome, Routing):  # released in the same turn
            hold.outcome.complete(Cause.CLIENT_DISCONNECT)
        else:
            self._refused(arrival.request, ClientGoneError("while the request was held"))

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
    """Wait for it; raises RuntimeError where it was cancelled by others than this task, whose end that is not."""
    try:
        await awaited
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("what held the request was cancelled") from None
