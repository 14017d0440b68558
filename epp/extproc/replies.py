# SPDX-License-Identifier: Apache-2.0
"""Replies to the gateway: one function for each kind."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from epp.extproc.modes import BodyMode
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
    ProcessingMode,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)
from epp.framework import SchedulingResult
from epp.framework.headers import DESTINATION, DESTINATION_NAMESPACE, ENDPOINT_SCORES, WENT_INTO_RESPONSE_HEADERS
from epp.framework.roles import Metadata

PIECE_BYTES = 62_000
"""Most that one body message carries: some gateways take no more than 64 KiB."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    """A routed request on its way out: its destination, and the changes of its headers."""

    result: SchedulingResult
    headers: Mapping[str, str]
    """To be set beside the destination."""
    remove: Sequence[str]
    emit_scores: bool = False

    @property
    def address(self) -> str:
        """`ip:port` of the target, then of its fallbacks in order, comma-separated."""
        return ",".join(self.result.destination.addresses)

    def mutation(self) -> HeaderMutation:
        """Return the change of the request headers."""
        setting = {DESTINATION: self.address, **self.headers}
        return HeaderMutation(
            set_headers=[_set(name, value) for name, value in setting.items()],
            remove_headers=[name for name in self.remove if name not in setting],
        )

    def annotate(self, reply: ProcessingResponse) -> ProcessingResponse:
        """Put the destination into the reply's `envoy.lb` metadata too, and the scores if they are asked for."""
        namespace: dict[str, str | dict[str, float]] = {DESTINATION: self.address}
        if self.emit_scores:
            primary = self.result.primary
            namespace[ENDPOINT_SCORES] = {
                endpoint.hostport: float(total)
                for endpoint, total in zip(primary.candidates.endpoints, primary.totals, strict=True)
            }
        reply.dynamic_metadata.update({DESTINATION_NAMESPACE: namespace})
        return reply


def destination_with_headers(forwarding: Forwarding) -> ProcessingResponse:
    """Answer the request headers with the destination."""
    common = CommonResponse(clear_route_cache=True, header_mutation=forwarding.mutation())
    return forwarding.annotate(ProcessingResponse(request_headers=HeadersResponse(response=common)))


def destination_with_body(forwarding: Forwarding, changed: bytes | None) -> ProcessingResponse:
    """Answer a buffered request body with the destination, and with another body where `changed` is one."""
    common = CommonResponse(
        clear_route_cache=True, header_mutation=forwarding.mutation(), body_mutation=_replacement(changed)
    )
    return forwarding.annotate(ProcessingResponse(request_body=BodyResponse(response=common)))


def request_headers_pass() -> ProcessingResponse:
    """Let the request headers wait for the body's answer."""
    return ProcessingResponse(request_headers=HeadersResponse(response=CommonResponse()))


def request_body_pass() -> ProcessingResponse:
    """Let one piece of the request body pass."""
    return ProcessingResponse(request_body=BodyResponse(response=CommonResponse()))


def request_body_pieces(body: bytes, *, end_of_stream: bool) -> Iterator[ProcessingResponse]:
    """Hand a full-duplex request body back in pieces; an empty body is one empty piece."""
    for piece, last in _pieces(body):
        yield ProcessingResponse(request_body=_streamed(piece, end_of_stream=end_of_stream and last))


def request_trailers_pass() -> ProcessingResponse:
    """Let the request trailers pass."""
    return ProcessingResponse(request_trailers=TrailersResponse())


def response_headers_pass(added: Mapping[str, str], remove: Sequence[str]) -> ProcessingResponse:
    """Let the response headers pass, marked as seen, with some more of them and some fewer."""
    setting = {WENT_INTO_RESPONSE_HEADERS: "true", **added}
    mutation = HeaderMutation(set_headers=[_set(name, value) for name, value in setting.items()], remove_headers=remove)
    return ProcessingResponse(response_headers=HeadersResponse(response=CommonResponse(header_mutation=mutation)))


def with_modes(reply: ProcessingResponse, request: BodyMode, response: BodyMode) -> ProcessingResponse:
    """Ask for these body modes from now on; trailers tell the end of a response whose body is not shown."""
    reply.mode_override.CopyFrom(
        ProcessingMode(
            request_body_mode=request.name,
            response_body_mode=response.name,
            response_header_mode=ProcessingMode.SEND,
            response_trailer_mode=ProcessingMode.SEND,
        )
    )
    return reply


def response_body_pass(changed: bytes | None) -> ProcessingResponse:
    """Let one piece of the response body pass, or another in its place where `changed` is one."""
    common = CommonResponse(body_mutation=_replacement(changed))
    return ProcessingResponse(response_body=BodyResponse(response=common))


def response_body_pieces(body: bytes, *, end_of_stream: bool) -> Iterator[ProcessingResponse]:
    """Hand a piece of a full-duplex response body back, cut where it is too large."""
    if len(body) <= PIECE_BYTES:
        yield ProcessingResponse(response_body=_streamed(body, end_of_stream=end_of_stream))
        return
    for piece, last in _pieces(body):
        yield ProcessingResponse(response_body=_streamed(piece, end_of_stream=end_of_stream and last))


def response_trailers_pass() -> ProcessingResponse:
    """Let the response trailers pass."""
    return ProcessingResponse(response_trailers=TrailersResponse())


def with_metadata(reply: ProcessingResponse, metadata: Metadata) -> ProcessingResponse:
    """Put values into the reply's dynamic metadata, by namespace and key."""
    if metadata:
        reply.dynamic_metadata.update({namespace: dict(values) for namespace, values in metadata.items()})
    return reply


def immediate(status: int, headers: Mapping[str, str], body: bytes, details: str) -> ProcessingResponse:
    """End the exchange with an answer of the picker's own."""
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=status),
            headers=HeaderMutation(set_headers=[_set(name, value) for name, value in headers.items()]),
            body=body,
            details=details,
        )
    )


def _set(name: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key=name, raw_value=value.encode()),
        append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,  # a client's own value must not survive
    )


def _replacement(changed: bytes | None) -> BodyMutation | None:
    if changed is None:
        return None
    return BodyMutation(body=changed) if changed else BodyMutation(clear_body=True)


def _pieces(body: bytes) -> Iterator[tuple[bytes, bool]]:
    for start in range(0, max(len(body), 1), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES], start + PIECE_BYTES >= len(body)


def _streamed(body: bytes, *, end_of_stream: bool) -> BodyResponse:
    mutation = BodyMutation(streamed_response=StreamedBodyResponse(body=body, end_of_stream=end_of_stream))
    return BodyResponse(response=CommonResponse(body_mutation=mutation))
