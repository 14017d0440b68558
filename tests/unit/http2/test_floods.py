# SPDX-License-Identifier: Apache-2.0
"""Floods end the connection; the same frames at the rate of an honest client do not."""

import pytest

from epp.extproc.http2 import frames
from epp.extproc.http2.frames import frame
from epp.extproc.http2.limits import Budget, GoawayError, Limits, Rate
from epp.extproc.http2.service import ErrorCode
from tests.support.http2.frame_client import Client, data, goaway, message, rst

LIMITS = Limits(
    pings=Rate(10, 1),
    settings=Rate(10, 1),
    resets=Rate(10, 1),
    strays=Rate(10, 1),
    empty_frames=Rate(10, 1),
    priorities=Rate(10, 1),
    small_updates=Rate(10, 1),
)
PING = frame(frames.PING, 0, 0, b"12345678")


@pytest.fixture
def client():
    client = Client(LIMITS)
    client.open()
    return client


FLOODS = {
    "ping": PING,
    "settings": frames.settings_frame({}),
    "empty DATA": data(1, b""),
    "padded empty DATA": frame(frames.DATA, frames.PADDED, 1, b"\x02\0\0"),
    "priority": frame(frames.PRIORITY, 0, 9, b"\0\0\0\0\1"),
    "unknown": frame(77, 0, 0),
    "small updates": frames.window_update_frame(0, 1),
    "small updates of a stream": frames.window_update_frame(1, 1),
}


@pytest.mark.parametrize("wire", FLOODS.values(), ids=FLOODS.keys())
def test_flood_of_frames_ends_the_connection(client, wire):
    client.send(wire * 9)
    assert not client.connection.closed
    client.send(wire * 4)
    assert client.connection.closed
    assert goaway(client.sent()).code is ErrorCode.ENHANCE_YOUR_CALM
    assert client.calls[0].closed == 1


@pytest.mark.parametrize("wire", FLOODS.values(), ids=FLOODS.keys())
def test_same_frames_one_a_second_do_not(client, wire):
    for _ in range(100):
        client.now += 1
        client.send(wire)
    assert not client.connection.closed


def test_streams_that_are_reset_at_once_end_the_connection(client):
    for _ in range(12):
        client.send(rst(client.open()))
    assert goaway(client.sent()).code is ErrorCode.ENHANCE_YOUR_CALM
    assert [call.closed for call in client.calls] == [1] * len(client.calls)


def test_streams_that_are_reset_after_an_answer_do_not(client):
    for _ in range(100):
        stream = client.open()
        client.say(stream, b"hello")
        client.send(rst(stream))
    assert not client.connection.closed


def test_broken_streams_end_the_connection(client):
    for _ in range(12):
        client.open(("X-Upper", "1"))
    assert goaway(client.sent()).code is ErrorCode.ENHANCE_YOUR_CALM


def test_frames_on_closed_streams_end_the_connection(client):
    stream = client.open()
    client.say(stream, b"end", end=True)
    client.send(rst(stream) * 12)
    assert goaway(client.sent()).code is ErrorCode.ENHANCE_YOUR_CALM


def test_frames_that_were_under_way_as_calls_ended_are_no_flood(client):
    for _ in range(100):
        stream = client.open()
        client.say(stream, b"end")
        client.send(data(stream, b"", end=True), frames.window_update_frame(stream, 5000), rst(stream))
    assert not client.connection.closed


@pytest.mark.parametrize("count", [1000, 6000])
def test_frames_that_were_under_way_as_many_calls_ended_at_once_are_no_flood(client, count):
    streams = [client.open() for _ in range(count)]
    for call in client.calls:
        call.outlet.finish()
    for _ in range(2):
        client.send(*(data(stream, b"x") for stream in streams))
    client.send(*(rst(stream) for stream in streams))
    assert not client.connection.closed


def test_frames_that_are_expected_run_out(client):
    streams = [client.open() for _ in range(10)]
    for call in client.calls:
        call.outlet.finish()
    for _ in range(10):
        client.send(*(data(stream, b"x") for stream in streams))
    assert goaway(client.sent()).code is ErrorCode.ENHANCE_YOUR_CALM


def test_pings_that_go_with_data_are_no_flood(client):
    for _ in range(100):
        client.send(PING, data(1, message(b"hello")))
    assert not client.connection.closed


def test_large_updates_are_no_flood(client):
    for _ in range(100):
        client.send(frames.window_update_frame(0, 5000))
    assert not client.connection.closed


@pytest.mark.parametrize("times", [[1000.0] * 3 + [1000.5], [5000.0] * 3])
def test_budget_fills_up_to_its_burst(times):
    budget = Budget(Rate(3, 2), "things")
    for now in times:
        budget.spend(now)
    with pytest.raises(GoawayError, match="too many things"):
        budget.spend(times[-1])
