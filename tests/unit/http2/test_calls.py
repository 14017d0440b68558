# SPDX-License-Identifier: Apache-2.0
"""Calls on a connection: messages in, answers and status out."""

import zlib
from urllib.parse import unquote

import pytest

from epp.extproc.http2 import frames
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.service import ErrorCode
from tests.support.http2.frame_client import ECHO, HEAD, Client, data, message, messages, rst

GRPC = {":status": "200", "content-type": "application/grpc"}


def squeezed(content: bytes, bits: int = 31) -> bytes:
    stream = zlib.compressobj(wbits=bits)
    return stream.compress(content) + stream.flush()


@pytest.fixture
def client():
    return Client()


def test_call_gets_headers_then_answers_then_its_status(client):
    stream = client.open()
    client.say(stream, b"hello")
    client.say(stream, b"end")
    headers, hello, last, trailers, reset = client.sent()
    assert client.fields(headers) == GRPC
    assert messages(hello.payload + last.payload) == [b"hello", b"last"]
    assert client.fields(trailers) == {"grpc-status": "0"}
    assert trailers.end_stream
    assert (reset.kind, reset.code) == (frames.RST_STREAM, ErrorCode.NO_ERROR)  # the client need not go on
    assert client.calls[0].closed == 1


def test_call_whose_client_has_ended_is_not_reset(client):
    stream = client.open()
    client.say(stream, b"end", end=True)
    assert client.sent()[-1].end_stream
    assert client.connection.open_streams == 0


def test_call_that_fails_as_it_opens_is_not_reset_if_its_client_has_ended(client):
    """The stream is closed on both sides: no frame may follow."""
    client.send(client.headers(1, (":path", "/nonsense"), end=True))
    (answer,) = client.sent()
    assert answer.end_stream
    assert client.connection.open_streams == 0
    assert not client.connection.closed


def test_half_close_ends_a_call_that_needs_no_more(client):
    stream = client.open()
    client.say(stream, b"hello")
    client.send(data(stream, b"", end=True))
    assert client.answers(stream) == ([b"hello"], {"grpc-status": "0"})


def test_call_may_outlive_the_half_close_and_push(client):
    stream = client.open()
    client.say(stream, b"stay", end=True)
    call = client.calls[0]
    assert client.answers(stream) == ([b"goodbye"], None)
    call.outlet.send(b"news")
    assert client.flushes == 1
    assert client.answers(stream) == ([b"news"], None)
    call.outlet.finish()
    assert client.answers(stream) == ([], {"grpc-status": "0"})
    call.outlet.send(b"too late")
    call.outlet.finish()
    assert not client.sent()
    assert call.closed == 1


def test_messages_wait_for_a_held_answer(client):
    stream = client.open()
    client.say(stream, b"wait")
    client.say(stream, b"after")
    assert client.answers(stream) == ([b"first"], None)
    assert [held.stream for held in client.held] == [stream]
    assert client.calls[0].received == [b"wait"]
    client.connection.calls.settled(stream, None)
    assert client.answers(stream) == ([b"settled", b"after"], None)


def test_half_close_waits_for_a_held_answer(client):
    stream = client.open()
    assert client.ask(stream, b"wait", end=True) == ([b"first"], None)
    client.connection.calls.settled(stream, None)
    assert client.answers(stream) == ([b"settled"], {"grpc-status": "0"})


def test_held_answer_that_fails_ends_the_call(client):
    stream = client.open()
    client.say(stream, b"wait")
    client.connection.calls.settled(stream, ZeroDivisionError("on purpose"))
    _, trailers = client.answers(stream)
    assert trailers == {"grpc-status": "13", "grpc-message": "ZeroDivisionError in the server"}
    assert client.calls[0].closed == 1


def test_reset_gives_up_a_held_answer_and_closes_the_call_after_that(client):
    stream = client.open()
    client.say(stream, b"wait")
    client.send(rst(stream))
    assert client.held[0].cancelled
    assert client.calls[0].closed == 0
    client.connection.calls.settled(stream, None)
    assert client.calls[0].closed == 1
    assert client.calls[0].resumed == 0


def test_lost_connection_closes_every_call_once(client):
    for _ in range(3):
        client.open()
    client.connection.lose()
    client.connection.lose()
    assert [call.closed for call in client.calls] == [1, 1, 1]


def test_exception_ends_its_stream_and_no_other(client):
    first, second = client.open(), client.open()
    client.send(data(first, message(b"crash")) + data(second, message(b"fine")))
    sent = client.sent()
    trailers = client.fields(sent[0])  # nothing was sent before: trailers only
    assert trailers == {**GRPC, "grpc-status": "13", "grpc-message": "ZeroDivisionError in the server"}
    assert [messages(frame.payload) for frame in sent if frame.kind == frames.DATA] == [[b"fine"]]
    assert [call.closed for call in client.calls] == [1, 0]


def test_status_message_is_percent_encoded(client):
    stream = client.open()
    _, trailers = client.ask(stream, b"refuse")
    assert trailers == {**GRPC, "grpc-status": "3", "grpc-message": "not: 100 %25, sp%C3%A4ter"}


def test_unknown_method_is_unimplemented(client):
    stream = client.open((":path", "/test.Echo/Shout"))
    _, trailers = client.answers(stream)
    assert trailers == {
        **GRPC,
        "grpc-status": "12",
        "grpc-message": "unknown method /test.Echo/Shout",
        "grpc-accept-encoding": "identity,deflate,gzip",
    }


@pytest.mark.parametrize(
    ("field", "status", "reason"),
    [
        (("content-type", "application/json"), "415", "content-type must be application/grpc, not 'application/json'"),
        (("content-type", "application/grpc-web"), "415", "not 'application/grpc-web'"),
        ((":method", "GET"), "405", "the method must be POST, not 'GET'"),
    ],
)
def test_request_of_another_protocol_is_answered_in_http(client, field, status, reason):
    client.open(field, end=True)
    headers, body, end = client.sent()
    assert reason in body.payload.decode()
    assert client.fields(headers).items() >= {":status": status, "content-length": str(len(body.payload))}.items()
    assert end.end_stream
    assert not client.calls


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"])
def test_kinds_of_grpc_are_accepted(client, kind):
    client.open(("content-type", kind))
    assert len(client.calls) == 1


@pytest.mark.parametrize(("encoding", "bits"), [("gzip", 31), ("deflate", 15)])
def test_compressed_messages_are_read_beside_plain_ones(client, encoding, bits):
    stream = client.open(("grpc-encoding", encoding))
    client.say(stream, b"plain")
    client.send(data(stream, message(squeezed(b"x" * 5000, bits), compressed=1)))
    assert client.answers(stream)[0] == [b"plain", b"x" * 5000]


def test_bomb_is_refused_by_its_size_once_it_is_decompressed():
    client = Client(Limits(max_message_bytes=10_000))
    stream = client.open(("grpc-encoding", "gzip"))
    client.send(data(stream, message(squeezed(bytes(1_000_000)), compressed=1)))
    received, trailers = client.answers(stream)
    assert received == []
    assert trailers["grpc-status"] == "8"
    assert "more than 10000 bytes after decompression" in trailers["grpc-message"].replace("%20", " ")


@pytest.mark.parametrize(
    ("encoding", "content", "flag"),
    [
        ("gzip", b"no gzip", 1),
        ("gzip", b"", 1),
        ("gzip", squeezed(b"x" * 5000)[:20], 1),
        (None, b"x", 1),
        ("identity", b"x", 1),
        *((encoding, b"hello", flag) for encoding in ("identity", "gzip") for flag in (2, 3, 128, 255)),
    ],
)
def test_broken_compression_or_unknown_flag_is_an_error_of_the_client(client, encoding, content, flag):
    stream = client.open(*[("grpc-encoding", encoding)] if encoding else [])
    client.send(data(stream, message(content, compressed=flag)))
    received, trailers = client.answers(stream)
    assert (received, trailers["grpc-status"]) == ([], "13")
    assert ("flag" in trailers["grpc-message"]) is (flag > 1)


@pytest.mark.parametrize("encoding", ["snappy", "identity,gzip", "identityidentity", "GZIP", "x" * 5_000])
def test_unknown_compression_is_refused_with_the_encodings_that_are_not(client, encoding):
    stream = client.open(("grpc-encoding", encoding))
    client.say(stream, b"plain")
    client.send(data(stream, message(b"squeezed", compressed=1)))
    received, trailers = client.answers(stream)
    assert received == [b"plain"]
    assert trailers["grpc-status"] == "12"
    assert trailers["grpc-accept-encoding"] == "identity,deflate,gzip"
    assert encoding[:40] in unquote(trailers["grpc-message"])
    assert len(trailers["grpc-message"]) < 200


RECEIVED, SENT = Limits(max_message_bytes=100), Limits(max_sent_message_bytes=100)
TOO_LONG = message(b"x" * 101)


@pytest.mark.parametrize(
    ("limits", "wire", "problem"),
    [
        (RECEIVED, TOO_LONG[:20], "a message of 101 bytes: at most 100 are accepted"),
        (RECEIVED, TOO_LONG, "a message of 101 bytes: at most 100 are accepted"),
        (SENT, TOO_LONG, "an answer of 101 bytes: at most 100 may be sent"),
    ],
    ids=["prefix", "whole message", "answer"],
)
def test_message_above_the_limit_ends_the_call(limits, wire, problem):
    client = Client(limits)
    stream = client.open()
    client.say(stream, b"x" * 100)
    client.send(data(stream, wire))
    assert client.answers(stream) == ([b"x" * 100], {"grpc-status": "8", "grpc-message": problem})
    assert client.calls[0].closed == 1


def test_request_that_ends_within_a_message_is_an_error(client):
    stream = client.open()
    client.send(data(stream, message(b"hello")[:7], end=True))
    assert client.answers(stream)[1]["grpc-status"] == "13"
    assert client.calls[0].closed == 1


def test_deadline_of_a_call_is_left_to_its_client(client):
    """A client resets a call whose deadline has passed."""
    stream = client.open(("grpc-timeout", "1S"))
    client.pass_time(2)
    client.say(stream, b"hello")
    assert client.answers(stream) == ([b"hello"], None)


def test_silence_is_answered_once(client):
    stream = client.open()
    client.say(stream, b"quiet")
    client.pass_time(0.2)
    assert client.answers(stream) == ([b"you are silent"], None)
    client.pass_time(10)
    assert not client.sent()


def test_message_ends_the_silence(client):
    stream = client.open()
    client.say(stream, b"quiet")
    client.calls[0].silence_timeout = None
    client.say(stream, b"hello")
    client.pass_time(1)
    assert client.answers(stream) == ([b"hello"], None)


def test_call_that_raises_as_it_opens_ends_with_internal():
    def refuse(_):
        raise ZeroDivisionError

    client = Client(methods={ECHO: refuse})
    stream = client.open()
    assert client.answers(stream)[1]["grpc-status"] == "13"
    assert client.connection.open_streams == 0


def test_frames_that_were_under_way_as_a_call_ended_are_ignored(client):
    stream = client.open()
    client.say(stream, b"end")
    client.sent()
    client.say(stream, b"late")
    client.send(data(stream, b"", end=True), frames.window_update_frame(stream, 100), rst(stream))
    assert not client.sent()
    assert not client.connection.closed


def test_trailers_of_a_request_end_it(client):
    stream = client.open()
    client.say(stream, b"hello")
    flags = frames.END_HEADERS | frames.END_STREAM
    client.send(frames.frame(frames.HEADERS, flags, stream, client.block(("x-checksum", "1"), head=())))
    assert client.answers(stream) == ([b"hello"], {"grpc-status": "0"})


def test_head_of_a_gateway_is_known(client):
    assert dict(HEAD)[":path"] == ECHO
    client.open(("user-agent", "a gateway"), ("x-request-id", "1"))
    assert client.calls[0].outlet.peer == "ipv4:192.0.2.1:1234"


@pytest.mark.parametrize("length", [8_000, 40_000])
def test_large_frames_are_messages_of_bytes_padded_or_not(client, length):
    client.send(frames.window_update_frame(0, 10**6))
    stream = client.open()
    client.send(frames.window_update_frame(stream, 10**6))
    wire = message(b"x" * length)
    for at in range(0, len(wire), 10_000):
        client.send(data(stream, wire[at : at + 10_000]))
    for at in range(0, len(wire), 10_000):
        client.send(frames.frame(frames.DATA, frames.PADDED, stream, b"\x05" + wire[at : at + 10_000] + bytes(5)))
    assert [type(content) for content in client.calls[0].received] == [bytes, bytes]
    assert client.answers(stream) == ([b"x" * length] * 2, None)


def test_large_frames_behind_a_held_answer_are_messages_of_bytes(client):
    stream = client.open()
    client.say(stream, b"wait")
    wire = message(b"x" * 20_000)
    client.send(data(stream, wire[:10_000]) + data(stream, wire[10_000:]))
    client.connection.calls.settled(stream, None)
    assert client.answers(stream) == ([b"first", b"settled", b"x" * 20_000], None)
