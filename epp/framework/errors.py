# SPDX-License-Identifier: Apache-2.0
"""Errors of requests, with HTTP status and message, and errors of configurations.

Statuses, codes and reasons are the same as in llm-d-router, because clients match on them. This project adds the
statuses 408, 413, 431 and 502. Messages are for the client: problem and remedy in terms of HTTP and JSON, without names
of plugins or classes. Errors with a drop reason are in `refusals`.
"""

from typing import TYPE_CHECKING

from epp.framework.headers import AUTHORIZATION
from epp.framework.messages import quoted, shown_path

if TYPE_CHECKING:  # `result` imports this module
    from epp.framework.result import FailedScheduling, ProfileAttempt


class RequestError(Exception):
    """A request cannot be routed or completed; the client gets `status` and `message`."""

    status: int = 500
    code: str = "Internal"
    reason: str | None = None
    """Value of the response header `x-llm-d-request-dropped-reason`; None for no header."""
    param: str | None = None
    """Invalid part of the JSON body, such as `messages[0].content`."""
    kind: str | None = None
    """Machine-readable cause: one of OpenAI's error codes."""
    text: str = "{}"
    """Template of the message; `{}` is replaced by the argument of the error."""
    llm_d_message: str = ""
    """Template of the exact message of llm-d-router, which tools search for; empty if llm-d-router has none."""
    detail: str = ""
    """Details for the operator; never sent to the client."""
    retry_after_seconds: int | None = None
    """Value of the response header `retry-after`; None if waiting may not help."""
    attempt: "ProfileAttempt | None" = None
    """Partial run of the profile that failed with this error; None outside of profiles."""
    scheduling: "FailedScheduling | None" = None
    """Partial scheduling that failed with this error; None for other errors."""

    def __init__(self, words: str = "", *, detail: str = "") -> None:
        """Format the message: `words` replace `{}` in the text, or the whole text if it has no `{}`."""
        super().__init__(self.text.format(words) if "{}" in self.text or not words else words)
        self._words = words
        if detail:
            self.detail = detail

    @property
    def message(self) -> str:
        """Problem and remedy, for the client."""
        return str(self)

    @property
    def sentence(self) -> str:
        """The message in the format of llm-d-router: `inference error: <Code> - <message>`."""
        return f"inference error: {self.code} - {self.llm_d_message.format(self._words) or self.message}"


class BadRequestError(RequestError):
    """The request is invalid."""

    status = 400
    code = "BadRequest"


class NoParserError(BadRequestError):
    """No parser handles the path of the request."""

    kind = "unknown_url"

    def __init__(self, path: str) -> None:
        super().__init__(f"path {quoted(shown_path(path))} belongs to no API that is served here: correct the URL")


class MalformedBodyError(BadRequestError):
    """The body is invalid for the API at this path."""

    def __init__(self, message: str, *, param: str | None = None, kind: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.kind = kind


class BodyMissingError(BadRequestError):
    """The API at this path requires a body, but the request has none."""

    text = "the request has no body: send a JSON object"


class ModelMissingError(BadRequestError):
    """The body names no model."""

    llm_d_message = "model not found in request body"
    param = "model"
    kind = "missing_required_parameter"
    text = 'the request names no model: add "model" to the JSON body, with the name of a served model'


class UnauthorizedError(RequestError):
    """A plugin cannot identify the client."""

    status = 401
    code = "Unauthorized"


class UnknownApiKeyError(UnauthorizedError):
    """The API key of the request belongs to no tenant."""

    kind = "invalid_api_key"
    text = "the API key of this request is unknown: send a valid one"


class WithoutApiKeyError(UnauthorizedError):
    """The request lacks a required API key; `header` is the header for it."""

    kind = "invalid_api_key"

    def __init__(self, header: str) -> None:
        value = "'Bearer' and the key" if header == AUTHORIZATION else "the key"
        super().__init__(f"this request has no API key: send the header {quoted(header)} with {value}")


class UnknownClientError(UnauthorizedError):
    """The request belongs to no tenant, and such requests are refused."""

    text = "this request belongs to no known client: ask the operator of this API for access"


class ForbiddenError(RequestError):
    """A plugin does not allow this client to do this."""

    status = 403
    code = "Forbidden"


class NotFoundError(RequestError):
    """A plugin found that the requested thing does not exist."""

    status = 404
    code = "NotFound"


class PreconditionFailedError(RequestError):
    """The request came with `Prefer: if-available`, and no endpoint holds its KV cache."""

    llm_d_message = "no decode worker has the requested KV cache"
    status = 412
    code = "PreconditionFailed"
    text = (
        "no model server holds the KV cache of this prompt: send it without the header 'Prefer: if-available' to "
        "have it computed"
    )


class BodyTooLargeError(RequestError):
    """The body is larger than this picker buffers."""

    status = 413
    code = "PayloadTooLarge"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the request body is larger than {limit_bytes} bytes, the limit here: send a smaller one")


class HeadersTooLargeError(RequestError):
    """The request has more or larger header fields than this picker reads; the limits of Envoy are far lower."""

    status = 431
    code = "RequestHeaderFieldsTooLarge"

    def __init__(self, most_fields: int, most_bytes: int) -> None:
        super().__init__(
            f"the request has more than {most_fields} header fields, or more than {most_bytes} bytes of them, the "
            "limits here: send fewer, or shorter ones"
        )


class BadResponseError(RequestError):
    """The response of the model server has more or larger header fields than this picker reads."""

    status = 502
    code = "BadGateway"

    def __init__(self, most_fields: int, most_bytes: int) -> None:
        super().__init__("the model server sent a response that the gateway does not forward")
        self.detail = f"more than {most_fields} header fields, or {most_bytes} bytes of them"


class InternalError(RequestError):
    """The picker failed; only the operator gets the cause."""

    @property
    def message(self) -> str:
        """The same message for all causes, which clients must not see."""
        return "the gateway failed on this request: retry, and if it fails again, contact the operator of this service"


class PluginFailedError(InternalError):
    """A plugin raised an exception, or returned an invalid result."""

    def __init__(self, plugin: str, problem: str) -> None:
        super().__init__(f"plugin {plugin!r} failed: {problem}")
        self.detail = f"plugin {plugin!r} failed"


class AdmissionDeniedError(RequestError):
    """An admission plugin refused the request; everything except the start of the message comes from `cause`."""

    def __init__(self, cause: RequestError) -> None:
        super().__init__(f"request cannot be admitted: {cause.message}")
        for name in ("status", "code", "reason", "param", "kind", "detail", "retry_after_seconds"):
            setattr(self, name, getattr(cause, name))


class ConfigurationError(Exception):
    """The configuration cannot be used; the message has the problem, the place and the remedy."""

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy
