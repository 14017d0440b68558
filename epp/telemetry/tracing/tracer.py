# SPDX-License-Identifier: Apache-2.0
"""Begins the traces of requests, and records what happens to the sampled ones."""

from collections.abc import Callable, Mapping
from time import time_ns
from typing import Any

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import SpanKind, Tracer, set_span_in_context
from typing_extensions import override

from epp.admission.flow_control import Outcome
from epp.framework.plugin import Plugin, Role, SchedulingObserver
from epp.framework.request import Headers, Request
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import Snapshot
from epp.routing.director import DirectorObserver, Refusal
from epp.routing.director.observers import TRACE, RequestTrace, RequestTracer
from epp.telemetry.tracing.trace import PluginCall, Trace, Unsampled

REQUEST_SPAN = "gateway.request"
_MOST_CALLS = 500
"""Plugin calls of one request that are recorded."""
_NOTHING = Context()


class GatewayTracer(RequestTracer, DirectorObserver):
    """For one event loop. The calls between an attempt to schedule a request and its outcome are of that request."""

    __slots__ = ("_current", "_finish", "_propagator", "_tracer")

    def __init__(self, tracer: Tracer, propagator: TextMapPropagator, finish: Callable[[Trace], None]) -> None:
        """`finish` takes each recorded trace as its exchange ends."""
        self._tracer = tracer
        self._propagator = propagator
        self._finish = finish
        self._current: Trace | None = None

    @property
    @override
    def fields(self) -> frozenset[str]:
        """Those of the propagators."""
        return frozenset(name.lower() for name in self._propagator.fields)

    @override
    def begin(self, headers: Headers, metadata: Mapping[str, str]) -> RequestTrace:
        """Return the trace of a request: that of its gateway's call, the one that its headers name, or a new one.

        A gateway that traces requests names its span in the metadata only: the headers have the span of the client.
        """
        began = time_ns()
        context = self._propagator.extract(headers, _NOTHING)
        if metadata:
            context = self._propagator.extract(metadata, context)
        span = self._tracer.start_span(REQUEST_SPAN, context, SpanKind.SERVER, start_time=began)
        told: dict[str, str] = {}
        self._propagator.inject(told, set_span_in_context(span, context))
        return Trace(span, told, began, self._finish) if span.is_recording() else Unsampled(span, told)

    @override
    def candidates_found(self, request: Request, snapshot: Snapshot, eligible: int, left: int) -> None:
        """Note the calls that follow as those of this request, in place of those of a former attempt."""
        trace = self._current = _recorded(request)
        if trace is not None:
            trace.attempts += 1
            trace.calls.clear()
            trace.profiles.clear()
            trace.found = eligible, left

    def plugin_called(self, role: Role, plugin: Plugin[Any], seconds: float) -> None:
        """Note a call that ended just now."""
        trace = self._current
        if trace is not None and len(trace.calls) < _MOST_CALLS:
            now = trace.now()
            trace.calls.append(PluginCall(role, plugin, now - int(seconds * 1e9), now))

    def profile_started(self, profile: str) -> None:
        """Note that the calls that follow are of this profile."""
        trace = self._current
        if trace is not None and len(trace.calls) < _MOST_CALLS:
            trace.profiles.append((profile, len(trace.calls)))

    @override
    def held(self, request: Request, plugin: str) -> None:
        """Note no more calls."""
        self._current = None

    def queued(self, request: Request) -> None:
        """Note that it waits for room."""
        self._current = None
        if (trace := _recorded(request)) is not None:
            trace.queued_at = trace.now()

    @override
    def left(self, request: Request, outcome: Outcome, seconds: float) -> None:
        """Note that it waits no more."""
        if (trace := _recorded(request)) is not None and trace.queued_at is not None:
            trace.waited = trace.queued_at, trace.now(), outcome.value

    @override
    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:
        """Note where it goes."""
        self._current = None
        if (trace := _recorded(request)) is not None:
            trace.ask(request)
            trace.result = result
            trace.routed_at = trace.now()

    def refused(self, refusal: Refusal) -> None:
        """Note why it is refused."""
        self._current = None
        if refusal.request is not None and (trace := _recorded(refusal.request)) is not None:
            trace.refused(refusal.error, refusal.request)


class TracedScheduling(SchedulingObserver):
    """Tells the observer of the scheduler everything, and the tracer of the plugins that are called."""

    def __init__(self, observer: SchedulingObserver, tracer: GatewayTracer) -> None:
        # Methods of the base, each replaced by the one that is to be told: there are many calls for each request.
        for event in ("plugin_failed", "scores_rejected", "scores_clamped"):
            setattr(self, event, getattr(observer, event))
        self.profile_started = tracer.profile_started  # type: ignore[method-assign]  # as said
        tell, trace = observer.plugin_called, tracer.plugin_called

        def called(role: Role, plugin: Plugin[Any], seconds: float) -> None:
            trace(role, plugin, seconds)  # first: its end is now
            tell(role, plugin, seconds)

        self.plugin_called = called  # type: ignore[method-assign]  # as said


def _recorded(request: Request) -> Trace | None:
    trace = request.get(TRACE)
    return trace if isinstance(trace, Trace) else None
