# SPDX-License-Identifier: Apache-2.0
"""Requests whose bodies have so many elements that others are served while they are read."""

import asyncio
import json

import pytest

from epp.config import Builder, assemble, load_text
from epp.framework import Endpoint, Headers, ManualClock, RequestBody
from epp.framework.errors import MalformedBodyError, ModelMissingError
from epp.framework.registry import Registry
from epp.routing.datastore import Datastore
from epp.routing.director import Director, DirectorObserver, PendingRequest, Routing
from epp.routing.director.pipeline import ParsedBody
from epp.routing.director.reading import StepRunner

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
schedulingProfiles:
- name: default
  plugins: []
"""
POST = Headers([(":path", "/v1/completions"), (":method", "POST")])
MANY = ["ab"] * 20_000


class Events(DirectorObserver):
    def __init__(self):
        self.told = []

    def routed(self, request, result, scheduling_seconds):
        self.told.append(f"routed {request.body.prompt_tokens}")

    def refused(self, refusal):
        self.told.append(type(refusal.error).__name__)


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def director(events):
    clock = ManualClock()
    store = Datastore(clock)
    store.replace([Endpoint("a", "10.0.0.1", 8000)])
    return Director(store, assemble(load_text(CONFIG), Builder(Registry(), clock)).pipeline, clock, observer=events)


def completion(prompt, **fields):
    return json.dumps({"model": "m", "prompt": prompt, **fields}).encode()


async def test_request_is_routed_once_its_body_has_been_read(director, events):
    held = director.route(POST, completion(MANY), None)
    assert isinstance(held, PendingRequest)
    director.route(POST, completion("hello, you"), None)
    await held.settle()
    assert held.routing().request.body.prompt == b"ab" * 20_000
    assert events.told == ["routed 3", "routed 10128"]  # 255 prompts of a token each, and 39,490 bytes in one


@pytest.mark.parametrize(
    ("body", "error"),
    [(completion([*MANY, None]), MalformedBodyError), (completion(MANY, model=""), ModelMissingError)],
)
async def test_refusal_is_recorded_once_and_raised_where_the_outcome_is_taken(director, events, body, error):
    held = director.route(POST, body, None)
    await held.settle()
    with pytest.raises(error):
        held.routing()
    assert events.told == [error.__name__]


async def test_client_that_leaves_meanwhile_is_recorded(director, events):
    settling = asyncio.create_task(director.route(POST, completion(MANY), None).settle())
    await asyncio.sleep(0)
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert events.told == ["ClientGoneError"]


@pytest.mark.parametrize(
    ("cut", "model"),
    [(-2, "m"), (20, "")],  # in the list of prompts; before the model
)
async def test_beginning_of_a_body_is_read_in_turns_as_well(director, cut, model):
    body = completion(MANY) if model else b'{"prompt":["' + b'ab","' * 20_000
    found = director.route(POST, body[:cut] if model else body, None, incomplete=True)
    await found.settle()
    routing = found.routing()
    assert isinstance(routing, Routing)
    assert routing.request.body.model == model
    assert bool(routing.request.body.prompt) is bool(model)


async def test_beginning_of_a_large_body_is_completed_in_a_turn_of_its_own(director):
    held = director.route(POST, completion("a" * 300_000)[:-2], None, incomplete=True)
    assert isinstance(held, PendingRequest)
    await held.settle()
    assert held.routing().request.body.prompt == b"a" * 300_000


async def test_bodies_take_turns_a_step_in_each_turn_of_the_event_loop():
    steps = []

    def reading(name, count):
        for _ in range(count):
            steps.append(name)
            yield
        return ParsedBody(RequestBody(model=name), names_model=True)

    turns = StepRunner()
    tasks = [asyncio.create_task(turns.read(reading(name, count))) for name, count in (("a", 3), ("b", 2))]
    passed = 0
    while not all(task.done() for task in tasks):
        before = len(steps)
        await asyncio.sleep(0)
        passed += 1
        assert len(steps) - before <= 1
    assert [task.result().body.model for task in tasks] == ["a", "b"]
    assert steps == list("ababa")
    assert passed >= 7  # five steps, and two that find the end
