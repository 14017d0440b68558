# SPDX-License-Identifier: Apache-2.0
"""What a routed request holds: committed as the endpoint answers, released once, whatever ends it."""

import pytest

from epp.datastore import Credit, Datastore
from epp.director import Cause, ParserTable, Pipeline, Routing
from epp.director.routing import RoutingObserver
from epp.framework import (
    WAITING,
    Destination,
    Endpoint,
    Headers,
    ManualClock,
    ProfileResult,
    Request,
    RequestBody,
    SchedulingResult,
    Usage,
)
from epp.framework.errors import EvictedError
from epp.framework.testing import candidates
from epp.plugins.profile_handlers import SingleProfileHandler
from epp.scheduling import Guard, Scheduler

POOL = candidates(waiting=[0])
PICKED = ProfileResult("default", POOL, POOL.values(WAITING), POOL.slots)
RESULT = SchedulingResult(Destination(PICKED), {"default": PICKED}, {})
PIPELINE = Pipeline(ParserTable(()), Scheduler({}, SingleProfileHandler(), SingleProfileHandler()))


class Told:
    """A reservation that records what it is told."""

    def __init__(self) -> None:
        self.events: list[str | Usage | None] = []

    def commit(self) -> None:
        self.events.append("commit")

    def first_token(self) -> None:
        self.events.append("first token")

    def release(self, usage: Usage | None) -> None:
        self.events += ["release", usage]


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Datastore(self.clock)
        self.store.replace([Endpoint("one", "10.0.0.1", 8000)])

    def routing(self, *told: Told) -> Routing:
        return Routing(
            Request("r", RequestBody(model="m")),
            RESULT,
            Credit(self.store.ledger.open(0)),
            PIPELINE,
            guard=Guard(RoutingObserver()),
            observer=RoutingObserver(),
            find=self.store.find,
            reservations=told,
        )


@pytest.fixture
def world() -> World:
    return World()


def piece(routing: Routing, world: World, text: bytes, *, last: bool = False) -> None:
    routing.response_piece(text, last=last, now=world.clock.now)


def test_reservations_follow_the_response_and_are_told_its_tokens(world):
    first, second = Told(), Told()
    routing = world.routing(first, second)
    routing.response_started(200, Headers, event_stream=False)
    piece(routing, world, b'{"usage":{"prompt_tokens":7,', last=False)
    piece(routing, world, b'"completion_tokens":3}}', last=True)
    routing.complete(Cause.NATURAL)
    assert first.events[:3] == ["commit", "first token", "release"]
    usage = first.events[3]
    assert isinstance(usage, Usage)
    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 3)
    assert second.events == first.events


@pytest.mark.parametrize("cause", list(Cause))
def test_any_end_releases_once(world, cause):
    told = Told()
    routing = world.routing(told)
    routing.complete(cause)
    routing.complete(Cause.NATURAL)
    assert told.events == ["release", None]
    assert world.store.in_flight("one") == 0


def test_a_body_without_headers_shows_that_the_endpoint_answers(world):
    told = Told()
    routing = world.routing(told)
    piece(routing, world, b"{")
    piece(routing, world, b"}", last=True)
    assert told.events == ["commit", "first token"]


def test_a_request_that_two_may_end_tells_both_of_its_end(world):
    ended: list[str] = []
    routing = world.routing()
    routing.tell_end(lambda _: ended.append("one"))
    routing.tell_end(lambda _: ended.append("two"))
    assert routing.is_evictable
    routing.evict(EvictedError(), even_if_answered=True)
    routing.complete(Cause.EVICTED)
    assert (ended, routing.status, routing.is_evictable) == (["one", "two"], 429, False)
