# SPDX-License-Identifier: Apache-2.0
"""Traces of requests as observers record them, with the context of their spans; works without the SDK."""

from collections.abc import Callable, Mapping
from time import perf_counter_ns, time_ns
from typing import Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Span, SpanKind, Tracer, format_span_id, format_trace_id, set_span_in_context
from opentelemetry.util.types import AttributeValue
from typing_extensions import override

from epp.admission.flow_control.settings import Outcome
from epp.framework.errors import RequestError
from epp.framework.plugin import Plugin, Role, SchedulingObserver
from epp.framework.request import Headers, Request
from epp.framework.result import SchedulingResult
from epp.framework.snapshot import Snapshot
from epp.routing.director import Cause, DirectorObserver, Refusal, Routing
from epp.routing.director.observers import TRACE, RequestTrace, RequestTracer

Attributes = dict[str, AttributeValue]
REQUEST_SPAN = "gateway.request"
_MOST_CALLS = 500
"""Plugin calls of one request that are recorded."""
_NOTHING = Context()


class PluginCall(NamedTuple):
    role: Role
    plugin: Plugin[Any]
    began: int
    """Nanoseconds since the epoch."""
    ended: int


class Unsampled(RequestTrace):
    """A trace that is not recorded here; the endpoint gets its id, flagged as not sampled."""

    __slots__ = ("_headers", "root")

    def __init__(self, root: Span, headers: Mapping[str, str]) -> None:
        """`root` is the span of the whole exchange; `headers` propagate the trace to the endpoint."""
        self.root = root
        self._headers = headers

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers

    @property
    def ids(self) -> Mapping[str, str]:
        context = self.root.get_span_context()
        return {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}

    def complete(self) -> None:
        """Do nothing."""

    def refused(self, error: RequestError, request: Request | None = None) -> None:
        """Do nothing."""

    def ended(self, routing: Routing | None, cause: Cause) -> None:
        """Do nothing."""


class Trace(Unsampled):
    """A trace that is recorded. Times are nanoseconds since the epoch, from a monotonic clock."""

    __slots__ = (
        "_base", "_end", "answered", "asked", "attempts", "calls", "cause", "completed_at", "ended_at", "error",
        "first_byte_at", "found", "profiles", "queued_at", "request", "result", "routed_at", "status", "waited",
    )  # fmt: skip

    def __init__(self, root: Span, headers: Mapping[str, str], began: int, end: Callable[["Trace"], None]) -> None:
        """`end` is called with the trace when the exchange has ended."""
        super().__init__(root, headers)
        self._base = began - perf_counter_ns()
        self._end = end
        self.request: Attributes = {}
        """Model and id, which most spans have."""
        self.asked: Attributes = {}
        """Attributes of the request, without its prompt; text is as the client wrote it."""
        self.answered: Attributes = {}
        """Attributes of the response."""
        self.status = 0
        """Status of the response; 0 for none."""
        self.first_byte_at: int | None = None
        self.completed_at: int | None = None
        """Time at which the request was complete."""
        self.routed_at: int | None = None
        """Time at which the request was routed or refused."""
        self.ended_at: int | None = None
        self.cause = Cause.ERROR
        self.error: RequestError | None = None
        self.attempts = 0
        """Number of attempts to schedule the request: one, and another after each wait."""
        self.found: tuple[int, int] | None = None
        """Number of endpoints in the gateway's subset, and of those left by screeners, at the last attempt."""
        self.calls: list[PluginCall] = []
        """Plugin calls of the last attempt."""
        self.profiles: list[tuple[str, int]] = []
        """Profiles that ran in the last attempt, each with the number of calls before it."""
        self.result: SchedulingResult | None = None
        self.queued_at: int | None = None
        self.waited: tuple[int, int, str] | None = None
        """Start, end and outcome of the time in a queue."""

    def now(self) -> int:
        return self._base + perf_counter_ns()

    def complete(self) -> None:
        self.completed_at = self.now()

    def refused(self, error: RequestError, request: Request | None = None) -> None:
        if self.error is not None or self.ended_at is not None:
            return
        self.error = error
        if request is not None:
            self.ask(request)
        if self.routed_at is None:
            self.routed_at = self.now()

    def ended(self, routing: Routing | None, cause: Cause) -> None:
        if self.ended_at is not None:
            return
        self.ended_at = self.now()
        self.cause = cause
        if routing is not None:
            served, usage, first = routing.served, routing.usage, routing.first_byte_at
            self.answered = {
                "llm_d.epp.request.endpoint": served.name,
                "server.address": served.address,
                "server.port": served.port,
            }
            self.status = routing.status
            if usage is not None:
                self.answered["gen_ai.usage.input_tokens"] = usage.prompt_tokens
                self.answered["gen_ai.usage.output_tokens"] = usage.completion_tokens
            if first is not None and self.completed_at is not None:
                # `first` is from the director's clock, and so is the time of arrival.
                self.first_byte_at = self.completed_at + int((first - routing.request.received_at) * 1e9)
        self._end(self)

    def ask(self, request: Request) -> None:
        body = request.body
        self.request = {"gen_ai.request.id": request.id}
        if request.model:
            self.request["gen_ai.request.model"] = request.model
        self.asked = {
            "llm_d.epp.request.model": body.model,
            "llm_d.epp.request.priority": request.priority,
            "llm_d.epp.request.fairness_id": request.fairness_id,
            "llm_d.epp.request.prompt_tokens": request.prompt_tokens,
            "llm_d.epp.request.streaming": body.streaming,
        }


class GatewayTracer(RequestTracer, DirectorObserver):
    """Tracer of one event loop: plugin calls belong to the request whose scheduling began last."""

    __slots__ = ("_current", "_finish", "_propagator", "_tracer")

    def __init__(self, tracer: Tracer, propagator: TextMapPropagator, finish: Callable[[Trace], None]) -> None:
        """`finish` is called with each recorded trace at the end of its exchange."""
        self._tracer = tracer
        self._propagator = propagator
        self._finish = finish
        self._current: Trace | None = None

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(name.lower() for name in self._propagator.fields)

    def begin(self, headers: Headers, metadata: Mapping[str, str]) -> RequestTrace:
        """Return the trace of a request: from the gateway's call, from the request headers, or a new one.

        A gateway that traces requests has its own span in the metadata; the headers have the span of the client.
        """
        began = time_ns()
        context = self._propagator.extract(headers, _NOTHING)
        if metadata:
            context = self._propagator.extract(metadata, context)
        span = self._tracer.start_span(REQUEST_SPAN, context, SpanKind.SERVER, start_time=began)
        injected: dict[str, str] = {}
        self._propagator.inject(injected, set_span_in_context(span, context))
        return Trace(span, injected, began, self._finish) if span.is_recording() else Unsampled(span, injected)

    @override
    def candidates_found(self, request: Request, snapshot: Snapshot, eligible: int, left: int) -> None:
        """Record the following calls for this request; those of an earlier attempt are dropped."""
        trace = self._current = _recorded(request)
        if trace is not None:
            trace.attempts += 1
            trace.calls.clear()
            trace.profiles.clear()
            trace.found = eligible, left

    def plugin_called(self, role: Role, plugin: Plugin[Any], seconds: float) -> None:
        """Record a call that ends now."""
        trace = self._current
        if trace is not None and len(trace.calls) < _MOST_CALLS:
            now = trace.now()
            trace.calls.append(PluginCall(role, plugin, now - int(seconds * 1e9), now))

    def profile_started(self, profile: str) -> None:
        """Record the following calls for this profile."""
        trace = self._current
        if trace is not None and len(trace.calls) < _MOST_CALLS:
            trace.profiles.append((profile, len(trace.calls)))

    @override
    def held(self, request: Request, plugin: str) -> None:
        self._current = None

    def queued(self, request: Request) -> None:
        self._current = None
        if (trace := _recorded(request)) is not None:
            trace.queued_at = trace.now()

    @override
    def left(self, request: Request, outcome: Outcome, seconds: float) -> None:
        if (trace := _recorded(request)) is not None and trace.queued_at is not None:
            trace.waited = trace.queued_at, trace.now(), outcome.value

    @override
    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:
        self._current = None
        if (trace := _recorded(request)) is not None:
            trace.ask(request)
            trace.result = result
            trace.routed_at = trace.now()

    def refused(self, refusal: Refusal) -> None:
        self._current = None
        if refusal.request is not None and (trace := _recorded(refusal.request)) is not None:
            trace.refused(refusal.error, refusal.request)


class TracedScheduling(SchedulingObserver):
    """Forwards all events to an observer of the scheduler, and plugin calls and profiles to the tracer."""

    def __init__(self, observer: SchedulingObserver, tracer: GatewayTracer) -> None:
        # Direct references in place of methods that forward: each request has many events.
        for event in ("plugin_failed", "scores_rejected", "scores_clamped"):
            setattr(self, event, getattr(observer, event))
        self.profile_started = tracer.profile_started  # type: ignore[method-assign]  # see above
        observe, trace = observer.plugin_called, tracer.plugin_called

        def called(role: Role, plugin: Plugin[Any], seconds: float) -> None:
            trace(role, plugin, seconds)  # first, because it takes the current time as the end of the call
            observe(role, plugin, seconds)

        self.plugin_called = called  # type: ignore[method-assign]  # see above


def _recorded(request: Request) -> Trace | None:
    trace = request.get(TRACE)
    return trace if isinstance(trace, Trace) else None
