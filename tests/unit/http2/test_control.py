# SPDX-License-Identifier: Apache-2.0
"""Pings, GOAWAY from both sides, and timeouts of a connection."""

import pytest

from epp.extproc.http2 import frames
from epp.extproc.http2.frames import frame
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.service import ErrorCode
from tests.support.http2.frame_client import Client, data, goaway, message

LIMITS = Limits(
    preface_seconds=10, settings_seconds=30, keepalive_seconds=60, keepalive_timeout_seconds=20, idle_seconds=1000
)
PING = frame(frames.PING, 0, 0, b"12345678")


def wait(client: Client, seconds: float) -> None:
    """Let time pass, and check whenever the connection asks for it."""
    end = client.now + seconds
    while not client.connection.closed:
        client.now = min(client.now + client.connection.check(client.now), end)
        if client.now >= end:
            client.connection.check(client.now)
            return


@pytest.fixture
def client():
    return Client(LIMITS)


def test_settings_are_acknowledged(client):
    client.send(frames.settings_frame({}))
    (acknowledgement,) = client.sent()
    assert (acknowledgement.kind, acknowledgement.flags) == (frames.SETTINGS, frames.ACK)


def test_ping_is_answered_with_its_own_bytes(client):
    client.send(PING)
    (pong,) = client.sent()
    assert (pong.kind, pong.flags, pong.payload) == (frames.PING, frames.ACK, b"12345678")


def test_graceful_end_serves_what_is_under_way(client):
    first = client.open()
    client.connection.go_away()
    goodbye, ping = client.sent()
    assert frames.word(goodbye.payload) == 2**31 - 1
    assert ping.kind == frames.PING
    second = client.open()  # sent before the client read GOAWAY
    client.send(frame(frames.PING, frames.ACK, 0, ping.payload))
    (last,) = client.sent()
    assert (frames.word(last.payload), last.code) == (second, ErrorCode.NO_ERROR)
    third = client.open()
    (refused,) = client.sent()
    assert (refused.stream_id, refused.code) == (third, ErrorCode.REFUSED_STREAM)
    client.say(first, b"end", end=True)
    assert not client.connection.finished
    client.say(second, b"end", end=True)
    assert client.connection.finished


def test_last_stream_that_was_told_does_not_rise(client):
    first = client.open()
    client.connection.go_away()
    *_, ping = client.sent()
    client.send(frame(frames.PING, frames.ACK, 0, ping.payload))
    client.open()  # and is refused
    client.send(data(0, b""))
    *_, last_call, _refused, broken = [frame for frame in client.sent() if frame.kind != frames.PING]
    assert [frames.word(told.payload) for told in (last_call, broken)] == [first, first]


def test_cut_ends_calls_with_unavailable(client):
    streams = [client.open(), client.open()]
    client.connection.cut()
    last, *ends = client.sent()
    assert frames.word(last.payload) == streams[-1]
    statuses = [client.fields(end)["grpc-status"] for end in ends if end.kind == frames.HEADERS]
    assert statuses == ["14", "14"]
    assert [call.closed for call in client.calls] == [1, 1]
    assert client.connection.closed


def test_client_that_goes_away_is_served_to_the_end(client):
    stream = client.open()
    client.send(frames.goaway_frame(0, ErrorCode.NO_ERROR))
    assert client.ask(stream, b"hello") == ([b"hello"], None)
    assert not client.connection.finished
    client.say(stream, b"end", end=True)
    assert client.connection.finished


def test_connection_ends_as_the_last_stream_of_a_client_that_goes_away_is_reset(client):
    stream = client.open()
    client.send(frames.goaway_frame(0, ErrorCode.NO_ERROR))
    assert not client.connection.closed
    client.send(frames.rst_stream_frame(stream, ErrorCode.CANCEL))
    assert client.connection.closed


def test_silent_client_is_asked_whether_it_is_alive(client):
    wait(client, 59)
    assert not client.sent()
    wait(client, 2)
    (ping,) = client.sent()
    assert ping.kind == frames.PING
    client.send(frame(frames.PING, frames.ACK, 0, ping.payload))
    wait(client, 30)
    assert not client.connection.closed


def test_any_frame_is_a_sign_of_life(client):
    wait(client, 61)
    client.sent()
    client.send(frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\1\0"))
    wait(client, 30)
    assert not client.connection.closed


def test_client_that_does_not_answer_loses_its_calls(client):
    client.open()
    wait(client, 81)
    assert client.connection.closed
    assert goaway(client.sent()).payload[8:] == b"no answer to PING in time"
    assert client.calls[0].closed == 1


def test_connection_without_streams_is_closed_in_the_end(client):
    for _ in range(15):
        assert not client.connection.closed
        client.send(PING)
        wait(client, 70)
    assert goaway(client.sent()).payload[8:] == b"no streams for a long time"


def test_connection_with_a_stream_is_not_idle(client):
    client.open()
    for _ in range(30):
        client.send(PING)
        wait(client, 60)
    assert not client.connection.closed


@pytest.mark.parametrize(
    ("sent", "seconds", "code"),
    [
        (b"", 10, ErrorCode.PROTOCOL_ERROR),
        (frames.PREFACE + frames.settings_frame({}), 30, ErrorCode.SETTINGS_TIMEOUT),
    ],
    ids=["preface and SETTINGS", "acknowledgement of SETTINGS"],
)
def test_greeting_of_the_client_has_its_time(sent, seconds, code):
    client = Client(LIMITS, greet=False)
    client.send(sent)
    wait(client, seconds - 1)
    assert not client.connection.closed
    wait(client, 2)
    assert goaway(client.sent()).code is code


def test_messages_in_the_last_read_before_the_end_are_answered(client):
    stream = client.open()
    client.send(data(stream, message(b"hello")), data(0, b""))
    sent = client.sent()
    assert goaway(sent).code is ErrorCode.PROTOCOL_ERROR
    assert sent[1].payload == message(b"hello")
