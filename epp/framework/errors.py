"""Every way a request can fail: one typed error each, with HTTP status, drop reason and sentence.

RequestError
├── BadRequestError                 400
│   ├── NoParserError
│   ├── MalformedBodyError
│   └── ModelMissingError
├── SaturatedError                  429  rejected-saturated
├── NoEndpointsError                503  rejected-no-endpoints
└── InternalError                   500
    └── PluginFailedError

Statuses, codes, reasons and sentences are those that gateways and clients of llm-d-router already match on.
"""

from typing import ClassVar


class RequestError(Exception):
    """A request cannot be routed; the caller gets `status` and `sentence`."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "Internal"
    reason: ClassVar[str | None] = None
    """Value of the response header `x-llm-d-request-dropped-reason`, when there is one."""

    @property
    def sentence(self) -> str:
        """The body of the immediate response: `inference error: <Code> - <message>`."""
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


class SaturatedError(RequestError):
    """Endpoints exist, but a profile's filters left none."""

    status = 429
    code = "ResourceExhausted"
    reason = "rejected-saturated"

    def __init__(self, message: str = "no endpoints available for the given request") -> None:
        super().__init__(message)


class NoEndpointsError(RequestError):
    """The pool, or its intersection with the gateway's subset, is empty."""

    status = 503
    code = "ServiceUnavailable"
    reason = "rejected-no-endpoints"

    def __init__(self, message: str = "failed to find endpoint candidates for serving the request") -> None:
        super().__init__(message)


class InternalError(RequestError):
    """The picker, not the request, is at fault."""


class PluginFailedError(InternalError):
    """A plugin raised, or returned something that cannot be used."""

    def __init__(self, plugin: str, problem: str) -> None:
        super().__init__(f"plugin {plugin!r} failed: {problem}")


class ConfigurationError(Exception):
    """The configuration cannot be used; the message names the thing, the place and the remedy."""
