# SPDX-License-Identifier: Apache-2.0
"""The record of a request while it is served: times and references. Spans are made from it later."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, NamedTuple

from opentelemetry.trace import Span, format_span_id, format_trace_id

from epp.framework.errors import RequestError
from epp.framework.plugin import Plugin, Role
from epp.framework.request import Request, Usage
from epp.framework.result import SchedulingResult
from epp.routing.director import Cause, Routing
from epp.routing.director.observers import RequestTrace

_MOST_CALLS = 500
"""Plugin calls of one request that are recorded."""


class PluginCall(NamedTuple):
    """A call of a plugin."""

    role: Role
    plugin: Plugin[Any]
    began: int
    """Nanoseconds since the epoch."""
    ended: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The request, without its prompt."""

    id: str
    model: str
    """As the client wrote it."""
    target_model: str
    """The one that the endpoint is asked for."""
    priority: int
    fairness_id: str
    prompt_tokens: int
    streaming: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """The response, without its body."""

    endpoint: str
    address: str
    port: int
    status: int
    usage: Usage | None
    first_byte: int | None
    """Nanoseconds since the epoch."""


class Unsampled(RequestTrace):
    """A trace that is not recorded here; the endpoint gets its id and a flag that says so."""

    __slots__ = ("_headers", "_span")

    def __init__(self, span: Span, headers: Mapping[str, str]) -> None:
        self._span = span
        self._headers = headers

    @property
    def headers(self) -> Mapping[str, str]:
        """Request headers that tell the endpoint of the trace."""
        return self._headers

    @property
    def ids(self) -> Mapping[str, str]:
        """The ids of trace and span in hexadecimal."""
        return _ids(self._span)

    def complete(self) -> None:
        """Do nothing."""

    def refused(self, error: RequestError) -> None:
        """Do nothing."""

    def ended(self, routing: Routing | None, cause: Cause) -> None:
        """Do nothing."""


class Trace(RequestTrace):
    """A trace that is recorded. Times are nanoseconds since the epoch, by a clock that does not jump meanwhile."""

    __slots__ = (
        "_base",
        "_end",
        "_headers",
        "answered",
        "asked",
        "attempts",
        "calls",
        "cause",
        "completed_at",
        "ended_at",
        "error",
        "found",
        "profiles",
        "queued_at",
        "result",
        "root",
        "routed_at",
        "waited",
    )

    def __init__(self, root: Span, headers: Mapping[str, str], began: int, end: "Callable[[Trace], None]") -> None:
        """`root` began at that time; `end` is called once, as the exchange ends."""
        self.root = root
        self._headers = headers
        self._base = began - perf_counter_ns()
        self._end = end
        self.asked: Asked | None = None
        self.answered: Answered | None = None
        self.completed_at: int | None = None
        """When the request was complete."""
        self.routed_at: int | None = None
        """When it was routed or refused."""
        self.ended_at: int | None = None
        self.cause = Cause.ERROR
        self.error: RequestError | None = None
        self.attempts = 0
        """How often it was to be scheduled: again after each wait."""
        self.found: tuple[int, int] | None = None
        """Endpoints of the gateway's subset, and how many of them screeners left, at the last attempt."""
        self.calls: list[PluginCall] = []
        """Plugin calls of the last attempt."""
        self.profiles: list[tuple[str, int]] = []
        """Profiles that began to run in it, and the number of calls before."""
        self.result: SchedulingResult | None = None
        self.queued_at: int | None = None
        self.waited: tuple[int, int, str] | None = None
        """When it began to wait for room, when it ended, and how."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Request headers that tell the endpoint of the trace."""
        return self._headers

    @property
    def ids(self) -> Mapping[str, str]:
        """The ids of trace and span in hexadecimal."""
        return _ids(self.root)

    def now(self) -> int:
        """Return the time."""
        return self._base + perf_counter_ns()

    def complete(self) -> None:
        """Record that the request is complete, and is routed from now on."""
        self.completed_at = self.now()

    def attempt(self, eligible: int, left: int) -> None:
        """Record that the request is scheduled among so many endpoints. The results of a former attempt are dropped."""
        self.attempts += 1
        self.calls.clear()
        self.profiles.clear()
        self.found = eligible, left

    def profile_started(self, profile: str) -> None:
        """Record that the calls that follow are of this profile."""
        if len(self.calls) < _MOST_CALLS:
            self.profiles.append((profile, len(self.calls)))

    def called(self, role: Role, plugin: Plugin[Any], seconds: float) -> None:
        """Record a call of a plugin that ended just now."""
        if len(self.calls) < _MOST_CALLS:
            now = self.now()
            self.calls.append(PluginCall(role, plugin, now - int(seconds * 1e9), now))

    def routed(self, request: Request, result: SchedulingResult) -> None:
        """Record where it goes."""
        self._ask(request)
        self.result = result
        self.routed_at = self.now()

    def queued(self) -> None:
        """Record that it waits for room."""
        self.queued_at = self.now()

    def left_queue(self, outcome: str) -> None:
        """Record that it waits no more, and why."""
        if self.queued_at is not None:
            self.waited = self.queued_at, self.now(), outcome

    def refused(self, error: RequestError, request: Request | None = None) -> None:
        """Record how it is refused; only the first call counts."""
        if self.error is not None or self.ended_at is not None:
            return
        self.error = error
        if request is not None:
            self._ask(request)
        if self.routed_at is None:
            self.routed_at = self.now()

    def ended(self, routing: Routing | None, cause: Cause) -> None:
        """Record the end of the exchange; only the first call counts."""
        if self.ended_at is not None:
            return
        self.ended_at = self.now()
        self.cause = cause
        if routing is not None:
            served, first = routing.served, routing.first_byte_at
            byte_at = None if first is None or self.completed_at is None else self._at(first, routing.request)
            self.answered = Answered(served.name, served.address, served.port, routing.status, routing.usage, byte_at)
        self._end(self)

    def _at(self, seconds: float, request: Request) -> int:
        """Return a time on the clock of the director, which knows when the request was complete."""
        assert self.completed_at is not None  # noqa: S101  looked at before
        return self.completed_at + int((seconds - request.received_at) * 1e9)

    def _ask(self, request: Request) -> None:
        body = request.body
        self.asked = Asked(
            request.id,
            body.model,
            request.model,
            request.priority,
            request.fairness_id,
            request.prompt_tokens,
            body.streaming,
        )


def _ids(span: Span) -> Mapping[str, str]:
    context = span.get_span_context()
    return {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}
