# SPDX-License-Identifier: Apache-2.0
"""Spans of a recorded trace, with the names and attributes of llm-d-router; created in a separate thread."""

from collections.abc import Iterator, Sequence
from itertools import takewhile

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from epp.framework.errors import InternalError, RequestError
from epp.framework.headers import PREFILLER
from epp.framework.messages import printable
from epp.framework.result import ProfileResult, SchedulingResult
from epp.framework.roles import Aggregator, Filter, Picker, Producer, ProfilePicker, Scorer
from epp.routing.director import Cause, top_values
from epp.telemetry.tracing.trace import Attributes, PluginCall, Trace

ORCHESTRATION_SPAN = "gateway.request_orchestration"
PROFILE_SPAN = "run_scheduler_profile"
FILTER_SPAN = "filter_endpoints"
SCORING_SPAN = "llm_d.epp.scoring"
PICK_SPAN = "pick_endpoints"
_DISAGGREGATING = ("disagg-profile-handler", "pd-profile-handler")
_FILTER, _SCORER, _PICKER = Filter.role.name, Scorer.role.name, Picker.role.name
_IN_PROFILES = (_FILTER, _SCORER, _PICKER)
"""Names of roles; the role objects differ if a configuration sets another error policy."""
_TOP_ENDPOINTS = 5
_MOST_TEXT = 300
_SERVER_ERROR = 500
_NO_ERROR = (Cause.NATURAL, Cause.UNSEEN, Cause.CLIENT_DISCONNECT)


class SpanMaker:
    """Ends the span of a request and creates its child spans."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def make(self, trace: Trace) -> None:
        """End the span of the request; incomplete traces are allowed."""
        request = _printable(trace.request)
        self._orchestration(trace, request)
        root = trace.root
        root.set_attributes({**request, **_exchange(trace)})
        if trace.first_byte_at is not None:
            root.add_event("first_token", timestamp=trace.first_byte_at)
        failure = _failure(trace)
        if failure is not None:
            root.set_status(Status(StatusCode.ERROR, failure))
        root.end(trace.ended_at)

    def _orchestration(self, trace: Trace, request: Attributes) -> None:
        if trace.completed_at is None:
            return
        attributes = dict(request)
        if trace.asked:
            attributes["target_model"] = request.get("gen_ai.request.model", "")
            attributes["request_prio"] = trace.asked["llm_d.epp.request.priority"]
        if trace.found is not None:
            eligible, left = trace.found
            attributes |= {
                "llm_d.epp.scheduling.attempts": trace.attempts,
                "llm_d.epp.scheduling.eligible_endpoints": eligible,
                "llm_d.epp.scheduling.screened_endpoints": left,
            }
        span = self._begin(ORCHESTRATION_SPAN, trace.root, trace.completed_at, attributes, SpanKind.SERVER)
        if trace.waited is not None:
            began, ended, outcome = trace.waited
            self._make("llm_d.epp.flow_control", span, began, ended, {"llm_d.epp.flow_control.outcome": outcome})
        self._calls(trace, span, request)
        if trace.error is not None and trace.result is None:
            span.set_status(Status(StatusCode.ERROR, _message(trace.error)))
        span.end(trace.ended_at if trace.routed_at is None else trace.routed_at)

    def _calls(self, trace: Trace, parent: Span, request: Attributes) -> None:
        legs = {} if trace.result is None else trace.result.profiles
        for profile, calls in _runs(trace):
            self._run(profile, calls, legs.get(profile), parent, request)
        for call in trace.calls:
            kind = call.plugin.plugin_type
            if call.role.name == Producer.role.name:
                names: Attributes = {"llm_d.epp.producer.type": kind, "llm_d.epp.producer.name": call.plugin.name}
                self._make(f"llm_d.epp.producer.{kind}", parent, call.began, call.ended, names)
            elif call.role.name == ProfilePicker.role.name and kind in _DISAGGREGATING:
                self._make("pick_disagg_profile", parent, call.began, call.ended, request)
            elif call.role.name == Aggregator.role.name and kind in _DISAGGREGATING:
                used = _disaggregation(trace.result)
                self._make("prepare_disaggregation", parent, call.began, call.ended, {**request, **used})

    def _run(
        self, profile: str, calls: Sequence[PluginCall], result: ProfileResult | None, parent: Span, request: Attributes
    ) -> None:
        """Create the spans of one profile run; a run without a picker call has failed."""
        named: Attributes = {**request, "llm_d.epp.scheduling.profile.name": profile}
        span = self._begin(PROFILE_SPAN, parent, calls[0].began, named)
        if filters := [call for call in calls if call.role.name == _FILTER]:
            self._filters(filters, result, span, request)
        if scorers := [call for call in calls if call.role.name == _SCORER]:
            self._scorers(scorers, result, span, request)
        picker = next((call for call in calls if call.role.name == _PICKER), None)
        if picker is not None:
            attributes = dict(request)
            if result is not None:
                top = top_values(result.candidates, result.totals, _TOP_ENDPOINTS)
                attributes |= {
                    "llm_d.epp.picker.candidate_endpoints": len(result.candidates),
                    "llm_d.epp.picker.top_endpoints": list(top),
                    "llm_d.epp.picker.top_scores": list(top.values()),
                }
            self._make(PICK_SPAN, span, picker.began, picker.ended, attributes)
        else:
            span.set_status(Status(StatusCode.ERROR, "no endpoint is left, or a plugin failed"))
        span.end(calls[-1].ended)

    def _filters(
        self, calls: Sequence[PluginCall], result: ProfileResult | None, parent: Span, request: Attributes
    ) -> None:
        attributes = dict(request)
        traces = () if result is None else result.filters
        if traces:
            attributes["llm_d.epp.filter.candidate_endpoints"] = traces[0].before
            attributes["llm_d.epp.filter.filtered_endpoints"] = traces[-1].after
        span = self._begin(FILTER_SPAN, parent, calls[0].began, attributes)
        left = {trace.plugin: trace for trace in traces}
        for call in calls:
            trace = left.get(call.plugin.name)
            counts: Attributes = {} if trace is None else {"before": trace.before, "after": trace.after}
            span.add_event("filter", {"plugin": call.plugin.name, **counts}, call.ended)
        span.end(calls[-1].ended)

    def _scorers(
        self, calls: Sequence[PluginCall], result: ProfileResult | None, parent: Span, request: Attributes
    ) -> None:
        count: Attributes = {"llm_d.epp.scorer.count": len(calls)}
        if result is not None:
            count["llm_d.epp.scoring.candidate_endpoints"] = len(result.candidates)
        span = self._begin(SCORING_SPAN, parent, calls[0].began, {**count, **request})
        scores = {} if result is None else {trace.plugin: trace for trace in result.scores}
        for call in calls:
            kind, trace = call.plugin.plugin_type, scores.get(call.plugin.name)
            attributes: Attributes = {"llm_d.epp.scorer.type": kind, "llm_d.epp.scorer.name": call.plugin.name}
            if trace is not None:
                attributes |= {
                    "llm_d.epp.scorer.weight": trace.weight,
                    "llm_d.epp.scorer.candidate_endpoints": len(trace.scores),
                    "llm_d.epp.scorer.score.max": float(trace.scores.max()),
                    "llm_d.epp.scorer.score.avg": float(trace.scores.mean()),
                    "llm_d.epp.scorer.endpoints_scored": len(trace.scores),
                }
            self._make(f"llm_d.epp.scorer.{kind}", span, call.began, call.ended, attributes)
        span.end(calls[-1].ended)

    def _make(self, name: str, parent: Span, began: int, ended: int, attributes: Attributes) -> None:
        self._begin(name, parent, began, attributes).end(ended)

    def _begin(
        self, name: str, parent: Span, began: int, attributes: Attributes, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        return self._tracer.start_span(name, set_span_in_context(parent, Context()), kind, attributes, start_time=began)


def _printable(attributes: Attributes) -> Attributes:
    """Return the attributes with printable text: clients choose some of it."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in attributes.items()}


def _exchange(trace: Trace) -> Attributes:
    attributes: Attributes = {"llm_d.epp.request.outcome": trace.cause.value, **_printable(trace.asked)}
    if trace.result is not None:
        attributes["llm_d.epp.request.profile"] = trace.result.primary.profile
    attributes |= trace.answered
    if trace.status:
        attributes["http.response.status_code"] = trace.status
    if (error := trace.error) is not None:
        attributes |= {
            "llm_d.epp.request.outcome": "refused",
            "error.type": error.reason or error.code,
            "http.response.status_code": error.status,
        }
    return attributes


def _failure(trace: Trace) -> str | None:
    """Return the reason that a request failed; None if no failure is known."""
    if trace.error is not None:
        return _message(trace.error)
    if trace.cause not in _NO_ERROR:
        return trace.cause.value
    return str(trace.status) if trace.status >= _SERVER_ERROR else None


def _message(error: RequestError) -> str:
    """Return the message of an error, without text of the prompt."""
    text = str(error) if isinstance(error, InternalError) else error.message
    return printable(text, _MOST_TEXT)


def _runs(trace: Trace) -> Iterator[tuple[str, Sequence[PluginCall]]]:
    """Yield the name and the calls of each profile run that called a plugin."""
    ends = [first for _, first in trace.profiles[1:]] + [len(trace.calls)]
    for (profile, first), end in zip(trace.profiles, ends, strict=False):
        if calls := list(takewhile(lambda call: call.role.name in _IN_PROFILES, trace.calls[first:end])):
            yield profile, calls


def _disaggregation(result: SchedulingResult | None) -> Attributes:
    if result is None:
        return {}
    prefiller = result.destination.headers.get(PREFILLER, "")
    used: Attributes = {"llm_d.epp.pd.disaggregation_used": bool(prefiller)}
    if prefiller:
        address, _, port = prefiller.rpartition(":")
        used |= {"llm_d.epp.pd.prefill_pod_address": address, "llm_d.epp.pd.prefill_pod_port": port}
    return used
