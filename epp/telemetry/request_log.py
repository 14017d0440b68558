# SPDX-License-Identifier: Apache-2.0
"""Log lines of requests: one at the end of each request, or one for each step. No line has text of a prompt."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from epp.admission.flow_control.settings import QUEUEING_OUTCOME, Outcome
from epp.extproc.http2.limits import Budget, Rate
from epp.framework import Request, SchedulingResult
from epp.framework.clock import Clock, SystemClock
from epp.framework.errors import InternalError, RequestError
from epp.framework.headers import OBJECTIVE, REQUEST_ID
from epp.framework.messages import printable
from epp.framework.refusals import ClientGoneError
from epp.framework.result import ProfileResult
from epp.framework.snapshot import Snapshot
from epp.routing.director import Cause, Decision, DirectorObserver, Refusal, Rewrite, Routing, top_values
from epp.routing.director.observers import TRACE

_LINES_FROM = 2
_STEPS_FROM = 4
_BURST_SECONDS = 10.0
"""The burst of lines is limited to the number allowed in this time."""
_SUCCEEDED = (Cause.NATURAL, Cause.UNSEEN)
_FIRST_ERROR = 400
_MOST_WHY = 300
_log = structlog.get_logger()


def request_log(verbosity: int, most_per_second: float = 0.0) -> tuple[DirectorObserver, ...]:
    """Return the observers that log requests at this verbosity (the `-v` flag): none below 2, every step from 4 on.

    Below 4, `most_per_second` limits the lines of successful requests; 0 for no limit.
    """
    if verbosity < _LINES_FROM:
        return ()
    if verbosity >= _STEPS_FROM:
        return StepLog(), RequestLog(SystemClock())
    return (RequestLog(SystemClock(), most_per_second),)


class RequestLog(DirectorObserver):
    """Logs one line at the end of each request; all lines have the same fields, null if they do not apply."""

    def __init__(self, clock: Clock, most_per_second: float = 0.0) -> None:
        """Prepare; above `most_per_second`, successful requests have no line; 0 for no limit."""
        self._clock = clock
        rate = Rate(most_per_second * _BURST_SECONDS, most_per_second)
        self._budget = Budget(rate, "log lines") if most_per_second else None
        self._unlogged = 0

    def _may_log(self, routing: Routing, cause: Cause) -> bool:
        """Return whether a request gets a line; a failed request always does."""
        if self._budget is None or cause not in _SUCCEEDED or routing.status >= _FIRST_ERROR:
            return True
        is_allowed = self._budget.allows(self._clock.now())
        self._unlogged += not is_allowed
        return is_allowed

    def _take_unlogged(self) -> int:
        count, self._unlogged = self._unlogged, 0
        return count

    def completed(self, routing: Routing, cause: Cause) -> None:
        if not self._may_log(routing, cause):
            return
        request, decision, usage = routing.request, routing.decision, routing.usage
        first, ended = routing.first_byte_at, routing.ended_at
        scores, share = decision.scores(), decision.cached_share
        _log.info(
            REQUEST_EVENT,
            request_id=printable(request.id),
            model=printable(request.body.model),
            **_policies(request),
            **_queueing(request),
            endpoint=routing.served.name,
            address=routing.served.hostport,
            status=routing.status or None,
            outcome=cause.value,
            reason=None,
            why=decision.why(routing.served, scores),
            profile=routing.result.primary.profile,
            scores={name: round(score, 3) for name, score in scores.items()},
            cached_share=None if share is None else round(share, 3),
            ttft_seconds=None if first is None else round(first - request.began_at, 6),
            duration_seconds=round((self._clock.now() if ended is None else ended) - request.began_at, 6),
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
            completion_tokens=None if usage is None else usage.completion_tokens,
            unlogged_requests=self._take_unlogged(),
            **_trace(request),
        )

    def refused(self, refusal: Refusal) -> None:
        error = refusal.error
        left = isinstance(error, ClientGoneError)
        _log.info(
            REQUEST_EVENT,
            request_id=printable(refusal.headers.get(REQUEST_ID, "")),
            model=printable(refusal.model),
            **_policies(refusal.request),
            **_queueing(refusal.request),
            **dict.fromkeys(("endpoint", "address")),
            status=None if left else error.status,
            outcome=Cause.CLIENT_DISCONNECT.value if left else "refused",
            reason=error.reason or error.code,
            why=_why(error),
            **dict.fromkeys(("profile", "scores", "cached_share", "ttft_seconds")),
            duration_seconds=round(refusal.seconds, 6),
            **dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens")),
            unlogged_requests=self._take_unlogged(),
            **_trace(refusal.request),
        )


def _policies(request: Request | None) -> dict[str, Any]:
    """Return the model, objective, priority and tenant of a request; null values for an unreadable one."""
    if request is None:
        return dict.fromkeys(("target_model", "rewrite", "objective", "priority", "fairness_id"))
    return {
        "target_model": printable(request.model) if request.rewrites_model else None,
        "rewrite": request.rewritten_by or None,
        "objective": printable(request.headers.first_of(*OBJECTIVE) or "") or None,
        "priority": request.priority,
        "fairness_id": printable(request.fairness_id),
    }


def _trace(request: Request | None) -> Mapping[str, str]:
    """Return the ids of the trace; empty without tracing."""
    trace = None if request is None else request.get(TRACE)
    return {} if trace is None else trace.ids


def _queueing(request: Request | None) -> dict[str, Any]:
    """Return the time in a queue and its outcome; null values for a request that did not wait."""
    queued = None if request is None else request.get(QUEUEING_OUTCOME)
    if queued is None or not queued.waited:
        return {"queue_seconds": None, "queue_outcome": None}
    return {"queue_seconds": round(queued.seconds, 6), "queue_outcome": queued.outcome.value}


class StepLog(DirectorObserver):
    def model_rewritten(self, request: Request, rewrite: Rewrite) -> None:
        _step(
            request,
            "model rewritten",
            rewrite=rewrite.name,
            generic=rewrite.generic,
            model=printable(request.body.model),
            target_model=printable(request.model),
        )

    def candidates_found(self, request: Request, snapshot: Snapshot, eligible: int, left: int) -> None:
        _step(
            request,
            "candidates",
            pool=len(snapshot.slots),
            reachable=len(snapshot.available),
            in_subset=eligible,
            after_screeners=left,
        )

    def held(self, request: Request, plugin: str) -> None:
        _step(request, "held", plugin=plugin)

    def queued(self, request: Request) -> None:
        flow = printable(request.fairness_id)
        _step(request, "queued", flow=flow, priority=request.priority, bytes=request.size_bytes)

    def left(self, request: Request, outcome: Outcome, seconds: float) -> None:
        _step(request, "flow control", outcome=outcome.value, queue_seconds=round(seconds, 6))

    def routed(self, request: Request, result: SchedulingResult, scheduling_seconds: float) -> None:
        for name, leg in result.profiles.items():
            if leg is None:
                error = result.errors.get(name)
                _step(request, "profile failed", profile=name, why="" if error is None else _why(error))
            else:
                self._profile(request, leg)
        destination = result.destination
        _step(
            request,
            "destination",
            aggregator=result.aggregator,
            profile=result.primary.profile,
            endpoints=[target.name for target in destination.targets],
            addresses=list(destination.addresses),
            headers=sorted(destination.headers),
            scheduling_seconds=round(scheduling_seconds, 6),
            why=Decision(request, result).why(),
        )

    def response_started(self, routing: Routing) -> None:
        _step(routing.request, "response started", endpoint=routing.served.name, status=routing.status)

    def first_piece(self, routing: Routing) -> None:
        _step(routing.request, "first piece", endpoint=routing.served.name, bytes=routing.response_bytes)

    def completed(self, routing: Routing, cause: Cause) -> None:
        _step(routing.request, "last piece", outcome=cause.value, bytes=routing.response_bytes)

    def _profile(self, request: Request, leg: ProfileResult) -> None:
        for step in leg.filters:
            _step(
                request,
                "filter",
                profile=leg.profile,
                plugin=step.plugin,
                before=step.before,
                after=step.after,
                problem=_kind(step.problem),
            )
        for trace in leg.scores:
            _step(
                request,
                "scorer",
                profile=leg.profile,
                plugin=trace.plugin,
                weight=trace.weight,
                top=_rounded(top_values(leg.candidates, trace.scores)),
                problem=_kind(trace.problem),
            )
        _step(
            request,
            "picker",
            profile=leg.profile,
            plugin=leg.picker,
            picked=[target.name for target in leg.targets],
            top=_rounded(top_values(leg.candidates, leg.totals)),
        )


def _step(request: Request, event: str, **fields: Any) -> None:
    _log.debug(event, request_id=printable(request.id), **fields)


def _kind(problem: str) -> str | None:
    """Return the kind of a problem, without the text of the plugin's error, which may have text of a prompt."""
    return problem.partition(":")[0] or None


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def _why(error: RequestError) -> str:
    """Return the reason of an error, including details that only operators may see."""
    text = str(error) if isinstance(error, InternalError) else error.message
    return printable(error.detail or text, _MOST_WHY)


REQUEST_EVENT = "request"
_MOST_TEXT = 198
"""Two lines of a terminal, without the time and the level."""
_MOST_MODEL = 20
_MOST_ID = 36
_MOST_NAME = 20


def request_as_text(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace the fields of a request by one text; structlog calls this for every event."""
    if event["event"] != REQUEST_EVENT:
        return event
    rest = {name: event[name] for name in ("timestamp", "level") if name in event}
    return {**rest, "event": _text(event)}


def _text(event: MutableMapping[str, Any]) -> str:
    outcome = event["outcome"]
    words = [str(event["status"] or "-")]
    if outcome == "refused":
        words.append(f"refused, {event['reason']}")
    elif outcome == "client-disconnect":  # or the model server was lost, or the gateway does not show responses
        words.append("client left" if event["status"] or not event["endpoint"] else "closed without a response")
    elif outcome == "error":
        words.append("failed")
    words += [printable(event["endpoint"] or "", _MOST_NAME), _model(event)]
    words.append(f"{event['duration_seconds']:.3f}s")
    if event["queue_seconds"] is not None:
        words.append(f"queued {event['queue_seconds']:.3f}s")
    if event["ttft_seconds"] is not None:
        words.append(f"ttft {event['ttft_seconds']:.3f}s")
    if event["prompt_tokens"] is not None:
        words.append(f"{event['prompt_tokens']}+{event['completion_tokens']} tokens")
    facts = " ".join(word for word in words if word)
    request_id = printable(event["request_id"], _MOST_ID)
    room = _MOST_TEXT - len(facts) - len(request_id) - len(" |  | ")
    return f"{facts} | {printable(event['why'], room)} | {request_id}"


def _model(event: MutableMapping[str, Any]) -> str:
    """Return the model that the client requested, followed by the rewritten model if there is one."""
    asked = printable(event["model"], _MOST_MODEL)
    return asked if event["target_model"] is None else f"{asked}->{printable(event['target_model'], _MOST_MODEL)}"
