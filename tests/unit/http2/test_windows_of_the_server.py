# SPDX-License-Identifier: Apache-2.0
"""Windows of the server are returned as messages are consumed."""

import tracemalloc

import pytest

from epp.extproc.http2 import frames
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.service import ErrorCode
from tests.support.http2.frame_client import Client, data, goaway, message, rst

SMALL = Limits(stream_window=100_000, connection_window=200_000)
CHUNK = data(1, message(b"nothing" + bytes(9_988)))  # 10,000 bytes; the answer is as long


def updates(client: Client) -> dict[int, int]:
    found: dict[int, int] = {}
    for frame in client.sent():
        if frame.kind == frames.WINDOW_UPDATE:
            found[frame.stream_id] = found.get(frame.stream_id, 0) + frames.word(frame.payload)
    return found


@pytest.fixture
def client():
    client = Client(SMALL)
    client.send(frames.settings_frame({frames.Setting.INITIAL_WINDOW_SIZE: 2**30}))
    client.send(frames.window_update_frame(0, 2**30))
    client.sent()
    return client


def test_half_a_window_is_given_back_at_once(client):
    client.open()
    client.send(CHUNK * 5)
    assert not updates(client)
    client.send(CHUNK)
    assert updates(client) == {1: 60_000}
    client.send(CHUNK * 5)
    assert updates(client) == {0: 110_000}  # 50,000 of the stream's are not more than half


def test_bytes_behind_a_held_answer_are_not_given_back(client):
    stream = client.open()
    client.say(stream, b"wait")
    client.send(CHUNK * 9)
    assert not updates(client)
    client.connection.calls.settled(stream, None)
    assert updates(client) == {stream: 90_009}


def test_what_others_hold_back_leaves_the_rest_of_the_connections_window_in_use(client):
    held = [client.open(), client.open()]
    for stream in held:
        client.say(stream, b"wait")
        client.send(*(data(stream, bytes(10_000)) for _ in range(7)))
    free = client.open()
    client.sent()
    for _ in range(10):  # 100,000 bytes, more than the 60,000 that the held ones have left
        client.send(data(free, message(b"nothing" + bytes(9_988))))
        assert not client.connection.closed
    assert len(client.calls[2].received) == 10
    client.send(rst(held[0]), rst(held[1]))
    assert updates(client)[0] > 0


def test_bytes_on_a_closed_stream_are_given_back_to_the_connection(client):
    stream = client.open()
    client.say(stream, b"end")
    for _ in range(30):
        client.send(CHUNK)
    assert updates(client)[0] >= 200_000
    assert not client.connection.closed


def test_client_that_ignores_the_window_of_a_stream_loses_it(client):
    stream = client.open()
    client.say(stream, b"wait")
    client.sent()
    client.send(CHUNK * 10)
    (reset,) = [frame for frame in client.sent() if frame.kind == frames.RST_STREAM]
    assert (reset.stream_id, reset.code) == (stream, ErrorCode.FLOW_CONTROL_ERROR)
    assert not client.connection.closed


def test_client_that_ignores_the_window_of_the_connection_loses_it(client):
    for _ in range(3):
        stream = client.open()
        client.say(stream, b"wait")
        client.send(*(data(stream, bytes(10_000)) for _ in range(9)))
    assert goaway(client.sent()).code is ErrorCode.FLOW_CONTROL_ERROR
    assert [held.cancelled for held in client.held] == [True, True, True]


def test_part_of_a_message_keeps_no_more_than_itself():
    """And not the whole read of which it is a small part."""
    client = Client()
    stream = client.open()
    client.send(data(stream, message(bytes(3_000_000))[:5]))
    others = frames.frame(77, 0, 0, bytes(16_000)) * 6  # of an extension
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100):
            client.send(others + data(stream, bytes(8_200)))
        client.sent()
        assert tracemalloc.get_traced_memory()[0] - before < 2 * 820_000
    finally:
        tracemalloc.stop()
    for _ in range(218):
        client.send(data(stream, bytes(10_000)))
    assert client.calls[0].received == [bytes(3_000_000)]
