"""Builds the answers: one function for each kind of reply that a gateway in full-duplex mode takes."""

from collections.abc import Iterator, Mapping

from epp.extproc.headers import DESTINATION as DESTINATION_HEADER
from epp.extproc.headers import DESTINATION_NAMESPACE as METADATA_NAMESPACE
from epp.extproc.headers import DROPPED_REASON, ENDPOINT_SCORES, WENT_INTO_RESPONSE_HEADERS
from epp.extproc.wire import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpStatus,
    ImmediateResponse,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)
from epp.framework import RequestError, SchedulingResult

PIECE_BYTES = 62_000
"""Most that one body message carries: some gateways take no more than 64 KiB."""


def _set(name: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key=name, raw_value=value.encode()),
        append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,  # a client's own value must not survive
    )


def destination(value: str, result: SchedulingResult, *, emit_scores: bool) -> ProcessingResponse:
    """Answer the request headers: the destination, in a header and in `envoy.lb` metadata."""
    headers = [_set(DESTINATION_HEADER, value), *(_set(name, each) for name, each in result.headers.items())]
    reply = ProcessingResponse(
        request_headers=HeadersResponse(
            response=CommonResponse(clear_route_cache=True, header_mutation=HeaderMutation(set_headers=headers))
        )
    )
    namespace: dict[str, str | dict[str, float]] = {DESTINATION_HEADER: value}
    if emit_scores:
        primary = result.primary
        namespace[ENDPOINT_SCORES] = {
            endpoint.hostport: float(total)
            for endpoint, total in zip(primary.candidates.endpoints, primary.totals, strict=True)
        }
    reply.dynamic_metadata.update({METADATA_NAMESPACE: namespace})
    return reply


def request_body(body: bytes, *, end_of_stream: bool) -> Iterator[ProcessingResponse]:
    """Hand the request body back, byte for byte, in pieces; an empty body is one empty piece."""
    for piece, last in _pieces(body):
        yield ProcessingResponse(request_body=_piece(piece, end_of_stream=end_of_stream and last))


def request_trailers() -> ProcessingResponse:
    """Let the request trailers pass."""
    return ProcessingResponse(request_trailers=TrailersResponse())


def response_headers(extra: Mapping[str, str]) -> ProcessingResponse:
    """Let the response headers pass, marked as seen."""
    headers = [_set(WENT_INTO_RESPONSE_HEADERS, "true"), *(_set(name, value) for name, value in extra.items())]
    return ProcessingResponse(
        response_headers=HeadersResponse(
            response=CommonResponse(header_mutation=HeaderMutation(set_headers=headers)),
        )
    )


def response_body(body: bytes, *, end_of_stream: bool) -> Iterator[ProcessingResponse]:
    """Let one piece of the response body pass."""
    if len(body) <= PIECE_BYTES:
        yield ProcessingResponse(response_body=_piece(body, end_of_stream=end_of_stream))
        return
    for piece, last in _pieces(body):
        yield ProcessingResponse(response_body=_piece(piece, end_of_stream=end_of_stream and last))


def response_trailers() -> ProcessingResponse:
    """Let the response trailers pass."""
    return ProcessingResponse(response_trailers=TrailersResponse())


def refusal(error: RequestError) -> ProcessingResponse:
    """End the exchange with the error's status, reason and sentence."""
    headers = [_set("content-type", "text/plain; charset=utf-8")]
    if error.reason is not None:
        headers.append(_set(DROPPED_REASON, error.reason))
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=error.status),
            headers=HeaderMutation(set_headers=headers),
            body=error.sentence.encode(),
            details=type(error).__name__,
        )
    )


def _pieces(body: bytes) -> Iterator[tuple[bytes, bool]]:
    for start in range(0, max(len(body), 1), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES], start + PIECE_BYTES >= len(body)


def _piece(body: bytes, *, end_of_stream: bool) -> BodyResponse:
    return BodyResponse(
        response=CommonResponse(
            body_mutation=BodyMutation(
                streamed_response=StreamedBodyResponse(body=body, end_of_stream=end_of_stream),
            )
        )
    )
