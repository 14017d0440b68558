# SPDX-License-Identifier: Apache-2.0
"""Simulated requests, which are routed by the same steps as others, without side effects."""

from collections.abc import Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from time import perf_counter
from typing import NamedTuple

import msgspec
import numpy as np

from epp.admission.flow_control.bands import Bands
from epp.admission.flow_control.guarded import GuardedDetector, guarded
from epp.admission.flow_control.in_flight_eviction import Evictions
from epp.admission.flow_control.settings import FlowControlSettings
from epp.admission.quotas import Quotas, Reservation
from epp.framework.arrays import read_only
from epp.framework.candidates import Candidates, Subset
from epp.framework.errors import RequestError
from epp.framework.messages import printable
from epp.framework.plugin import SchedulingObserver
from epp.framework.quotas import QuotaSource
from epp.framework.refusals import StartingError
from epp.framework.request import Headers, Request
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import IN_FLIGHT, IN_FLIGHT_TOKENS, RUNNING, Snapshot
from epp.routing.director.incoming_request import IncomingRequest, path_of
from epp.routing.director.observers import DirectorObserver
from epp.routing.director.open_requests import Attempts, Reservations
from epp.routing.director.pipeline import Pipeline, PoolPolicies
from epp.routing.director.router import RETRY_WITH_FULL, BlockedError, QueueDirective, Router, Runtime, none_eligible
from epp.routing.director.waiting import UsualDetector, shed
from epp.routing.outliers.outlier_detector import OutlierDetector

_MOST_PROBLEMS = 20
_MOST_PROBLEM = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    request: Request
    outcome: SchedulingResult | RequestError
    snapshot: Snapshot
    eligible: int = 0
    """Number of endpoints that the gateway allows."""
    screened: int = 0
    """Number of these that screeners and quotas keep."""
    waits: str = ""
    """Reason for waiting before the outcome; empty for none."""
    problems: tuple[str, ...] = ()
    """Failures of plugins."""
    seconds: float = 0.0
    """Duration of the decision."""


class InFlight(NamedTuple):
    """A request in flight that a simulation treats as ended."""

    request: Request
    endpoints: tuple[str, ...]
    """Ids of its endpoints, the target first."""
    reservation: Reservation | None = None
    """None without quotas."""


class _Trace(SchedulingObserver, DirectorObserver):
    def __init__(self) -> None:
        self.eligible = 0
        self.screened = 0
        self.problems: list[str] = []

    def candidates_found(self, request: Request, snapshot: Snapshot, eligible: int, left: int) -> None:  # noqa: ARG002
        self.screened = left

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:  # noqa: ARG002
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(printable(f"{plugin}: {problem}", _MOST_PROBLEM))


@dataclass(eq=False)
class Simulation:
    """Simulates routing by one pipeline at one moment, on the event loop of the director.

    It has no side effects: it draws no seed, and reserves, charges, counts and observes nothing; no hook runs after the
    pick, and plugins record nothing, because `dry_run` is set for request and snapshot.
    """

    runtime: Runtime
    pipeline: Pipeline
    _: KW_ONLY
    snapshot: Snapshot | None
    policies: PoolPolicies
    quotas: Quotas
    queues: Bands | None
    outliers: OutlierDetector
    use_subset: bool
    is_closed: bool
    ended: Sequence[InFlight] = ()
    """Requests that are treated as ended: their room at endpoints and in quotas is free."""

    def __post_init__(self) -> None:
        self._trace = trace = _Trace()
        self._clock = clock = self.runtime.clock
        dry = Runtime(self.runtime.store, clock, trace)
        self._guard = dry.guard
        snapshot = _without(self.snapshot or dry.store.snapshot(), self.ended)
        self._snapshot = msgspec.structs.replace(snapshot, dry_run=True)
        ended = [each.reservation for each in self.ended if each.reservation is not None]
        self._quotas = self.quotas.twin(self.pipeline.of(QuotaSource), guard=dry.guard, ended=ended)
        self.pipeline = replace(self.pipeline, scheduler=self.pipeline.scheduler.observed_by(trace))
        self._router = Router(
            dry,
            self.pipeline,
            evictions=Evictions(clock),
            quotas=self._quotas,
            reservations=Reservations(clock),
            attempts=Attempts(),
            outliers=self.outliers,
        )

    def read(self, headers: Headers, body: bytes, subset: Subset | None) -> IncomingRequest:
        """Return the request with its parsed body, for one `run`; raises a RequestError."""
        return IncomingRequest.read(self.pipeline, headers, body, subset if self.use_subset else None, dry_run=True)

    def refusal(self, headers: Headers, error: RequestError) -> Simulated:
        request = Request("", headers=headers, path=path_of(headers), dry_run=True)
        return Simulated(request=request, outcome=error, snapshot=self._snapshot)

    def run(self, incoming: IncomingRequest, *, seed: int) -> Simulated:
        started = perf_counter()
        trace = self._trace
        trace.problems.clear()
        trace.eligible = trace.screened = 0
        waits = ""
        outcome: SchedulingResult | RequestError
        try:
            incoming.identify(self.policies, seed=seed, now=self._clock.now(), observer=trace)
            if self.is_closed:
                raise StartingError
            incoming.assign_flow(self._guard)
            outcome, waits = self._decided(incoming)
        except RequestError as error:
            outcome = error
        except BlockedError as error:
            outcome = error.blocked.error()
        return Simulated(
            request=incoming.request,
            outcome=outcome,
            snapshot=self._snapshot,
            eligible=trace.eligible,
            screened=trace.screened,
            waits=waits,
            problems=tuple(trace.problems),
            seconds=perf_counter() - started,
        )

    def _decided(self, incoming: IncomingRequest) -> tuple[SchedulingResult | RequestError, str]:
        """Return the outcome of a request, and its reason for waiting before that; raises its refusal."""
        request, settings = incoming.request, self.pipeline.flow_control
        if self._quotas.is_active:
            self._quotas.check_single(request)
        candidates = self._router.among(self._snapshot, incoming)
        self._trace.eligible = len(candidates)
        if settings is None:
            if len(candidates):
                named = self.pipeline.shedding
                shed(request, candidates, UsualDetector() if named is None else GuardedDetector(named, self._guard))
            self._check_quota(incoming)
            return self._scheduled(incoming, candidates)
        if not len(candidates):
            error = none_eligible(self._snapshot)
            if incoming.request.subset is not None and len(self._snapshot.available):
                raise error  # it cannot use room at other endpoints
            return error, "an endpoint"
        queues = self.queues
        must_queue = queues is not None and not queues.has_turn(request.fairness_id)
        waits = f"its turn: {queues.requests} wait already" if queues is not None and must_queue else ""
        try:
            self._check_quota(incoming)
            outcome, also = self._with_room(incoming, candidates, settings)
        except BlockedError as error:
            if not settings.may_wait(error.blocked, request.priority, self._clock.now()):
                raise
            self._quotas.is_active = False  # decide as if the quota had room
            try:
                outcome, also = self._with_room(incoming, candidates, settings)
            finally:
                self._quotas.is_active = True
            also = f"the quota of its tenant ({error.blocked.breach.key})"
        return outcome, waits or also

    def _with_room(
        self, incoming: IncomingRequest, candidates: Candidates, settings: FlowControlSettings
    ) -> tuple[SchedulingResult | RequestError, str]:
        """Return the outcome among candidates with room, or among all if none of these can serve the request."""
        settings = guarded(replace(settings, usage_limits=copy(settings.usage_limits)), self._guard)
        room = settings.detector.fullness(candidates) < settings.ceiling(incoming.request.priority, candidates)
        if not room.any():
            outcome, _ = self._scheduled(incoming, candidates)
            return outcome, "room at an endpoint"
        try:
            return self._scheduled(incoming, candidates.keep(room))
        except RETRY_WITH_FULL as error:
            if room.all():
                raise
            try:
                outcome, _ = self._scheduled(incoming, candidates)
            except (RequestError, BlockedError):
                raise error from None
            return outcome, "room at an endpoint that can serve it"

    def _scheduled(self, incoming: IncomingRequest, candidates: Candidates) -> tuple[SchedulingResult, str]:
        """Return the result, and the admitter that would first hold the request; raises BlockedError."""
        waits = ""
        while isinstance(outcome := self._router.decide(incoming, candidates), QueueDirective):
            waits = f"the admitter {printable(outcome.admitter.name)}"
            outcome.abandon()
        if self._quotas.is_active:
            slots = [outcome.primary.slot]
            slots += [leg.slot for leg in outcome.profiles.values() if leg is not None and leg.slot != slots[0]]
            blocked = self._quotas.refusal(incoming.request, self._snapshot, slots)
            if blocked is not None:
                raise BlockedError(blocked)
        return outcome, waits

    def _check_quota(self, incoming: IncomingRequest) -> None:
        blocked = self._router.blocked(incoming)
        if blocked is not None:
            raise BlockedError(blocked)


def _without(snapshot: Snapshot, ended: Sequence[InFlight]) -> Snapshot:
    if not ended:
        return snapshot
    slots = {endpoint.id: slot for slot, endpoint in enumerate(snapshot.endpoints.values) if endpoint is not None}
    columns = {each.name: snapshot.column(each).copy() for each in (IN_FLIGHT, IN_FLIGHT_TOKENS, RUNNING)}
    for request, endpoints, _ in ended:
        for slot in (slots[name] for name in endpoints if name in slots):
            for column, amount in ((IN_FLIGHT, 1), (IN_FLIGHT_TOKENS, request.prompt_tokens), (RUNNING, 1)):
                values = columns[column.name]
                values[slot] = np.maximum(values[slot] - amount, 0.0)  # NaN stays unknown
    read = {name: read_only(values) for name, values in columns.items()}
    return msgspec.structs.replace(snapshot, columns={**snapshot.columns, **read})
