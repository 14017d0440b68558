# SPDX-License-Identifier: Apache-2.0
"""Windows of the client: answers beyond them wait, and further messages are not processed."""

from collections import OrderedDict

import pytest

from epp.extproc.http2 import frames
from epp.extproc.http2.frames import Setting
from epp.extproc.http2.limits import Limits
from epp.extproc.http2.service import ErrorCode
from tests.support.http2.frame_client import Client, Frame, data, goaway, message

BIG = b"x" * 100_000


def settings(**values: int) -> bytes:
    return frames.settings_frame({Setting[name]: value for name, value in values.items()})


def content(sent: list[Frame], stream: int) -> bytes:
    return b"".join(frame.payload for frame in sent if frame.kind == frames.DATA and frame.stream_id == stream)


@pytest.fixture
def client():
    return Client()


def test_messages_behind_an_unsent_answer_are_not_processed(client):
    client.send(settings(INITIAL_WINDOW_SIZE=10))
    stream = client.open()
    for text in (b"first message", b"second", b"third"):
        client.say(stream, text)
    assert client.calls[0].received == [b"first message"]
    client.send(frames.window_update_frame(stream, 8))  # 18 in all: the first answer
    assert client.calls[0].received == [b"first message", b"second"]
    client.send(frames.window_update_frame(stream, 1000))
    assert client.calls[0].received == [b"first message", b"second", b"third"]


def test_status_follows_the_answers_that_wait(client):
    client.send(settings(INITIAL_WINDOW_SIZE=5))
    stream = client.open()
    client.say(stream, b"end")
    sent = client.sent()
    assert content(sent, stream) == message(b"last")[:5]
    assert not sent[-1].end_stream
    assert client.calls[0].closed == 1
    client.send(frames.window_update_frame(stream, 4))
    rest, trailers, _ = client.sent()
    assert rest.payload == b"last"
    assert client.fields(trailers) == {"grpc-status": "0"}


def test_status_that_the_client_never_takes_ends_by_itself():
    client = Client(Limits(write_stall_seconds=30))
    client.send(settings(INITIAL_WINDOW_SIZE=5))
    stream = client.open()
    client.say(stream, b"end")
    client.sent()
    client.connection.check(client.now)
    client.connection.check(client.now + 31)
    (reset,) = client.sent()
    assert (reset.stream_id, reset.code) == (stream, ErrorCode.CANCEL)
    assert client.connection.open_streams == 0


def test_smaller_initial_window_may_make_windows_negative(client):
    stream = client.open()
    client.say(stream, b"x" * 995)  # 1,000 bytes of 65,535
    client.sent()
    client.send(settings(INITIAL_WINDOW_SIZE=500))  # 500 - 1,000 = -500 left
    client.say(stream, b"hello")
    assert not content(client.sent(), stream)
    client.send(frames.window_update_frame(stream, 500))
    assert not content(client.sent(), stream)
    client.send(frames.window_update_frame(stream, 10))
    assert content(client.sent(), stream) == message(b"hello")


def test_frames_are_as_large_as_the_client_takes(client):
    client.send(settings(INITIAL_WINDOW_SIZE=1_000_000), frames.window_update_frame(0, 1_000_000))
    stream = client.open()
    wire = message(BIG)
    client.send(*(data(stream, wire[at : at + 16_384]) for at in range(0, len(wire), 16_384)))
    assert {len(frame.payload) for frame in client.sent() if frame.kind == frames.DATA} == {
        16_384,
        100_005 - 6 * 16_384,
    }
    client.send(settings(MAX_FRAME_SIZE=50_000))
    client.send(*(data(stream, wire[at : at + 16_384]) for at in range(0, len(wire), 16_384)))
    assert [len(frame.payload) for frame in client.sent() if frame.kind == frames.DATA] == [50_000, 50_000, 5]


def test_window_beyond_its_maximum_ends_the_connection(client):
    client.send(frames.window_update_frame(0, frames.MAX_WINDOW))
    assert goaway(client.sent()).code is ErrorCode.FLOW_CONTROL_ERROR
    assert client.connection.closed


def test_update_by_nothing_ends_the_connection(client):
    client.send(frames.window_update_frame(0, 0))
    assert goaway(client.sent()).code is ErrorCode.PROTOCOL_ERROR


def test_settings_that_make_a_window_too_large_are_an_error(client):
    stream = client.open()
    client.send(frames.window_update_frame(stream, frames.MAX_WINDOW - frames.DEFAULT_WINDOW))
    client.send(settings(INITIAL_WINDOW_SIZE=frames.DEFAULT_WINDOW + 1))
    assert goaway(client.sent()).code is ErrorCode.FLOW_CONTROL_ERROR


def test_small_update_of_the_connection_looks_at_the_stream_that_it_serves(client):
    """And not at the thousands that wait behind it, for each update of one byte."""
    streams = [client.open() for _ in range(50)]
    for stream in streams:
        client.say(stream, b"x" * 16_000)
    looked_at = []

    class Watched(OrderedDict):
        def __iter__(self):
            for stream in super().__iter__():
                looked_at.append(stream.id)
                yield stream

    sending = client.connection._windows  # noqa: SLF001
    sending._short = Watched(sending._short)  # noqa: SLF001
    assert len(sending._short) > 40  # noqa: SLF001
    looked_at.clear()
    client.sent()
    client.send(frames.window_update_frame(0, 1) * 3)
    assert len(looked_at) == 3
    assert len(client.sent()) == 3
