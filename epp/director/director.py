"""The director: parses, narrows the candidates, runs producers and scheduler, credits the endpoint."""

import uuid
from collections.abc import Callable
from typing import Any, TypeVarTuple

from epp.bodies import completed
from epp.datastore import Change, Datastore, Ticket
from epp.director.pipeline import Parsed, Pipeline
from epp.director.routing import Cause, Routing
from epp.director.subset import Subset
from epp.framework.arrays import Positions
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock
from epp.framework.errors import (
    AdmissionDeniedError,
    BadRequestError,
    ModelMissingError,
    NoEndpointsError,
    PluginFailedError,
    RequestError,
)
from epp.framework.headers import FAIRNESS_ID, MODEL_REWRITE, PATHS, REQUEST_ID
from epp.framework.hooks import Admitter
from epp.framework.plugins import Plugin
from epp.framework.request import AGENT_IDENTITY, DEFAULT_FLOW, IN_FLIGHT_COST, Headers, Request, RequestBody
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import Snapshot

_Arguments = TypeVarTuple("_Arguments")

DEFAULT_PATH = "/v1/completions"
_NOTHING = Parsed(RequestBody(), names_model=False)


class DirectorObserver:
    """No-op hooks; override what you want to see."""

    __slots__ = ()

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:
        """Tell that a request goes its way."""

    def refused(self, model: str, error: RequestError) -> None:
        """Tell that a request goes nowhere; `model` is empty where the body named none."""

    def completed(self, routing: Routing, cause: Cause) -> None:
        """Tell that a routed request ended."""

    def plugin_failed(self, plugin: str, error: Exception) -> None:
        """Tell that a plugin raised: what it adds is missing; of a pre-request hook, the request fails."""


class Director:
    """Synchronous from end to end: nothing here waits."""

    def __init__(
        self,
        store: Datastore,
        pipeline: Pipeline,
        clock: Clock,
        *,
        observer: DirectorObserver | None = None,
        use_subset: bool = True,
    ) -> None:
        self.clock = clock
        self._store = store
        self._pipeline = pipeline
        self._observer = observer or DirectorObserver()
        self._use_subset = use_subset
        store.subscribe(self._pool_changed)

    def use(self, pipeline: Pipeline) -> None:
        """Route all further requests by another pipeline; those on their way stay with theirs."""
        self._pipeline = pipeline

    def route(self, headers: Headers, body: bytes, subset: Subset | None, *, partial: bool = False) -> Routing:
        """Return where a request goes; raises a RequestError that says why it can go nowhere.

        A request without a body names no model and goes to any endpoint the profiles like; so does one of whose body
        only a `partial` beginning is known, if that does not say enough.
        """
        pipeline = self._pipeline
        parsed = RequestBody()
        try:
            path = _path(headers)
            parsed, names_model = _parse(pipeline, path, headers, body, partial=partial)
            target_model = headers.first_of(*MODEL_REWRITE) or "" if names_model else ""
            if names_model and not (parsed.model or target_model):
                raise ModelMissingError
            request = Request(
                id=headers.get(REQUEST_ID) or str(uuid.uuid4()),
                body=parsed,
                headers=headers,
                path=path,
                size_bytes=len(body),
                received_at=self.clock.now(),
                target_model=target_model,
            )
            for plugin in pipeline.request_headers:
                self._attempt(plugin, plugin.request_headers, request)
            request.fairness_id = headers.first_of(*FAIRNESS_ID) or request.get(AGENT_IDENTITY) or DEFAULT_FLOW
            return self._route(pipeline, request, subset)
        except RequestError as error:
            self._observer.refused(parsed.model, error)
            raise

    def _route(self, pipeline: Pipeline, request: Request, subset: Subset | None) -> Routing:
        snapshot = self._store.snapshot()
        candidates = Candidates(snapshot, self._eligible(snapshot, subset))
        if not len(candidates):
            raise NoEndpointsError
        started = self.clock.now()
        for producer in pipeline.producers:
            self._attempt(producer, producer.produce, request, candidates)
        for admitter in pipeline.admitters:
            self._admit(admitter, request, candidates)
        result = pipeline.scheduler.schedule(request, candidates)
        for plugin in pipeline.pre_request:
            try:
                plugin.pre_request(request, result)
            except RequestError:
                raise
            except Exception as error:
                self._observer.plugin_failed(plugin.name, error)
                raise PluginFailedError(plugin.name, str(error)) from error
        self._observer.routed(request, result, self.clock.now() - started)
        ticket, legs = self._credit(request, result)
        return Routing(
            request,
            result,
            ticket,
            legs=legs,
            control_names=pipeline.control_names(request.headers),
            find=self._store.find,
            observer=self._observer,
            response_headers=pipeline.response_headers,
            timers=pipeline.timers,
            reporters=pipeline.reporters,
        )

    def _credit(self, request: Request, result: SchedulingResult) -> tuple[Ticket, list[Ticket]]:
        """Enter the request in the books of its target, and in those of the other legs' targets."""
        costs = request.get(IN_FLIGHT_COST) or {}
        ledger = self._store.ledger
        primary = result.primary
        legs = [
            ledger.open(leg.slot, costs.get(profile, 0))
            for profile, leg in result.profiles.items()
            if leg is not None and leg.slot != primary.slot
        ]
        return ledger.open(primary.slot, costs.get(primary.profile, 0)), legs

    def _attempt(self, plugin: Plugin[Any], hook: Callable[[*_Arguments], None], *arguments: *_Arguments) -> None:
        """Call what the request can do without."""
        try:
            hook(*arguments)
        except Exception as error:  # noqa: BLE001  its readers do without, the request goes on
            self._observer.plugin_failed(plugin.name, error)

    def _admit(self, admitter: Admitter[Any], request: Request, candidates: Candidates) -> None:
        try:
            admitter.admit(request, candidates)
        except RequestError as error:
            raise AdmissionDeniedError(error) from error
        except Exception as error:  # noqa: BLE001  who cannot judge turns nobody away
            self._observer.plugin_failed(admitter.name, error)

    def _eligible(self, snapshot: Snapshot, subset: Subset | None) -> Positions:
        if subset is None or not self._use_subset:
            return snapshot.available
        return subset.narrow(snapshot, snapshot.available)

    def _pool_changed(self, change: Change) -> None:
        slots = [slot for slot, _ in change.removed]
        if slots:
            for observer in self._pipeline.endpoint_observers:
                observer.slots_removed(slots)


def _parse(pipeline: Pipeline, path: str, headers: Headers, body: bytes, *, partial: bool) -> Parsed:
    if not body:
        return _NOTHING
    if not partial:
        return pipeline.parsers.parse(path, headers, body)
    try:
        parsed = pipeline.parsers.parse(path, headers, completed(body))
    except BadRequestError:  # what is missing may be what makes it good
        return _NOTHING
    return parsed if parsed.body.model else _NOTHING  # the model may be named in what is missing


def _path(headers: Headers) -> str:
    path = headers.first_of(*PATHS) or DEFAULT_PATH
    return path.partition("?")[0]
