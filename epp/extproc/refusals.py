"""Refusals in the error format of the API that was called."""

import msgspec

from epp.extproc import replies
from epp.extproc.wire import ProcessingResponse
from epp.framework import RequestError
from epp.framework.headers import DROPPED_REASON

_ANTHROPIC_PATHS = ("/v1/messages", "/v1/messages/count_tokens")
_OPENAI_PREFIX = "/v1/"
_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    412: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {**_OPENAI_TYPES, 413: "request_too_large", 503: "overloaded_error"}


def refusal(error: RequestError, path: str, *, plain: bool) -> ProcessingResponse:
    """End the exchange with the error's status, reason and sentence.

    The body is JSON in the shape of Anthropic's or OpenAI's API for requests to them, and the bare sentence for any
    other, or for all where `plain`.
    """
    content_type, body = ("text/plain; charset=utf-8", error.sentence.encode()) if plain else _body(error, path)
    headers = {"content-type": content_type}
    if error.reason is not None:
        headers[DROPPED_REASON] = error.reason
    return replies.immediate(error.status, headers, body, type(error).__name__)


def _body(error: RequestError, path: str) -> tuple[str, bytes]:
    if path.endswith(_ANTHROPIC_PATHS):
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        shape: object = {"type": "error", "error": {"type": kind, "message": error.sentence}}
    elif _OPENAI_PREFIX in path:
        kind = _OPENAI_TYPES.get(error.status, "server_error")
        shape = {"error": {"message": error.sentence, "type": kind, "param": None, "code": error.code}}
    else:
        return "text/plain; charset=utf-8", error.sentence.encode()
    return "application/json", msgspec.json.encode(shape)
