# SPDX-License-Identifier: Apache-2.0
"""What a routed request holds: released once, whatever ends it."""

import pytest

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
from epp.framework.plugin import Guard
from epp.framework.refusals import EvictedError
from epp.framework.snapshot import IN_FLIGHT
from epp.framework.testing import candidates
from epp.plugins.profile_handlers import SingleProfileHandler
from epp.routing.datastore import Datastore
from epp.routing.director import Cause, ParserTable, Pipeline, Routing
from epp.routing.director.open_requests import RESERVATION_SECONDS, Reservations
from epp.routing.director.routing import RoutingObserver
from epp.routing.outliers.outlier_detector import OutlierDetector
from epp.routing.scheduling.scheduler import Scheduler

POOL = candidates(waiting=[0])
PICKED = ProfileResult("default", POOL, POOL.values(WAITING), POOL.slots)
RESULT = SchedulingResult(Destination(PICKED), {"default": PICKED}, {})
PIPELINE = Pipeline(ParserTable(()), Scheduler({}, SingleProfileHandler(), SingleProfileHandler()))


class Told:
    """A reservation that records what it is told."""

    def __init__(self) -> None:
        self.events: list[str | Usage | None] = []

    def first_token(self) -> None:
        self.events.append("first token")

    def release(self, usage: Usage | None) -> None:
        self.events += ["release", usage]


class Expired(RoutingObserver):
    """Records which requests have expired, and how often each has ended."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.causes: list[Cause] = []

    def expired(self, routing: Routing) -> None:
        self.ids.append(routing.request.id)

    def completed(self, routing: Routing, cause: Cause) -> None:
        self.causes.append(cause)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Datastore(self.clock)
        self.store.replace([Endpoint("one", "10.0.0.1", 8000)])
        self.book = Reservations(self.clock)
        self.observed = Expired()

    @property
    def in_flight(self) -> float:
        return self.store.snapshot().column(IN_FLIGHT).item(0)

    def assumed(self, told: Told | None = None, *, shows: bool = True) -> Routing:
        """A routed request in the book, from a gateway that shows response headers, or not."""
        routing = self.routing(told)
        routing.let_expire(lambda: shows)
        self.book.assume(routing, self.clock.now())
        return routing

    def routing(self, told: Told | None = None) -> Routing:
        return Routing(
            Request("r", RequestBody(model="m")),
            RESULT,
            self.store.ledger.open(0),
            PIPELINE,
            guard=Guard(RoutingObserver()),
            observer=self.observed,
            find=self.store.find,
            outliers=OutlierDetector(self.store, self.clock),
            reservation=told,
            settled=self.book.settle,
        )


@pytest.fixture
def world() -> World:
    return World()


def piece(routing: Routing, world: World, text: bytes, *, last: bool = False) -> None:
    routing.response_piece(text, last=last, now=world.clock.now)


def test_reservation_follows_the_response_and_is_told_its_tokens(world):
    told = Told()
    routing = world.routing(told)
    routing.response_started(200, Headers, event_stream=False)
    piece(routing, world, b'{"usage":{"prompt_tokens":7,', last=False)
    piece(routing, world, b'"completion_tokens":3}}', last=True)
    routing.complete(Cause.NATURAL)
    assert told.events[:2] == ["first token", "release"]
    usage = told.events[2]
    assert isinstance(usage, Usage)
    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 3)


@pytest.mark.parametrize("cause", list(Cause))
def test_any_end_releases_once(world, cause):
    told = Told()
    routing = world.routing(told)
    routing.complete(cause)
    routing.complete(Cause.NATURAL)
    assert told.events == ["release", None]
    assert world.in_flight == 0


def test_a_body_without_headers_shows_that_the_endpoint_answers(world):
    told = Told()
    routing = world.routing(told)
    piece(routing, world, b"{")
    piece(routing, world, b"}", last=True)
    assert told.events == ["first token"]


def test_a_request_that_two_may_end_tells_both_of_its_end(world):
    ended: list[str] = []
    routing = world.routing()
    routing.add_end_listener(lambda _: ended.append("one"))
    routing.add_end_listener(lambda _: ended.append("two"))
    assert routing.is_evictable
    routing.evict(EvictedError(), even_if_answered=True)
    routing.complete(Cause.EVICTED)
    assert (ended, routing.status, routing.is_evictable) == (["one", "two"], 429, False)


def test_tf_8_request_without_an_answer_gives_its_credit_back_after_ten_minutes_and_once(world):
    told = Told()
    routing = world.assumed(told)
    world.clock.advance(RESERVATION_SECONDS - 1)
    assert (sum(world.book.sweep()), world.in_flight) == (0, 1)
    world.clock.advance(1)
    assert (sum(world.book.sweep()), world.in_flight) == (1, 0)
    assert (told.events, world.observed.ids, len(world.book)) == (["release", None], ["r"], 0)
    routing.response_started(200, Headers, event_stream=False)  # the server was slow, not gone
    piece(routing, world, b"{}", last=True)
    routing.complete(Cause.NATURAL)
    assert (sum(world.book.sweep()), world.in_flight) == (0, 0)
    assert told.events == ["release", None]
    assert world.observed.causes == [Cause.NATURAL]


def test_tf_8_request_that_is_answered_never_expires(world):
    told = Told()
    routing = world.assumed(told)
    routing.response_started(200, Headers, event_stream=True)
    world.clock.advance(10 * RESERVATION_SECONDS)
    assert (sum(world.book.sweep()), len(world.book), world.in_flight) == (0, 0, 1)
    assert not told.events


def test_tf_8_sweep_takes_the_overdue_ones_alone_and_none_whose_answer_would_not_be_seen(world):
    hidden = world.assumed(shows=False)
    world.assumed()
    world.clock.advance(RESERVATION_SECONDS)
    late = world.assumed()
    assert (sum(world.book.sweep()), len(world.book), world.in_flight) == (1, 2, 2)
    hidden.complete(Cause.CLIENT_DISCONNECT)  # as its stream closes
    late.complete(Cause.NATURAL)
    assert (len(world.book), world.in_flight) == (0, 0)


def test_request_that_has_expired_may_not_be_evicted(world):
    ended: list[Routing] = []
    routing = world.assumed()
    routing.add_end_listener(ended.append)
    world.clock.advance(RESERVATION_SECONDS)
    sum(world.book.sweep())
    assert (ended, routing.is_evictable) == ([routing], False)
    routing.complete(Cause.NATURAL)
    assert ended == [routing]
