# SPDX-License-Identifier: Apache-2.0
"""The record of a request while it is served: times and references. Spans are made from it later."""

from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any, NamedTuple

from opentelemetry.trace import Span, format_span_id, format_trace_id
from opentelemetry.util.types import AttributeValue

from epp.framework.errors import RequestError
from epp.framework.plugin import Plugin, Role
from epp.framework.request import Request
from epp.framework.result import SchedulingResult
from epp.routing.director import Cause, Routing
from epp.routing.director.observers import RequestTrace

Attributes = dict[str, AttributeValue]


class PluginCall(NamedTuple):
    """A call of a plugin."""

    role: Role
    plugin: Plugin[Any]
    began: int
    """Nanoseconds since the epoch."""
    ended: int


class Unsampled(RequestTrace):
    """A trace that is not recorded here; the endpoint gets its id and a flag that says so."""

    __slots__ = ("_headers", "root")

    def __init__(self, root: Span, headers: Mapping[str, str]) -> None:
        """`root` is the span of the whole exchange; `headers` tell the endpoint of the trace."""
        self.root = root
        self._headers = headers

    @property
    def headers(self) -> Mapping[str, str]:
        """Request headers that tell the endpoint of the trace."""
        return self._headers

    @property
    def ids(self) -> Mapping[str, str]:
        """The ids of trace and span in hexadecimal."""
        context = self.root.get_span_context()
        return {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}

    def complete(self) -> None:
        """Do nothing."""

    def refused(self, error: RequestError, request: Request | None = None) -> None:
        """Do nothing."""

    def ended(self, routing: Routing | None, cause: Cause) -> None:
        """Do nothing."""


class Trace(Unsampled):
    """A trace that is recorded. Times are nanoseconds since the epoch, by a clock that does not jump meanwhile."""

    __slots__ = (
        "_base", "_end", "answered", "asked", "attempts", "calls", "cause", "completed_at", "ended_at", "error",
        "first_byte_at", "found", "profiles", "queued_at", "request", "result", "routed_at", "status", "waited",
    )  # fmt: skip

    def __init__(self, root: Span, headers: Mapping[str, str], began: int, end: Callable[["Trace"], None]) -> None:
        """`end` takes the trace once the exchange has ended."""
        super().__init__(root, headers)
        self._base = began - perf_counter_ns()
        self._end = end
        self.request: Attributes = {}
        """Model and id, which most spans have."""
        self.asked: Attributes = {}
        """The request, without its prompt; text is as the client wrote it."""
        self.answered: Attributes = {}
        """The response, without its body."""
        self.status = 0
        """Of the response; 0 for none."""
        self.first_byte_at: int | None = None
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

    def now(self) -> int:
        """Return the time."""
        return self._base + perf_counter_ns()

    def complete(self) -> None:
        """Record that the request is complete, and is routed from now on."""
        self.completed_at = self.now()

    def refused(self, error: RequestError, request: Request | None = None) -> None:
        """Record how it is refused; only the first call counts."""
        if self.error is not None or self.ended_at is not None:
            return
        self.error = error
        if request is not None:
            self.ask(request)
        if self.routed_at is None:
            self.routed_at = self.now()

    def ended(self, routing: Routing | None, cause: Cause) -> None:
        """Record the end of the exchange; only the first call counts."""
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
                # The clock of the director knows when the request was complete.
                self.first_byte_at = self.completed_at + int((first - routing.request.received_at) * 1e9)
        self._end(self)

    def ask(self, request: Request) -> None:
        """Keep the attributes of the request."""
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
