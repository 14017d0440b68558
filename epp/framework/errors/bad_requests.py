# SPDX-License-Identifier: Apache-2.0
"""Requests that are at fault themselves: as they are, no retry helps."""

from epp.framework.breach import Breach
from epp.framework.errors.base import RequestError
from epp.framework.headers import AUTHORIZATION
from epp.framework.printable import quoted, shown_path


class BadRequestError(RequestError):
    """The request itself is at fault."""

    status = 400
    code = "BadRequest"


class NoParserError(BadRequestError):
    """No parser claims the request's path."""

    kind = "unknown_url"

    def __init__(self, path: str) -> None:
        super().__init__(f"path {quoted(shown_path(path))} is of no API that is served here: correct the URL")


class MalformedBodyError(BadRequestError):
    """The body is not what the API at this path takes."""

    def __init__(self, message: str, *, param: str | None = None, kind: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.kind = kind


class BodyMissingError(BadRequestError):
    """The API at this path takes a body, and the request has none."""

    def __init__(self) -> None:
        super().__init__("the request has no body: send a JSON object")


class ModelMissingError(BadRequestError):
    """The body names no model."""

    llm_d_message = "model not found in request body"
    param = "model"
    kind = "missing_required_parameter"

    def __init__(self) -> None:
        super().__init__('the request names no model: add "model" to the JSON body, with the name of a served model')


class UnauthorizedError(RequestError):
    """A plugin cannot identify the client."""

    status = 401
    code = "Unauthorized"


class UnknownApiKeyError(UnauthorizedError):
    """The request has an API key, and no tenant has it."""

    kind = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("the API key of this request is not known here: send a valid one")


class WithoutApiKeyError(UnauthorizedError):
    """The request has no API key where one is wanted; `header` is that for it."""

    kind = "invalid_api_key"

    def __init__(self, header: str) -> None:
        value = "'Bearer' and the key" if header == AUTHORIZATION else "the key"
        super().__init__(f"this request has no API key: send the header {quoted(header)} with {value}")


class UnknownClientError(UnauthorizedError):
    """Nothing in the request says that it is of a tenant, where others are refused."""

    def __init__(self) -> None:
        super().__init__("this request is of no client that is known here: ask the operator of this API for access")


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

    llm_d_message = "no decode worker has the requested KV cache"
    status = 412
    code = "PreconditionFailed"

    def __init__(self) -> None:
        super().__init__(
            "no model server holds the KV cache of this prompt: send it without the header 'Prefer: if-available' to "
            "have it computed"
        )


class BodyTimeoutError(RequestError):
    """A part of the request came, and then nothing for longer than --body-timeout."""

    status = 408
    code = "RequestTimeout"
    reason = "rejected-body-timeout"

    def __init__(self) -> None:
        super().__init__("the rest of the request body did not come in time: send it without long pauses")


class BodyTooLargeError(RequestError):
    """The body is larger than this picker gathers."""

    status = 413
    code = "PayloadTooLarge"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the request body is larger than {limit_bytes} bytes, the limit here: send a smaller one")


class HeadersTooLargeError(RequestError):
    """The request has more header fields, or larger ones, than this picker reads; Envoy's own limits are far lower."""

    status = 431
    code = "RequestHeaderFieldsTooLarge"

    def __init__(self, most_fields: int, most_bytes: int) -> None:
        super().__init__(
            f"the request has more than {most_fields} header fields, or more than {most_bytes} bytes of them, the "
            "limits here: send fewer, or shorter ones"
        )


class OverQuotaError(RequestError):
    """A request is larger than the quota of its tenant allows for one: waiting does not help."""

    reason = "rejected-quota"

    def __init__(self, breach: Breach, status: int = 400) -> None:
        super().__init__(f"{breach}: send a smaller request")
        self.breach = breach
        self.status = status
        self.code = "PayloadTooLarge" if status == BodyTooLargeError.status else "BadRequest"
