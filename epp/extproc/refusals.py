# SPDX-License-Identifier: Apache-2.0
"""Refusals in the error format of the API that was called."""

import msgspec

from epp.extproc import replies
from epp.framework import Headers, RequestError
from epp.framework.headers import DROPPED_REASON, PATHS, REQUEST_ID, RETRY_AFTER
from epp.framework.messages import printable

_ANTHROPIC_PATHS = ("/v1/messages", "/v1/messages/count_tokens")
_OPENAI_PATHS = ("/chat/completions", "/completions", "/embeddings", "/responses")
_OPENAI_PREFIX = "/v1/"
_SGLANG_PATH = "/generate"
_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    412: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
}
_ANTHROPIC_TYPES = {**_OPENAI_TYPES, 413: "request_too_large", 503: "overloaded_error"}


def refusal(error: RequestError, headers: Headers, *, plain: bool) -> bytes:
    """End the exchange with the error's status, reason and message, and the time to wait where that helps.

    The body is JSON in the shape of Anthropic's, OpenAI's or SGLang's API for requests to them, and the bare message
    for any other. Where `plain`, it is the sentence of llm-d-router for all.
    """
    content_type, body = ("text/plain; charset=utf-8", error.sentence.encode()) if plain else _body(error, headers)
    answer = {"content-type": content_type}
    if error.reason is not None:
        answer[DROPPED_REASON] = error.reason
    if error.retry_after_seconds is not None:
        answer[RETRY_AFTER] = str(error.retry_after_seconds)
    return replies.immediate(error.status, answer, body, type(error).__name__)


def _body(error: RequestError, headers: Headers) -> tuple[str, bytes]:
    path = (headers.first_of(*PATHS) or "").partition("?")[0].rstrip("/")
    if path.endswith(_ANTHROPIC_PATHS):
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        shape: object = {
            "type": "error",
            "error": {"type": kind, "message": error.message},
            "request_id": printable(headers.get(REQUEST_ID, "")) or None,
        }
    elif _OPENAI_PREFIX in path or path.endswith(_OPENAI_PATHS):
        kind = _OPENAI_TYPES.get(error.status, "server_error")
        shape = {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.kind}}
    elif path.endswith(_SGLANG_PATH):
        shape = {"error": {"message": error.message}}
    else:
        return "text/plain; charset=utf-8", error.message.encode()
    return "application/json", msgspec.json.encode(shape)
