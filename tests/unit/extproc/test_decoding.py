# SPDX-License-Identifier: Apache-2.0
"""Both ways to decode a message give the same result."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.codec import RequestPiece, decode
from epp.extproc.exchange import Fault, ProtocolError
from epp.extproc.wire import HttpBody, HttpHeaders, Metadata, ProcessingRequest

LARGE = b"p" * 5000
SUBSET = Metadata()
SUBSET.filter_metadata["envoy.lb.subset_hint"]["x-gateway-destination-endpoint-subset"] = "10.0.0.1:8000"

sizes = st.one_of(
    st.integers(0, 300), st.integers(4000, 4200), st.integers(16_000, 17_000), st.integers(2**21 - 20, 2**21)
)
bodies = sizes.map(lambda size: b"\x12" * size)


def said(message):
    """What a decoded message says of a request body."""
    if not isinstance(message, RequestPiece):
        return message
    body = HttpBody(body=bytes(message.body), end_of_stream=message.end_of_stream)
    whole = ProcessingRequest(request_body=body)
    whole.MergeFrom(message.beside)
    return whole


@pytest.mark.parametrize("beside", [{}, {"metadata_context": Metadata()}, {"metadata_context": SUBSET}])
@pytest.mark.parametrize("end_of_stream", [False, True])
def test_large_piece_of_a_request_is_not_copied(end_of_stream, beside):
    body = HttpBody(body=LARGE, end_of_stream=end_of_stream)
    message = ProcessingRequest(request_body=body, **beside).SerializeToString()
    piece = decode(message)
    assert isinstance(piece, RequestPiece)
    assert (piece.body, piece.end_of_stream) == (LARGE, end_of_stream)
    assert piece.body.obj is message
    assert piece.beside.metadata_context == beside.get("metadata_context", Metadata())


@pytest.mark.parametrize(
    "message",
    [
        ProcessingRequest(request_body=HttpBody(body=b"small")),
        ProcessingRequest(response_body=HttpBody(body=LARGE)),
        ProcessingRequest(request_headers=HttpHeaders(end_of_stream=True)),
    ],
    ids=["small", "of a response", "headers"],
)
def test_other_messages_are_decoded(message):
    assert decode(message.SerializeToString()) == message


def test_second_body_in_one_message_counts_instead_of_the_first():
    first, second = (ProcessingRequest(request_body=HttpBody(body=body)).SerializeToString() for body in (LARGE, b"b"))
    assert decode(first + second).request_body.body == b"b"


def test_message_cut_short_is_none():
    message = ProcessingRequest(request_body=HttpBody(body=LARGE)).SerializeToString()
    with pytest.raises(ProtocolError, match=rf"^a message of {len(message) - 1} bytes is not a ProcessingRequest$"):
        decode(message[:-1])


@given(bodies, st.booleans(), st.binary(max_size=6))
def test_both_ways_of_decoding_agree(body, end_of_stream, more):
    message = (
        ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=end_of_stream)).SerializeToString() + more
    )
    agree(message)


@given(bodies.filter(lambda body: len(body) > 4000), st.integers(0, 14), st.integers(0, 255))
def test_both_ways_agree_on_messages_with_a_wrong_byte(body, place, byte):
    message = bytearray(ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=True)).SerializeToString())
    message[place - 4] = byte  # of the last four, or the first eleven
    agree(bytes(message))


def agree(message):
    try:
        expected = ProcessingRequest.FromString(message)
    except DecodeError:
        with pytest.raises(ProtocolError) as caught:
            decode(message)
        assert caught.value.fault is Fault.UNDECODABLE
    else:
        assert said(decode(message)) == expected
