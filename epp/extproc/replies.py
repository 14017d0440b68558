# SPDX-License-Identifier: Apache-2.0
"""Serialised replies to the gateway, a function or constant for each kind; statuses of gRPC calls of clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import msgspec

from epp.extproc.codec import Nested, flag, tag, text
from epp.extproc.exchange import BodyMode
from epp.extproc.wire import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    GrpcStatus,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpStatus,
    ImmediateResponse,
    ProcessingMode,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)
from epp.framework import Headers, RequestError
from epp.framework.headers import (
    CONTENT_LENGTH,
    DESTINATION,
    DESTINATION_NAMESPACE,
    DROPPED_REASON,
    PATHS,
    REQUEST_ID,
    RETRY_AFTER,
    WENT_INTO_RESPONSE_HEADERS,
)
from epp.framework.messages import printable
from epp.framework.protobuf import varint
from epp.framework.roles import Metadata

GRPC_STATUS = "grpc-status"
_CONTENT_TYPE = "application/grpc"
_INTERNAL = 13
HTTP_BY_GRPC = {
    "1": 499, "2": 500, "3": 400, "4": 504, "5": 404, "6": 409, "7": 403, "8": 429, "9": 400, "10": 409, "11": 400,
    "12": 501, "13": 500, "14": 503, "15": 500, "16": 401,
}  # fmt: skip
_GRPC_BY_HTTP = {400: 3, 401: 16, 403: 7, 404: 12, 408: 4, 412: 9, 413: 8, 429: 8, 431: 8, 503: 14}


def is_grpc(headers: Headers) -> bool:
    return headers.get("content-type", "").startswith(_CONTENT_TYPE)


PIECE_BYTES = 62_000
"""Largest piece of a body in one message: some gateways accept at most 64 KiB."""

_Struct = type(ProcessingResponse().dynamic_metadata)
_Entry = _Struct.FieldsEntry
_Value = type(_Struct().fields[""])
_BODY_MUTATION = tag(CommonResponse, "body_mutation")
_HEADER_MUTATION = tag(CommonResponse, "header_mutation")
_ROUTED = flag(CommonResponse, "clear_route_cache") + _HEADER_MUTATION
_REPLACED = Nested(tag(BodyMutation, "body"), _BODY_MUTATION)
_REMOVED = Nested(tag(HeaderMutation, "remove_headers"))
_METADATA = Nested(
    tag(_Value, "string_value"),
    text(_Entry, "key", DESTINATION) + tag(_Entry, "value"),
    tag(_Struct, "fields"),
    tag(_Value, "struct_value"),
    text(_Entry, "key", DESTINATION_NAMESPACE) + tag(_Entry, "value"),
    tag(_Struct, "fields"),
    tag(ProcessingResponse, "dynamic_metadata"),
)
REQUEST_HEADERS_PASS = ProcessingResponse(
    request_headers=HeadersResponse(response=CommonResponse())
).SerializeToString()
"""Makes the request headers wait for the answer to the body."""
REQUEST_BODY_PASS = ProcessingResponse(request_body=BodyResponse(response=CommonResponse())).SerializeToString()
"""Forwards one piece of the request body."""
REQUEST_TRAILERS_PASS = ProcessingResponse(request_trailers=TrailersResponse()).SerializeToString()
RESPONSE_BODY_PASS = ProcessingResponse(response_body=BodyResponse(response=CommonResponse())).SerializeToString()
"""Forwards one piece of the response body."""
RESPONSE_TRAILERS_PASS = ProcessingResponse(response_trailers=TrailersResponse()).SerializeToString()
_RESPONSE_BODY_CLEARED = ProcessingResponse(
    response_body=BodyResponse(response=CommonResponse(body_mutation=BodyMutation(clear_body=True)))
).SerializeToString()
MetadataValue: TypeAlias = str | float | Mapping[str, float]
"""A value of dynamic metadata."""
_PLAIN_TEXT = "text/plain; charset=utf-8"
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


def _setting(name: str) -> Nested:
    """Return a header to set, around its value; it replaces the value of a client."""
    return Nested(
        text(HeaderValue, "key", name) + tag(HeaderValue, "raw_value"),
        flag(HeaderValueOption, "append_action", HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
        + tag(HeaderValueOption, "header"),
        tag(HeaderMutation, "set_headers"),
    )


def _headers(kind: str, *within: bytes) -> Nested:
    return Nested(*within, tag(HeadersResponse, "response"), tag(ProcessingResponse, kind))


def _body(kind: str, *within: bytes) -> Nested:
    return Nested(*within, tag(BodyResponse, "response"), tag(ProcessingResponse, kind))


def _piece(kind: str) -> tuple[Nested, Nested]:
    """Return a piece of a full-duplex body, and the last one, around their bytes."""
    body, end = tag(StreamedBodyResponse, "body"), flag(StreamedBodyResponse, "end_of_stream")
    around = tag(BodyMutation, "streamed_response"), _BODY_MUTATION
    return _body(kind, body, *around), _body(kind, end + body, *around)


_SETTINGS = {name: _setting(name) for name in (DESTINATION, CONTENT_LENGTH, REQUEST_ID)}
_REQUEST_HEADERS_ROUTED = _headers("request_headers", _ROUTED)
_REQUEST_BODY_ROUTED = _body("request_body", _ROUTED)
_REQUEST_BODY_REPLACED = _body("request_body")
_RESPONSE_HEADERS = _headers("response_headers", _HEADER_MUTATION)
_RESPONSE_BODY_REPLACED = _body("response_body", tag(BodyMutation, "body"), _BODY_MUTATION)
_RESPONSE_HEADERS_SEEN = _RESPONSE_HEADERS(_setting(WENT_INTO_RESPONSE_HEADERS)(b"true"))


@dataclass(slots=True)
class Forwarding:
    """The destination of a routed request and the changes of its headers."""

    address: str
    """`ip:port` of the target, then of its fallbacks in order, comma-separated."""
    setting: dict[str, str]
    """Headers to set beside the destination."""
    remove: list[str]
    metadata: Mapping[str, MetadataValue] | None = None
    """Dynamic metadata beside the destination; None for none."""


def destination_with_headers(forwarding: Forwarding) -> bytes:
    """Answer the request headers with the destination."""
    return _REQUEST_HEADERS_ROUTED(_request_mutation(forwarding)) + _destination_metadata(forwarding)


def destination_with_body(forwarding: Forwarding, changed: bytes | None) -> bytes:
    """Answer a buffered request body with the destination; replace the body unless `changed` is None."""
    mutation = _request_mutation(forwarding)
    if changed is None:
        return _REQUEST_BODY_ROUTED(mutation) + _destination_metadata(forwarding)
    common = b"".join((_ROUTED, varint(len(mutation)), mutation, _REPLACED(changed)))
    return _REQUEST_BODY_REPLACED(common) + _destination_metadata(forwarding)


def response_headers_pass(added: Mapping[str, str], remove: Sequence[str]) -> bytes:
    """Forward the response headers with changes, marked as seen."""
    if not added and not remove:
        return _RESPONSE_HEADERS_SEEN
    return _RESPONSE_HEADERS(_mutation({WENT_INTO_RESPONSE_HEADERS: "true", **added}, remove))


def modes_field(request: BodyMode, response: BodyMode) -> bytes:
    """Return bytes to append to a reply that request these body modes from now on.

    Trailers mark the end of a response whose body is not shown.
    """
    return ProcessingResponse(
        mode_override=ProcessingMode(
            request_body_mode=request.name,
            response_body_mode=response.name,
            response_header_mode=ProcessingMode.SEND,
            response_trailer_mode=ProcessingMode.SEND,
        )
    ).SerializeToString()


def response_body_replaced(changed: bytes) -> bytes:
    return _RESPONSE_BODY_REPLACED(changed) if changed else _RESPONSE_BODY_CLEARED


def metadata_field(metadata: Metadata) -> bytes:
    """Return bytes to append to a reply for dynamic metadata by namespace and key."""
    if not metadata:
        return b""
    reply = ProcessingResponse()
    reply.dynamic_metadata.update({namespace: dict(values) for namespace, values in metadata.items()})
    return reply.SerializeToString()


def more_time(seconds: int) -> bytes:
    """Ask the gateway to wait longer for the answer to its last message."""
    reply = ProcessingResponse()
    reply.override_message_timeout.seconds = seconds
    return reply.SerializeToString()


def _request_mutation(forwarding: Forwarding) -> bytes:
    return _mutation({DESTINATION: forwarding.address, **forwarding.setting}, forwarding.remove)


def _mutation(setting: Mapping[str, str], remove: Sequence[str]) -> bytes:
    parts = [(_SETTINGS.get(name) or _setting(name))(value.encode()) for name, value in setting.items()]
    parts += [_REMOVED(name.encode()) for name in remove if name not in setting]
    return b"".join(parts)


def _destination_metadata(forwarding: Forwarding) -> bytes:
    if forwarding.metadata is None:
        return _METADATA(forwarding.address.encode())
    reply = ProcessingResponse()
    reply.dynamic_metadata.update({DESTINATION_NAMESPACE: {DESTINATION: forwarding.address, **forwarding.metadata}})
    return reply.SerializeToString()


def _pieces(piece: Nested, final: Nested, body: bytes, *, end_of_stream: bool) -> list[bytes]:
    """Return a full-duplex body in pieces, which are the only copy of it; an empty body is one empty piece."""
    last = final if end_of_stream else piece
    if len(body) <= PIECE_BYTES:
        return [last(body)]
    view = memoryview(body)
    *parts, rest = [view[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES)]
    before = piece.before(PIECE_BYTES)
    return [*(b"".join((before, part)) for part in parts), b"".join((last.before(len(rest)), rest))]


request_body_pieces = partial(_pieces, *_piece("request_body"))
response_body_pieces = partial(_pieces, *_piece("response_body"))


def refusal(error: RequestError, headers: Headers, *, plain: bool) -> bytes:
    """End the exchange with the error's status, reason and message, and with `retry-after` if it is known.

    Depending on the path of the request, the body is JSON in the error format of the Anthropic, OpenAI or SGLang API,
    or the plain message. With `plain`, it is always the sentence of llm-d-router. A gRPC call ends with a gRPC status
    and the message.
    """
    grpc = GrpcStatus(status=_GRPC_BY_HTTP.get(error.status, _INTERNAL)) if is_grpc(headers) else None
    content_type, body = (
        (_PLAIN_TEXT, (error.sentence if plain else error.message).encode())
        if plain or grpc is not None
        else _error_body(error, headers)
    )
    answer = {"content-type": content_type}
    if error.reason is not None:
        answer[DROPPED_REASON] = error.reason
    if error.retry_after_seconds is not None:
        answer[RETRY_AFTER] = str(error.retry_after_seconds)
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=error.status),
            headers=HeaderMutation.FromString(_mutation(answer, ())),
            body=body,
            details=type(error).__name__,
            grpc_status=grpc,
        )
    ).SerializeToString()


def _error_body(error: RequestError, headers: Headers) -> tuple[str, bytes]:
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
        return _PLAIN_TEXT, error.message.encode()
    return "application/json", msgspec.json.encode(shape)
