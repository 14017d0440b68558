# SPDX-License-Identifier: Apache-2.0
"""Responses that fail before their first token: they count against the endpoint, and nothing of them is remembered."""

import pytest

from epp.config import Builder, assemble, load_text
from epp.framework import Endpoint, Headers, ManualClock, ResponseTiming
from epp.framework.registry import Registry
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, Director, Routing, Runtime
from epp.routing.outliers.record import failure_of

ENDPOINTS = [Endpoint(name, f"10.0.0.{number}", 8000) for number, name in enumerate("ab", 1)]
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


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Datastore(self.clock)
        self.store.replace(ENDPOINTS)
        registry = Registry()
        registry.register(Timings)
        plugins = "{type: prefix-cache-scorer}, {type: timings}"
        text = f"apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{plugins}]"
        self.pipeline = assemble(load_text(text), Builder(registry, self.clock)).pipeline
        self.director = Director(Runtime(self.store, self.clock), self.pipeline)

    def route(self, prompt: str = "hello", *headers: tuple[str, str]) -> Routing:
        fields = Headers([(":path", "/v1/completions"), *headers])
        return self.director.route(fields, b'{"model":"m","stream":true,"prompt":"%s"}' % prompt.encode(), None)

    def is_cached(self, prompt: str) -> bool:
        """Whether the picker believes that an endpoint has the prompt in its cache."""
        try:
            self.route(prompt, IF_CACHED)
        except Exception as error:  # noqa: BLE001
            return getattr(error, "status", 0) != 412
        return True

    @property
    def timings(self) -> list[str]:
        (plugin,) = self.pipeline.of(ResponseTiming)
        return plugin.told


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
    good = world.route("another prompt")
    answer(good, TOKEN, DONE)
    world.timings.clear()
    bad = good.served
    world.clock.advance(10)
    for number in range(200):
        routing = world.route(f"prompt {number}")
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
    answer(world.route(), *pieces)
    assert world.is_cached("hello")
    assert world.timings == ["first token", "ended"]
    assert world.director.outliers.is_clean


def test_mistake_of_the_client_leaves_no_prefix_and_nothing_against_the_endpoint():
    world = World()
    answer(world.route(), b"{}", status=400, stream=False)
    assert not world.is_cached("hello")
    assert world.director.outliers.is_clean


def test_client_that_leaves_before_the_response_says_nothing_about_the_endpoint():
    world = World()
    world.route().complete(Cause.CLIENT_DISCONNECT)
    assert world.director.outliers.is_clean
    assert world.is_cached("hello")  # the endpoint was at work on it


def test_plugins_are_told_of_a_client_that_leaves_after_the_first_token():
    world = World()
    answer(world.route(), TOKEN, TOKEN, cause=Cause.CLIENT_DISCONNECT)
    assert world.timings == ["first token", "interrupted with status 200"]
