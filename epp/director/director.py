# SPDX-License-Identifier: Apache-2.0
"""The director: parses a request, narrows the candidates, runs admission and scheduler, credits the endpoint."""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from epp.datastore import Change, Credit, Datastore, Ticket
from epp.director.arrivals import Arrival, Hold, InLine, NeedsFullEndpointError
from epp.director.held import Held
from epp.director.line import Line, LineDriver
from epp.director.pipeline import Parsed, Pipeline, ReadingBody
from epp.director.policies import NO_POLICIES, PoolPolicies, Rewrite, choose_model, give_priority
from epp.director.reading import Call, Turns, path_of, read
from epp.director.reports import FlowReports
from epp.director.routing import Cause, Routing, RoutingObserver
from epp.director.seeds import Seeds
from epp.director.shedding import UsualDetector, shed
from epp.flow_control import EvictionObserver, Evictions, FlowControl, FlowObserver, GuardedDetector, guarded
from epp.framework.addresses import Subset
from epp.framework.arrays import Mask, Positions
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.errors import (
    AdmissionDeniedError,
    ClientGoneError,
    ModelMissingError,
    NoEndpointsError,
    PreconditionFailedError,
    RequestError,
    ResourceExhaustedError,
    ScreenedOutError,
    ServiceUnavailableError,
    UnavailableError,
    UnmetConstraintError,
)
from epp.framework.flow_control import SaturationDetector
from epp.framework.headers import FAIRNESS_ID, PREFER, REQUEST_ID
from epp.framework.request import (
    AGENT_IDENTITY,
    DEFAULT_FLOW,
    IN_FLIGHT_COST,
    PREFIX_MATCH,
    DataKey,
    Headers,
    Request,
)
from epp.framework.result import SchedulingResult
from epp.framework.roles import Admitter, EndpointObserver, PreRequest, Producer, RequestHeaders, Screener
from epp.framework.snapshot import Snapshot
from epp.scheduling import Failure, Guard

_IF_AVAILABLE = re.compile(r"(?:\A|,)\s*+if-available\s*+(?:[;=,]|\Z)", re.IGNORECASE | re.ASCII)
_NO_COSTS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is not routed: it is refused, or its client has left."""

    error: RequestError
    headers: Headers = field(default_factory=Headers)
    model: str = ""
    """Empty where the body names none, or was not read."""
    seconds: float = 0.0
    """Time from the complete request to this."""
    request: Request | None = None
    """None where it could not be read."""


class DirectorObserver(RoutingObserver, EvictionObserver, FlowObserver):
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def model_rewritten(self, request: Request, rewrite: Rewrite) -> None:
        """Record that a rule chose the model to ask for."""

    def candidates_found(self, request: Request, snapshot: Snapshot, eligible: int, left: int) -> None:
        """Record how many endpoints the gateway's subset has, and how many of them screeners left."""

    def held(self, request: Request, plugin: str) -> None:
        """Record that an admitter lets a request wait."""

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:
        """Record a routed request."""

    def refused(self, refusal: Refusal) -> None:
        """Record a request that is not routed."""


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
    ) -> None:
        self.clock = clock
        self._store = store
        self._pipeline = pipeline
        self._policies = NO_POLICIES
        self._observer = observer or DirectorObserver()
        self._guard = Guard(self._observer)
        self._use_subset = use_subset
        self._seeds = seeds or Seeds()
        self._turns = Turns()
        self._flow: FlowControl | None = None
        self._shedding: SaturationDetector[Any] = UsualDetector()
        self._evictions = Evictions(clock, self._observer)
        self._line = LineDriver(store, clock, lambda: self._flow)
        self.use(pipeline)
        store.subscribe(self._pool_changed)

    def use(self, pipeline: Pipeline) -> None:
        """Route further requests by another pipeline, and those that wait for room; those on their way keep theirs."""
        self._pipeline = pipeline
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

    @property
    def flow(self) -> FlowControl | None:
        """What holds requests in front of full endpoints; None where nothing does."""
        return None if self._flow is None or self._flow.has_ended else self._flow

    @property
    def line(self) -> Line | None:
        """What waits; None where nothing ever does. May be read in any thread."""
        return None if self.flow is None else self._line.latest

    def refuse_waiting(self) -> int:
        """Refuse all that waits for room, and what would have to from now on; return the number of requests."""
        if self._flow is None:
            return 0
        count = self._flow.queues.requests
        self._flow.stop()
        return count

    def use_policies(self, policies: PoolPolicies) -> None:
        """Give all further requests priorities and models by other policies."""
        self._policies = policies

    def refuse(self, headers: Headers, error: RequestError) -> RequestError:
        """Record a request that does not come to be routed; return the error."""
        self._observer.refused(Refusal(error, headers))
        return error

    def route(
        self, headers: Headers, body: bytes, subset: Subset | None, *, incomplete: bool = False
    ) -> Routing | Held:
        """Return the routing of a request, or Held where it has to wait; raises a RequestError that refuses it.

        A request without a body names no model and may go to any endpoint that the profiles allow, unless it is a POST
        to an API that a parser reads; so may one of whose body only an `incomplete` beginning is known, or nothing, if
        that does not say enough.
        """
        call = Call(self._pipeline, path_of(headers), headers, len(body), subset)
        try:
            parsed = read(call, body, incomplete=incomplete)
        except RequestError as error:
            self._observer.refused(Refusal(error, headers))
            raise
        if not isinstance(parsed, Parsed):
            read_later = partial(self._read, call, parsed)
            return Held(read_later, partial(self._left_unread, call), longest_seconds=self._longest_wait())
        outcome = self._arrive(call, parsed)
        if isinstance(outcome, Routing):
            return outcome
        arrival, hold = outcome
        longest = self._longest_wait(arrival.request.priority) if isinstance(hold, InLine) else 0.0
        return Held(partial(self._wait, *outcome), partial(self._left, *outcome), longest_seconds=longest)

    def _longest_wait(self, priority: int | None = None) -> float:
        """Return how long a request may wait for room, at this priority or any; 0 where none does."""
        return 0.0 if self.flow is None else self.flow.settings.longest_wait(priority)

    async def _read(self, call: Call, reading: ReadingBody) -> Routing:
        """Go on with a request once its body has been read in turns."""
        try:
            parsed = await self._turns.read(reading)
        except RequestError as error:
            self._observer.refused(Refusal(error, call.headers))
            raise
        except asyncio.CancelledError:
            self._left_unread(call)
            raise
        outcome = self._arrive(call, parsed)
        return outcome if isinstance(outcome, Routing) else await self._wait(*outcome)

    def _arrive(self, call: Call, parsed: Parsed) -> Routing | tuple[Arrival, Hold | InLine]:
        """Return the routing of a request that has been read, or what it has to wait for."""
        pipeline, headers = call.pipeline, call.headers
        request: Request | None = None
        try:
            request = self._request(call, parsed)
            for plugin in pipeline.of(RequestHeaders):
                self._guard.call(RequestHeaders.role, plugin, plugin.request_headers, request)
            request.fairness_id = headers.first_of(*FAIRNESS_ID) or request.get(AGENT_IDENTITY) or DEFAULT_FLOW
            arrival = Arrival(pipeline, request, call.subset, iter(pipeline.of(Admitter)))
            outcome = self._proceed(arrival)
        except RequestError as error:
            self._observer.refused(Refusal(error, headers, parsed.body.model, request=request))
            raise
        return outcome if isinstance(outcome, Routing) else (arrival, outcome)

    def _request(self, call: Call, parsed: Parsed) -> Request:
        request = Request(
            id=call.headers.get(REQUEST_ID) or str(uuid.uuid4()),
            body=parsed.body,
            headers=call.headers,
            path=call.path,
            size_bytes=call.size_bytes,
            received_at=self.clock.now(),
            seed=self._seeds.next(),
        )
        give_priority(request, self._policies)
        if parsed.names_model:
            rewrite = choose_model(request, self._policies)
            if rewrite is not None:
                self._observer.model_rewritten(request, rewrite)
            if not request.model:
                raise ModelMissingError
        return request

    def candidates(self, arrival: Arrival) -> Candidates:
        """Return the endpoints that the gateway allows for a request, as things are now."""
        snapshot = self._store.snapshot()
        return Candidates(snapshot, self._eligible(snapshot, arrival.subset), now=self.clock.now())

    def go(self, arrival: Arrival, candidates: Candidates, room: Mask) -> Routing | Hold:
        """Route a request that has waited, by the pipeline of now, to one of the candidates that have room.

        Raises NeedsFullEndpointError where only others can serve it, or a RequestError that refuses it.
        """
        if arrival.pipeline is not self._pipeline:
            arrival.pipeline, arrival.admitters = self._pipeline, iter(self._pipeline.of(Admitter))
        arrival.admitted = True
        if room.all():
            return self._schedule(arrival, candidates)
        try:
            return self._schedule(arrival, candidates.keep(room))
        except (UnmetConstraintError, ResourceExhaustedError, ServiceUnavailableError) as error:
            self._check_others(arrival, candidates, error)
            raise NeedsFullEndpointError from error

    def fitting(self, arrival: Arrival) -> Candidates:
        """Return the endpoints that could serve a request if they had room."""
        candidates = self.candidates(arrival)
        if not len(candidates):
            return candidates
        try:
            candidates = self._screened(arrival, candidates)
            for producer in arrival.pipeline.of(Producer):
                self._guard.call(Producer.role, producer, producer.produce, arrival.request, candidates)
            return arrival.pipeline.scheduler.schedule(arrival.request, candidates).primary.candidates
        except ResourceExhaustedError:  # filters drop those that are full
            return candidates
        except RequestError:
            return candidates.keep(np.zeros(len(candidates), dtype=np.bool_))

    def _check_others(self, arrival: Arrival, candidates: Candidates, error: RequestError) -> None:
        """Raise the error unless a request could be scheduled if all candidates had room."""
        try:
            arrival.pipeline.scheduler.schedule(arrival.request, self._screened(arrival, candidates))
        except RequestError:
            raise error from None

    def _proceed(self, arrival: Arrival) -> Routing | Hold | InLine:
        """Return the routing, or what to wait for."""
        candidates = self.candidates(arrival)
        if arrival.admitted:
            return self._schedule(arrival, candidates)
        if self.flow is None:
            if len(candidates):
                shed(arrival.request, candidates, self._shedding)
            arrival.admitted = True
            return self._schedule(arrival, candidates)
        if arrival.subset is not None and not len(candidates) and len(candidates.snapshot.available):
            raise _none_eligible(candidates.snapshot)  # room at other endpoints is of no use to it
        return self._enter(self.flow, arrival, candidates)

    def _enter(self, flow: FlowControl, arrival: Arrival, candidates: Candidates) -> Routing | Hold | InLine:
        """Return the routing where there is room, or what to wait for."""
        entrant = InLine(arrival, self)
        if not len(candidates):
            flow.pool_changed(has_endpoints=bool(len(candidates.snapshot.available)))
        room = flow.enter(entrant, candidates)
        if room is not None:
            try:
                return self.go(arrival, candidates, room)
            except NeedsFullEndpointError:
                flow.wait(entrant)
        elif entrant.outcome is not None:
            return entrant.result()
        self._line.arm()
        return entrant

    def _schedule(self, arrival: Arrival, candidates: Candidates) -> Routing | Hold:
        """Return the routing to one of these candidates, or what an admitter has it wait for."""
        snapshot, started, request = candidates.snapshot, candidates.now, arrival.request
        if not len(candidates):
            raise _none_eligible(snapshot)
        eligible = len(candidates)
        candidates = self._screened(arrival, candidates)
        self._observer.candidates_found(request, snapshot, eligible, len(candidates))
        for producer in arrival.pipeline.of(Producer):
            self._guard.call(Producer.role, producer, producer.produce, request, candidates)
        for admitter in arrival.admitters:
            awaited = self._admit(admitter, request, candidates)
            if awaited is not None:
                self._observer.held(request, admitter.name)
                return Hold(admitter, awaited)
        result = arrival.pipeline.scheduler.schedule(request, candidates)
        if _prefers_cached(request.headers) and not _is_cached(arrival.pipeline, request, result):
            raise PreconditionFailedError
        for plugin in arrival.pipeline.of(PreRequest):
            self._guard.call(PreRequest.role, plugin, plugin.pre_request, request, result)
        self._observer.routed(request, result, self.clock.now() - started)
        routing = Routing(
            request,
            result,
            self._credit(request, result),
            arrival.pipeline,
            guard=self._guard,
            observer=self._observer,
            find=self._store.find,
        )
        if self._evictions.started(routing):
            routing.tell_end(self._evictions.ended)
        return routing

    def _screened(self, arrival: Arrival, candidates: Candidates) -> Candidates:
        """Return the candidates that all screeners keep."""
        screeners = arrival.pipeline.of(Screener)
        if not screeners:
            return candidates
        masks = [
            self._guard.call(Screener.role, screener, screener.mask, arrival.request, candidates)
            for screener in screeners
        ]
        kept = [mask for mask in masks if not isinstance(mask, Failure)]
        if not kept:
            return candidates
        left = candidates.keep(np.logical_and.reduce(kept))
        if not len(left):
            raise ScreenedOutError
        return left

    async def _wait(self, arrival: Arrival, hold: Hold | InLine) -> Routing:
        """Proceed each time that the request is released: on a new snapshot, since the old one has aged."""
        try:
            while True:
                if isinstance(hold, InLine):
                    outcome: Routing | Hold | InLine = await hold.end()
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

    def _left(self, arrival: Arrival, hold: Hold | InLine) -> None:
        """Record that the client of a held request has left."""
        if isinstance(hold, InLine) and self._flow is not None:
            self._flow.leave(hold)
        if isinstance(hold, InLine) and isinstance(hold.outcome, Routing):  # released in the same turn
            hold.outcome.complete(Cause.CLIENT_DISCONNECT)
        else:
            self._refused(arrival.request, ClientGoneError("while the request was held"))

    def _left_unread(self, call: Call) -> None:
        self._observer.refused(Refusal(ClientGoneError("while its body was read"), call.headers))

    def _refused(self, request: Request, error: RequestError) -> None:
        seconds = self.clock.now() - request.received_at
        self._observer.refused(Refusal(error, request.headers, request.body.model, seconds, request))

    def _admit(self, admitter: Admitter[Any], request: Request, candidates: Candidates) -> Awaitable[None] | None:
        try:
            awaited = self._guard.call(Admitter.role, admitter, admitter.admit, request, candidates)
        except RequestError as error:
            raise AdmissionDeniedError(error) from error
        return None if isinstance(awaited, Failure) else awaited

    async def _released(self, hold: Hold) -> None:
        try:
            await self._guard.wait(Admitter.role, hold.admitter, _end_of(hold.awaited))
        except RequestError as error:
            raise AdmissionDeniedError(error) from error

    def _credit(self, request: Request, result: SchedulingResult) -> Credit:
        """Credit the request to its target, and to the targets of the other legs."""
        costs = request.get(IN_FLIGHT_COST) or _NO_COSTS
        ledger = self._store.ledger
        primary = result.primary
        slot = primary.slot
        legs: Sequence[Ticket] = ()
        if len(result.profiles) > 1:
            legs = [
                ledger.open(leg.slot, costs.get(profile, 0))
                for profile, leg in result.profiles.items()
                if leg is not None and leg.slot != slot
            ]
        return Credit(ledger.open(slot, costs.get(primary.profile, 0)), legs)

    def _eligible(self, snapshot: Snapshot, subset: Subset | None) -> Positions:
        slots = snapshot.available
        return slots if subset is None or not self._use_subset else slots[subset.mask(snapshot, slots)]

    def _pool_changed(self, change: Change) -> None:
        slots = [slot for slot, _ in change.removed]
        if slots:
            self._evictions.forget(slots)
            for observer in self._pipeline.of(EndpointObserver):
                observer.slots_removed(slots)


def _none_eligible(snapshot: Snapshot) -> RequestError:
    """Return the refusal for want of candidates: those of the gateway's subset, or all of the pool."""
    if len(snapshot.slots) and not len(snapshot.available):
        return UnavailableError(detail=f"none of {len(snapshot.slots)} endpoints can be reached")
    return NoEndpointsError()


async def _end_of(awaited: Awaitable[None]) -> None:
    """Wait for it; raises RuntimeError where it was cancelled by others than this task, whose end that is not."""
    try:
        await awaited
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("what held the request was cancelled") from None


def _prefers_cached(headers: Headers) -> bool:
    """Return whether the preferences contain `if-available`, with or without a value and parameters."""
    if headers.first_of(PREFER) is None:
        return False
    return any(_IF_AVAILABLE.search(value) for name, value in headers.fields() if name == PREFER)


def _is_cached(pipeline: Pipeline, request: Request, result: SchedulingResult) -> bool:
    """Return whether the target is expected to hold the beginning of the prompt, by any producer of matches."""
    keys = {datum for producer in pipeline.of(Producer) for datum in producer.writes if isinstance(datum, DataKey)}
    matches = [request.get(key) for key in keys if key.name == PREFIX_MATCH.name]
    return any(match is not None and match.matched_blocks[result.primary.slot] > 0 for match in matches)
