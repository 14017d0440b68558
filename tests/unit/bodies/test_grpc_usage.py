# SPDX-License-Identifier: Apache-2.0
"""Token counts in responses of gRPC methods, cut anywhere."""

import json

import pytest
from google.api.httpbody_pb2 import HttpBody

from epp.framework import GrpcCounts, GrpcResponse, Headers, Usage
from epp.plugins.parsers.grpc import VLLMGRPCParser
from epp.routing.bodies.usage import GrpcUsageReader
from tests.support.vllm_grpc import M, framed, generate

VLLM = VLLMGRPCParser().parse("vllm.grpc.engine.VllmEngine/Generate", Headers(), framed(generate([1]))).grpc_response
WRAPPED = GrpcResponse(json_body=2)


def chunk(**counts):
    return M["GenerateResponse"](chunk=counts)


def complete(**counts):
    return M["GenerateResponse"](complete=counts)


def read(body, size=0, response=VLLM, *, event_stream=False):
    reader = GrpcUsageReader(response, event_stream=event_stream)
    for at in range(0, len(body), size or len(body)):
        reader.feed(body[at : at + (size or len(body))], last=False)
    reader.feed(b"", last=True)
    return reader


STREAM = b"".join(
    map(
        framed,
        [
            chunk(prompt_tokens=9, token_ids=[1]),
            chunk(completion_tokens=1),
            complete(prompt_tokens=9, completion_tokens=2, cached_tokens=4),
        ],
    )
)


@pytest.mark.parametrize("size", [*range(1, 12), 0])
def test_last_counts_hold_however_the_response_is_cut(size):
    reader = read(STREAM, size)
    assert (reader.usage, reader.events, reader.reports_cached) == (Usage(9, 2, 4), 3, True)


def test_counts_so_far_are_those_of_the_pieces_and_no_message_is_no_content():
    reader = GrpcUsageReader(VLLM, event_stream=True)
    assert (reader.usage, reader.has_content, reader.events) == (None, False, 0)
    reader.feed(framed(chunk(prompt_tokens=9, completion_tokens=3)), last=False)
    assert (reader.usage, reader.has_content) == (Usage(9, 3, 0), True)


@pytest.mark.parametrize(
    "unreadable",
    [
        framed(complete(prompt_tokens=1), flag=1),
        framed(b"\xff" * 20),
        framed(b"\x0a" + b"\x08\x01" * 10),
        framed(b"\x28\x01" * 2000),
        framed(b"\x00" * (2**20 + 1)),
        framed(b""),
        framed(b"\x12\x0b\x18" + b"\xff" * 9 + b"\x01"),
    ],
)
def test_unreadable_messages_are_skipped(unreadable):
    reader = read(unreadable + STREAM, 1000)
    assert (reader.usage, reader.events) == (Usage(9, 2, 4), 4)


def test_message_that_claims_four_gigabytes_is_not_kept():
    reader = read(b"\0\xff\xff\xff\xff" + STREAM * 10_000, 65_536)
    assert (reader.usage, reader.events) == (None, 0)
    assert not reader._kept


def test_nothing_is_found_behind_what_is_no_message():
    assert read(b"{" + STREAM).usage is None


def test_counts_may_be_in_the_response_itself():
    response = GrpcResponse(counts=(GrpcCounts(prompt_tokens=2),))
    reader = read(framed(M["EmbedResponse"](embedding=[1] * 100, prompt_tokens=7)), 10, response)
    assert (reader.usage, reader.reports_cached) == (Usage(7, 0, 0), False)


def wrapped(*data: bytes) -> bytes:
    return b"".join(framed(HttpBody(content_type="x", data=each)) for each in data)


@pytest.mark.parametrize("size", [1, 7, 0])
def test_wrapped_json_and_event_streams_are_read(size):
    usage = json.dumps({"usage": {"prompt_tokens": 5, "completion_tokens": 2}}).encode()
    assert read(wrapped(usage), size, WRAPPED).usage == Usage(5, 2, 0)
    assert read(wrapped(usage[:9], usage[9:]), size, WRAPPED).usage == Usage(5, 2, 0)
    events = b"data: {}\n\ndata: " + usage + b"\n\n"
    assert read(wrapped(events[:20], events[20:]), size, WRAPPED, event_stream=True).usage == Usage(5, 2, 0)
    by_frame = read(wrapped(b'{"choices":[]}', usage), size, WRAPPED, event_stream=True)
    assert (by_frame.usage, by_frame.has_content) == (Usage(5, 2, 0), True)
