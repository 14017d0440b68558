# SPDX-License-Identifier: Apache-2.0
"""Refusals of requests for lack of room, endpoints or time, each with its drop reason and `retry-after`.

llm-d-router has the same reasons, except `rejected-constraint`, `rejected-unavailable` and `rejected-stale` (which are
saturation in llm-d-router), `rejected-quota`, `rejected-starting`, `superseded`, and those for limits of this program:
`rejected-streams`, `rejected-pending-streams`, `rejected-gathered-bytes` and `rejected-body-timeout`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from epp.framework.errors import BodyTooLargeError, RequestError
from epp.framework.messages import quoted

SOON_SECONDS = 1
"""`retry-after` for conditions that end soon, such as running requests or a missing report."""
LATER_SECONDS = 5
"""`retry-after` for endpoints that must start or recover."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A limit of a quota that a request exceeds."""

    tenant: str
    key: str
    """Name of the limit, as in TensorFusion if it has that limit: `total.max.workers.limit`."""
    requested: float
    """Use of the quota with this request included."""
    limit: float

    def __str__(self) -> str:
        limit, requested = self._shown(self.limit), self._shown(self.requested)
        return f"quota {self.key} of {quoted(self.tenant)} is {limit}, and with this request {requested}"

    def _shown(self, amount: float) -> str:
        return f"{amount / 2**30:.6g} GiB" if ".vram." in self.key else f"{amount:.10g}"


class BodyTimeoutError(RequestError):
    """The rest of the request body did not arrive within --body-timeout."""

    status = 408
    code = "RequestTimeout"
    reason = "rejected-body-timeout"
    text = "the rest of the request body did not arrive in time: send it without long pauses"


class OverQuotaError(RequestError):
    """The request exceeds the quota of its tenant for single requests: waiting does not help."""

    reason = "rejected-quota"

    def __init__(self, breach: Breach, status: int = 400) -> None:
        super().__init__(f"{breach}: send a smaller request")
        self.breach = breach
        self.status = status
        self.code = "PayloadTooLarge" if status == BodyTooLargeError.status else "BadRequest"


CONSTRAINT_CODES: Mapping[int, str] = MappingProxyType(
    {400: "BadRequest", 404: "NotFound", 429: "ResourceExhausted", 503: "ServiceUnavailable"}
)
"""Possible statuses of UnmetConstraintError, and their codes."""


class UnmetConstraintError(RequestError):
    """Endpoints exist, but none meets the constraints of the request or its profile: waiting does not help."""

    llm_d_message = "no endpoints available for the given request"
    reason = "rejected-constraint"
    text = (
        "no model server meets the requirements of this request (hardware, price, labels), and a retry does not help: "
        "ask for less"
    )

    def __init__(self, status: int = 429, *, detail: str = "") -> None:
        super().__init__(detail=detail)
        self.status = status
        self.code = CONSTRAINT_CODES[status]


class ResourceExhaustedError(RequestError):
    """Endpoints exist, but have no room."""

    status = 429
    code = "ResourceExhausted"
    kind = "rate_limit_exceeded"


class SaturatedError(ResourceExhaustedError):
    """Endpoints exist, but the filters of a profile dropped all of them without a cause."""

    llm_d_message = "no endpoints available for the given request"
    reason = "rejected-saturated"
    text = (
        "no model server can take this request now: all are too busy, or none meets its requirements; retry later, or "
        "ask for less"
    )


class AllBusyError(SaturatedError):
    """All endpoints that meet the constraints of the request are too busy."""

    retry_after_seconds = SOON_SECONDS
    text = "all model servers that can take this request are busy: retry later"


class SheddableDroppedError(SaturatedError):
    """The pool is saturated and the request has a negative priority."""

    llm_d_message = "system saturated, sheddable request dropped"
    retry_after_seconds = SOON_SECONDS
    text = "all model servers are busy, and this request is of low priority: retry later"


class QueueFullError(SaturatedError):
    """The queue has no room and the pool has endpoints."""

    llm_d_message = ""
    retry_after_seconds = SOON_SECONDS


class QuotaExceededError(ResourceExhaustedError):
    """The running requests of a tenant use its quota; a later retry may succeed."""

    reason = "rejected-quota"

    def __init__(self, breach: Breach, retry_after_seconds: int) -> None:
        super().__init__(f"{breach}: retry later")
        self.breach = breach
        self.retry_after_seconds = retry_after_seconds


class QueueTimeoutError(ResourceExhaustedError):
    """The request waited too long and the pool has endpoints."""

    reason = "rejected-ttl-expired"
    retry_after_seconds = SOON_SECONDS
    llm_d_message = "request timed out in queue: {}"
    text = "the request timed out in the queue for a model server: {}; retry later"


class TargetMissedError(ResourceExhaustedError):
    """The request would wait, or has waited, longer than its target for the time to the first token.

    The reason is the same as that of QueueTimeoutError, because clients treat both alike.
    """

    reason = "rejected-ttl-expired"
    retry_after_seconds = SOON_SECONDS
    text = "the request cannot have its first token within the requested time: {}; retry later, or allow more time"


class EvictedError(ResourceExhaustedError):
    """The running request was ended to make room for a request of higher priority."""

    llm_d_message = "request evicted by flow control"
    retry_after_seconds = SOON_SECONDS
    text = "the request was ended to make room for one of higher priority: retry later"

    def __init__(self, reason: str = "evicted") -> None:
        super().__init__()
        self.reason = reason

    @property
    def sentence(self) -> str:
        """The message without the usual prefix, as in llm-d-router."""
        return self.llm_d_message


class ServiceUnavailableError(RequestError):
    """No endpoint can serve the request."""

    status = 503
    code = "ServiceUnavailable"


class NoEndpointsError(ServiceUnavailableError):
    """The pool, or its intersection with the gateway's subset, is empty."""

    llm_d_message = "failed to find endpoint candidates for serving the request"
    reason = "rejected-no-endpoints"
    retry_after_seconds = LATER_SECONDS
    text = "no model server is available for this request: retry later"


class ScreenedOutError(NoEndpointsError):
    """Screeners excluded all endpoints."""

    llm_d_message = "screeners eliminated all endpoint candidates"
    text = "no model server takes requests like this one now: retry later"


class NoClustersError(NoEndpointsError):
    """No cluster may serve the request; Open Cluster Management calls this NoClustersAvailable."""

    text = "no cluster is available for this request: retry later"

    def __init__(self, detail: str = "") -> None:
        super().__init__()
        self.detail = f"NoClustersAvailable: {detail}" if detail else "NoClustersAvailable"


class QueueFullNoEndpointsError(NoEndpointsError):
    """The queue has no room and the pool is empty."""

    llm_d_message = "no endpoints available: {}"
    text = "no model server is available, and the queue is full: {}; retry later"


class QueueTimeoutNoEndpointsError(NoEndpointsError):
    """The request waited too long and the pool is empty."""

    llm_d_message = "request timed out in queue and no endpoints are available: {}"
    text = "the request timed out in the queue, and no model server is available: {}; retry later"


class UnavailableError(ServiceUnavailableError):
    """All endpoints that meet the constraints of the request drain, are unhealthy, or not known to be ready."""

    reason = "rejected-unavailable"
    retry_after_seconds = LATER_SECONDS
    text = "no model server that can take this request is ready: retry later"


class StaleDataError(ServiceUnavailableError):
    """The last reports of all endpoints that meet the constraints of the request are too old."""

    reason = "rejected-stale"
    retry_after_seconds = SOON_SECONDS
    text = "there are no recent data about the model servers that can take this request: retry later"


class ClientGoneError(ServiceUnavailableError):
    """The client disconnected before its request was routed."""

    reason = "rejected-context-cancelled"
    text = "client disconnected: {}"


class SupersededError(ServiceUnavailableError):
    """The gateway has retried the request before this attempt had a response.

    A gateway that waits for both attempts ignores statuses that it would retry, and forwards all others to the client.
    """

    reason = "superseded"
    text = "the gateway in front has retried this request, and that attempt is served instead of this one"


class StartingError(ServiceUnavailableError):
    """The picker has started, but does not have the endpoints and their running requests yet.

    A fail-open gateway continues without the picker; a fail-closed one answers the client itself.
    """

    reason = "rejected-starting"
    retry_after_seconds = SOON_SECONDS
    text = "the gateway is starting: retry"


class TooManyStreamsError(ServiceUnavailableError):
    """The number of concurrent requests of all gateways has reached --max-streams."""

    reason = "rejected-streams"
    retry_after_seconds = SOON_SECONDS
    text = "the gateway has too many requests under way: retry later"


class TooManyPendingError(ServiceUnavailableError):
    """The number of requests with incomplete bodies has reached --max-pending-streams."""

    reason = "rejected-pending-streams"
    retry_after_seconds = SOON_SECONDS
    text = "the gateway waits for the bodies of too many other requests: retry later"


class TooManyBytesError(ServiceUnavailableError):
    """The buffered bytes of bodies have reached --max-gathered-bytes; slow bodies are dropped first."""

    reason = "rejected-gathered-bytes"
    retry_after_seconds = SOON_SECONDS
    text = (
        "the gateway holds too many bytes of requests whose bodies are not complete: retry later, or send a "
        "smaller body"
    )


class ShuttingDownError(ServiceUnavailableError):
    """The picker stops while the request is waiting."""

    reason = "rejected-shutting-down"
    retry_after_seconds = SOON_SECONDS
    llm_d_message = "flow controller shutting down: {}"
    text = "the gateway is shutting down: {}; retry"
