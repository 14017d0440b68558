"""All errors of a request: one type each, with HTTP status, drop reason and sentence.

RequestError
├── BadRequestError                 400
│   ├── NoParserError
│   ├── MalformedBodyError
│   └── ModelMissingError
├── UnauthorizedError               401
├── ForbiddenError                  403
├── NotFoundError                   404
├── PreconditionFailedError         412
├── BodyTooLargeError               413
├── ResourceExhaustedError          429
│   ├── SaturatedError                   rejected-saturated
│   │   ├── SheddableDroppedError
│   │   └── QueueFullError
│   ├── QueueTimeoutError                rejected-ttl-expired
│   └── EvictedError                     evicted, evicted-queue-pressure, evicted-priority
├── ServiceUnavailableError         503
│   ├── NoEndpointsError                 rejected-no-endpoints
│   │   ├── ScreenedOutError
│   │   ├── QueueFullNoEndpointsError
│   │   └── QueueTimeoutNoEndpointsError
│   ├── ClientGoneError                  rejected-context-cancelled
│   └── ShuttingDownError                rejected-shutting-down
├── InternalError                   500
│   └── PluginFailedError
└── AdmissionDeniedError            the status of its cause

Statuses, codes, reasons and sentences are those that clients of llm-d-router already match on; 413 is ours.
"""


class RequestError(Exception):
    """A request cannot be routed, or not to its end; the caller gets `status` and `sentence`."""

    status: int = 500
    code: str = "Internal"
    reason: str | None = None
    """Value of the response header `x-llm-d-request-dropped-reason`, when there is one."""

    @property
    def sentence(self) -> str:
        """Sentence for the client: `inference error: <Code> - <message>`."""
        return f"inference error: {self.code} - {self}"


class BadRequestError(RequestError):
    """The request itself is at fault."""

    status = 400
    code = "BadRequest"


class NoParserError(BadRequestError):
    """No parser claims the request's path."""

    def __init__(self, path: str) -> None:
        super().__init__(f"no parser found for path {path!r}")


class MalformedBodyError(BadRequestError):
    """The body is not what the API at this path takes."""


class ModelMissingError(BadRequestError):
    """The body names no model."""

    def __init__(self) -> None:
        super().__init__("model not found in request body")


class UnauthorizedError(RequestError):
    """A plugin cannot identify the client."""

    status = 401
    code = "Unauthorized"


class ForbiddenError(RequestError):
    """A plugin does not let this caller do this."""

    status = 403
    code = "Forbidden"


class NotFoundError(RequestError):
    """A plugin says that what is asked for does not exist."""

    status = 404
    code = "NotFound"


class PreconditionFailedError(RequestError):
    """The request came with `Prefer: if-available`, and no endpoint holds its KV cache."""

    status = 412
    code = "PreconditionFailed"

    def __init__(self) -> None:
        super().__init__("no decode worker has the requested KV cache")


class BodyTooLargeError(RequestError):
    """The body is larger than this picker gathers."""

    status = 413
    code = "PayloadTooLarge"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"request body is larger than {limit_bytes} bytes")


class ResourceExhaustedError(RequestError):
    """Endpoints exist, but have no room."""

    status = 429
    code = "ResourceExhausted"


class SaturatedError(ResourceExhaustedError):
    """Endpoints exist, but a profile's filters left none."""

    reason = "rejected-saturated"

    def __init__(self, message: str = "no endpoints available for the given request") -> None:
        super().__init__(message)


class SheddableDroppedError(SaturatedError):
    """The pool is saturated and the request has a negative priority."""

    def __init__(self) -> None:
        super().__init__("system saturated, sheddable request dropped")


class QueueFullError(SaturatedError):
    """The queue has no room and the pool has endpoints."""


class QueueTimeoutError(ResourceExhaustedError):
    """The request waited too long and the pool has endpoints."""

    reason = "rejected-ttl-expired"

    def __init__(self, detail: str) -> None:
        super().__init__(f"request timed out in queue: {detail}")


class EvictedError(ResourceExhaustedError):
    """The request was under way and had to make room for one of higher priority."""

    def __init__(self, reason: str = "evicted") -> None:
        super().__init__("request evicted by flow control")
        self.reason = reason

    @property
    def sentence(self) -> str:
        """Without the usual prefix, as clients know it."""
        return str(self)


class ServiceUnavailableError(RequestError):
    """No endpoint can serve it."""

    status = 503
    code = "ServiceUnavailable"


class NoEndpointsError(ServiceUnavailableError):
    """The pool, or its intersection with the gateway's subset, is empty."""

    reason = "rejected-no-endpoints"

    def __init__(self, message: str = "failed to find endpoint candidates for serving the request") -> None:
        super().__init__(message)


class ScreenedOutError(NoEndpointsError):
    """Screeners excluded all endpoints."""

    def __init__(self) -> None:
        super().__init__("screeners eliminated all endpoint candidates")


class QueueFullNoEndpointsError(NoEndpointsError):
    """The queue has no room and the pool is empty."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"no endpoints available: {detail}")


class QueueTimeoutNoEndpointsError(NoEndpointsError):
    """The request waited too long and the pool is empty."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"request timed out in queue and no endpoints are available: {detail}")


class ClientGoneError(ServiceUnavailableError):
    """The client left while its request was waiting."""

    reason = "rejected-context-cancelled"

    def __init__(self, detail: str) -> None:
        super().__init__(f"client disconnected: {detail}")


class ShuttingDownError(ServiceUnavailableError):
    """The picker stops while the request is waiting."""

    reason = "rejected-shutting-down"

    def __init__(self, detail: str) -> None:
        super().__init__(f"flow controller shutting down: {detail}")


class InternalError(RequestError):
    """The picker, not the request, is at fault."""


class PluginFailedError(InternalError):
    """A plugin raised, or returned something that cannot be used."""

    def __init__(self, plugin: str, problem: str) -> None:
        super().__init__(f"plugin {plugin!r} failed: {problem}")


class AdmissionDeniedError(RequestError):
    """An admission plugin said no; the status is that of its reason."""

    def __init__(self, cause: RequestError) -> None:
        super().__init__(f"request cannot be admitted: {cause}")
        self.status = cause.status
        self.code = cause.code
        self.reason = cause.reason


class ConfigurationError(Exception):
    """The configuration cannot be used; the message names the thing, the place and the remedy."""

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy
