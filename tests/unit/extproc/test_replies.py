# SPDX-License-Identifier: Apache-2.0
"""Replies that are encoded by hand equal those of protobuf."""

from hypothesis import given
from hypothesis import strategies as st

from epp.extproc import replies
from epp.extproc.wire import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    ProcessingResponse,
    StreamedBodyResponse,
)
from epp.framework.headers import ENDPOINT_SCORES

DESTINATION = "x-gateway-destination-endpoint"
NAMES = st.sampled_from(["x-request-id", "content-length", "x-prefiller-host-port", DESTINATION, "x-ä", ""])
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
SETTINGS = st.dictionaries(NAMES, VALUES)
REMOVED = st.lists(NAMES, max_size=3)
SIZES = st.sampled_from([0, 1, 100, 127, 128, 1023, 1024, 16_383, 16_384, 61_999, 62_000, 62_001, 124_000, 200_000])
SCORES = st.none() | st.dictionaries(VALUES, st.floats(allow_nan=False), max_size=3)


def mutation(setting: dict[str, str], remove: list[str]) -> HeaderMutation:
    return HeaderMutation(
        set_headers=[
            HeaderValueOption(
                header=HeaderValue(key=name, raw_value=value.encode()),
                append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
            )
            for name, value in setting.items()
        ],
        remove_headers=[name for name in remove if name not in setting],
    )


def routed(address: str, setting: dict[str, str], remove: list[str]) -> CommonResponse:
    return CommonResponse(clear_route_cache=True, header_mutation=mutation({DESTINATION: address, **setting}, remove))


def chosen(reply: ProcessingResponse, address: str, scores: dict[str, float] | None) -> ProcessingResponse:
    told = {DESTINATION: address}
    reply.dynamic_metadata.update({"envoy.lb": told if scores is None else told | {f"{DESTINATION}-scores": scores}})
    return reply


def read(reply: bytes) -> ProcessingResponse:
    return ProcessingResponse.FromString(reply)


def streamed(kind: str, body: bytes, *, end: bool) -> list[ProcessingResponse]:
    starts = range(0, len(body) or 1, 62_000)
    pieces = [
        StreamedBodyResponse(body=body[start : start + 62_000], end_of_stream=end and start == starts[-1])
        for start in starts
    ]
    common = [CommonResponse(body_mutation=BodyMutation(streamed_response=piece)) for piece in pieces]
    return [ProcessingResponse(**{kind: BodyResponse(response=each)}) for each in common]


@given(VALUES, SETTINGS, REMOVED, SCORES)
def test_destination_with_headers(address, setting, remove, scores):
    expected = ProcessingResponse(request_headers=HeadersResponse(response=routed(address, setting, remove)))
    forwarding = replies.Forwarding(address, setting, remove, None if scores is None else {ENDPOINT_SCORES: scores})
    assert read(replies.destination_with_headers(forwarding)) == chosen(expected, address, scores)


@given(VALUES, SETTINGS, REMOVED, SCORES, st.none() | st.binary(min_size=1, max_size=300))
def test_destination_with_body(address, setting, remove, scores, changed):
    common = routed(address, setting, remove)
    if changed is not None:
        common.body_mutation.body = changed
    expected = ProcessingResponse(request_body=BodyResponse(response=common))
    forwarding = replies.Forwarding(address, setting, remove, None if scores is None else {ENDPOINT_SCORES: scores})
    assert read(replies.destination_with_body(forwarding, changed)) == chosen(expected, address, scores)


@given(SIZES, st.booleans())
def test_pieces_of_bodies(size, end):
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sent = replies.request_body_pieces(body, end_of_stream=end)
    assert list(map(read, sent)) == streamed("request_body", body, end=end)
    sent = replies.response_body_pieces(body, end_of_stream=end)
    assert list(map(read, sent)) == streamed("response_body", body, end=end)


@given(SETTINGS, REMOVED)
def test_response_headers(added, remove):
    common = CommonResponse(header_mutation=mutation({"x-went-into-resp-headers": "true", **added}, remove))
    expected = ProcessingResponse(response_headers=HeadersResponse(response=common))
    assert read(replies.response_headers_pass(added, remove)) == expected


@given(st.binary(max_size=300))
def test_piece_in_the_place_of_another(changed):
    body = BodyMutation(body=changed) if changed else BodyMutation(clear_body=True)
    expected = ProcessingResponse(response_body=BodyResponse(response=CommonResponse(body_mutation=body)))
    assert read(replies.response_body_replaced(changed)) == expected


@given(st.dictionaries(VALUES, st.dictionaries(VALUES, VALUES | st.floats(allow_nan=False) | st.booleans())))
def test_metadata_is_added_to_a_reply(metadata):
    expected = read(replies.RESPONSE_BODY_PASS)
    if metadata:
        expected.dynamic_metadata.update(metadata)
    assert read(replies.RESPONSE_BODY_PASS + replies.metadata_field(metadata)) == expected
