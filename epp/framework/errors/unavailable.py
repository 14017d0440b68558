# SPDX-License-Identifier: Apache-2.0
"""Requests that nothing can serve now: no endpoint, or not this picker."""

from epp.framework.errors.base import LATER_SECONDS, SOON_SECONDS, RequestError


class ServiceUnavailableError(RequestError):
    """No endpoint can serve it."""

    status = 503
    code = "ServiceUnavailable"


class NoEndpointsError(ServiceUnavailableError):
    """The pool, or its intersection with the gateway's subset, is empty."""

    llm_d_message = "failed to find endpoint candidates for serving the request"
    reason = "rejected-no-endpoints"
    retry_after_seconds = LATER_SECONDS

    def __init__(self, message: str = "no model server is available for this request: retry later") -> None:
        super().__init__(message)


class ScreenedOutError(NoEndpointsError):
    """Screeners excluded all endpoints."""

    llm_d_message = "screeners eliminated all endpoint candidates"

    def __init__(self) -> None:
        super().__init__("no model server takes requests like this one now: retry later")


class NoClustersError(NoEndpointsError):
    """No cluster may take the request: NoClustersAvailable, in the words of Open Cluster Management."""

    def __init__(self, detail: str = "") -> None:
        super().__init__("no cluster is available for this request: retry later")
        self.detail = f"NoClustersAvailable: {detail}" if detail else "NoClustersAvailable"


class QueueFullNoEndpointsError(NoEndpointsError):
    """The queue has no room and the pool is empty."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"no model server is available, and the queue is full: {detail}; retry later")
        self.llm_d_message = f"no endpoints available: {detail}"


class QueueTimeoutNoEndpointsError(NoEndpointsError):
    """The request waited too long and the pool is empty."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the request timed out in the queue, and no model server is available: {detail}; retry later")
        self.llm_d_message = f"request timed out in queue and no endpoints are available: {detail}"


class UnavailableError(ServiceUnavailableError):
    """Endpoints exist, and all that are what the request asks for drain, are unhealthy, or not known to be ready."""

    reason = "rejected-unavailable"
    retry_after_seconds = LATER_SECONDS

    def __init__(self, *, detail: str = "") -> None:
        super().__init__("no model server that can take this request is ready: retry later")
        self.detail = detail


class StaleDataError(ServiceUnavailableError):
    """Endpoints exist, and all that are what the request asks for have not reported for too long."""

    reason = "rejected-stale"
    retry_after_seconds = SOON_SECONDS

    def __init__(self, *, detail: str = "") -> None:
        super().__init__("nothing recent is known of the model servers that can take this request: retry later")
        self.detail = detail


class ClientGoneError(ServiceUnavailableError):
    """The client left before its request was routed."""

    reason = "rejected-context-cancelled"

    def __init__(self, detail: str) -> None:
        super().__init__(f"client disconnected: {detail}")


class SupersededError(ServiceUnavailableError):
    """The gateway has made another attempt at the request while this one had no answer.

    A gateway that waits for both attempts ignores a status that it would retry, and takes others for the answer.
    """

    reason = "superseded"

    def __init__(self) -> None:
        super().__init__(
            "the gateway in front has sent this request again, and that attempt is served instead of this one"
        )


class StartingError(ServiceUnavailableError):
    """The picker has started, and does not yet know the endpoints and what they have under way.

    A fail-open gateway continues without the picker; a fail-closed one answers the client itself.
    """

    reason = "rejected-starting"
    retry_after_seconds = SOON_SECONDS

    def __init__(self) -> None:
        super().__init__("the gateway is starting: retry")


class TooManyStreamsError(ServiceUnavailableError):
    """The picker has as many requests under way as it may, of all gateways together: --max-streams."""

    reason = "rejected-streams"
    retry_after_seconds = SOON_SECONDS

    def __init__(self) -> None:
        super().__init__("the gateway has too many requests under way: retry later")


class TooManyPendingError(ServiceUnavailableError):
    """The picker waits for the rest of as many requests as it may: --max-pending-streams."""

    reason = "rejected-pending-streams"
    retry_after_seconds = SOON_SECONDS

    def __init__(self) -> None:
        super().__init__("the gateway waits for the bodies of too many other requests: retry later")


class TooManyBytesError(ServiceUnavailableError):
    """The picker holds as many bytes of bodies as it may, or this one was long in coming and had to give way to others.

    The limit is --max-gathered-bytes.
    """

    reason = "rejected-gathered-bytes"
    retry_after_seconds = SOON_SECONDS

    def __init__(self) -> None:
        super().__init__(
            "the gateway holds too many bytes of requests whose bodies are not complete: retry later, or send a "
            "smaller body"
        )


class ShuttingDownError(ServiceUnavailableError):
    """The picker stops while the request is waiting."""

    reason = "rejected-shutting-down"
    retry_after_seconds = SOON_SECONDS

    def __init__(self, detail: str) -> None:
        super().__init__(f"the gateway is shutting down: {detail}; retry")
        self.llm_d_message = f"flow controller shutting down: {detail}"
