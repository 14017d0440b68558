# SPDX-License-Identifier: Apache-2.0
"""Responses that fail before their first token: they count against the endpoint, and nothing of them is remembered."""

import pytest

from epp.framework import Headers, ResponseTiming
from epp.framework.errors import PreconditionFailedError
from epp.routing.director import Cause, Routing
from epp.routing.outliers.record import failure_of
from tests.unit.director.world import ENDPOINTS
from tests.unit.director.world import World as DirectorWorld

IF_CACHED = ("prefer", "if-available")
DONE = b"data: [DONE]\n\n"
TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
STREAM_ERROR = b'data: {"error": {"message": "broken", "code": 500}}\n\n'


class Timings(ResponseTiming):
    plugin_type = "timings"

    def setup(self) -> None:
        self.told: list[str] = []

    def first_token(self, request, response, seconds):
        self.told.append("first token")

    def ended(self, request, response, seconds):
        self.told.append("ended")

    def interrupted(self, request, response):
        self.told.append(f"interrupted with status {response.status}")


class World(DirectorWorld):
    def __init__(self) -> None:
        super().__init__("{type: prefix-cache-scorer}", "{type: timings}", endpoints=ENDPOINTS[:2], more=[Timings])
        self.timings: list[str] = self.plugin("timings").told

    def send(self, prompt: str = "hello", *headers: tuple[str, str]) -> Routing:
        fields = Headers([(":path", "/v1/completions"), *headers])
        return self.route(b'{"model":"m","stream":true,"prompt":"%s"}' % prompt.encode(), fields)

    def is_cached(self, prompt: str) -> bool:
        """Whether the picker believes that an endpoint has the prompt in its cache."""
        try:
            self.send(prompt, IF_CACHED)
        except PreconditionFailedError:
            return False
        return True


def answer(routing: Routing, *pieces: bytes, status: int = 200, stream: bool = True, cause: Cause = Cause.NATURAL):
    failure = failure_of(status, by_gateway=False, overloaded=False)
    routing.response_started(status, Headers, event_stream=stream, failure=failure)
    for number, piece in enumerate(pieces, 1):
        routing.response_piece(piece, last=number == len(pieces) and cause is Cause.NATURAL, now=lambda: 1.0)
    routing.complete(cause)


FAILURES = {
    "500": ({"status": 500, "stream": False}, b'{"error":"broken"}'),
    "500, and the client leaves": ({"status": 500, "stream": False, "cause": Cause.CLIENT_DISCONNECT},),
    "429": ({"status": 429, "stream": False}, b"{}"),
    "200 with an error": ({"stream": False}, b'{"error": {"message":', b' "broken"}}'),
    "200 with an error like vLLM's": ({"stream": False}, b'{"object":"error","message":"broken"}'),
    "200 without a body": ({"stream": False},),
    "stream without a token": ({}, DONE),
    "stream with an error": ({}, STREAM_ERROR[:9], STREAM_ERROR[9:], DONE),
    "stream without an event": ({}, b": ping\n\n"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failed_response_leaves_no_prefix_no_timing_and_counts_against_the_endpoint(name):
    how, *pieces = FAILURES[name]
    world = World()
    good = world.send("another prompt")
    answer(good, TOKEN, DONE)
    world.timings.clear()
    bad = good.served
    world.clock.advance(10)
    for number in range(200):
        routing = world.send(f"prompt {number}")
        if routing.served is bad:
            answer(routing, *pieces, **how)
            assert not world.is_cached(f"prompt {number}")
            assert not {"first token", "ended"} & {*world.timings}
        else:
            answer(routing, TOKEN, DONE)
            assert world.is_cached(f"prompt {number}")
            world.timings.clear()
    assert [each.endpoint for each in world.director.outliers.ejected] == [bad]


@pytest.mark.parametrize("pieces", [(TOKEN, DONE), (b": ping\n\n", TOKEN), (TOKEN[:3], TOKEN[3:20], TOKEN[20:])])
def test_stream_with_a_token_is_remembered_and_timed_once(pieces):
    world = World()
    answer(world.send(), *pieces)
    assert world.is_cached("hello")
    assert world.timings == ["first token", "ended"]
    assert world.director.outliers.is_clean


def test_mistake_of_the_client_leaves_no_prefix_and_nothing_against_the_endpoint():
    world = World()
    answer(world.send(), b"{}", status=400, stream=False)
    assert not world.is_cached("hello")
    assert world.director.outliers.is_clean


def test_client_that_leaves_before_the_response_says_nothing_about_the_endpoint():
    world = World()
    world.send().complete(Cause.CLIENT_DISCONNECT)
    assert world.director.outliers.is_clean
    assert world.is_cached("hello")  # the endpoint was at work on it


def test_plugins_are_told_of_a_client_that_leaves_after_the_first_token():
    world = World()
    answer(world.send(), TOKEN, TOKEN, cause=Cause.CLIENT_DISCONNECT)
    assert world.timings == ["first token", "interrupted with status 200"]
