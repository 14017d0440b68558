# SPDX-License-Identifier: Apache-2.0
"""Requests that an admitter holds, in each body mode: the destination follows their release."""

import asyncio
import json

import pytest

from epp.extproc.wire import ProcessingRequest, ProcessingResponse
from epp.framework import Endpoint
from epp.framework.refusals import SaturatedError
from epp.routing.director import Cause, PendingRequest
from tests.support.admitter import CONFIG, Gate
from tests.support.exchanges import (
    BODY,
    Bench,
    Exchange,
    headers_set,
    in_modes,
    kinds,
    new_bench,
    request_body,
    request_headers,
    request_trailers,
    response_headers,
    streamed,
)

DESTINATION = "x-gateway-destination-endpoint"
LATE = [Endpoint("late", "10.0.0.9", 8000)]
"""The pool by the time of the release; each test's request came to another one."""


@pytest.fixture
def bench() -> Bench:
    return new_bench(CONFIG)


@pytest.fixture
def gate(bench) -> Gate:
    return bench.plugins["gate"]


def saying(mode: str) -> ProcessingRequest:
    return in_modes(request_headers(), mode)


def hold(session: Exchange, *messages: ProcessingRequest) -> tuple[list[ProcessingResponse], PendingRequest]:
    """Send messages, of which the last is held; return the answers before, none of which has a destination."""
    *before, held = [answer for message in messages for answer in session.receive(message)]
    assert isinstance(held, PendingRequest)
    assert not any(DESTINATION in headers_set(answer) for answer in before)
    return before, held


MODES = pytest.mark.parametrize(
    ("messages", "before", "after"),
    [
        pytest.param(
            [saying("FULL_DUPLEX_STREAMED"), request_body(BODY[:9], end=False), request_body(BODY[9:])],
            [],
            ["request_headers", "request_body"],
            id="full duplex",
        ),
        pytest.param(
            [saying("FULL_DUPLEX_STREAMED"), request_body(BODY, end=False), request_trailers()],
            [],
            ["request_headers", "request_body", "request_trailers"],
            id="full duplex with trailers",
        ),
        pytest.param([saying("BUFFERED"), request_body(BODY)], ["request_headers"], ["request_body"], id="buffered"),
        pytest.param(
            [saying("BUFFERED_PARTIAL"), request_body(BODY)], ["request_headers"], ["request_body"], id="partial"
        ),
        pytest.param([saying("STREAMED")], [], ["request_headers"], id="streamed"),
        pytest.param([saying("NONE")], [], ["request_headers"], id="not shown"),
    ],
)


@MODES
async def test_destination_and_body_follow_the_release_and_are_those_of_its_moment(
    bench, gate, messages, before, after
):
    session = bench.session()
    sent, held = hold(session, *messages)
    assert kinds(sent) == before
    settling = asyncio.create_task(held.settle())
    bench.store.replace(LATE)
    assert bench.in_flight == 0
    gate.held[0].set_result(None)
    await settling
    answers = session.resume()
    assert kinds(answers) == after
    assert headers_set(answers[0])[DESTINATION] == "10.0.0.9:8000"
    assert bench.in_flight == 1
    assert streamed(answers[1:], "request_body")[0] == (BODY if len(after) > 1 else b"")
    assert kinds(session.receive(response_headers(end=True))) == ["response_headers"]
    assert bench.endings.causes == [Cause.NATURAL]
    assert bench.in_flight == 0


@MODES
async def test_refusal_after_a_hold_is_an_answer_to_the_client(bench, gate, messages, before, after):
    session = bench.session()
    _, held = hold(session, *messages)
    gate.held[0].set_exception(SaturatedError("queue is full"))
    await held.settle()
    (answer,) = session.resume()
    refusal = answer.immediate_response
    assert refusal.status.code == 429
    assert json.loads(refusal.body)["error"]["message"].endswith("request cannot be admitted: queue is full")
    assert session.done
    assert bench.endings.refusals == ["AdmissionDeniedError"]
    assert bench.in_flight == 0


@MODES
async def test_client_that_leaves_during_a_hold_leaves_nothing_behind(bench, gate, messages, before, after):
    session = bench.session()
    _, held = hold(session, *messages)
    settling = asyncio.create_task(held.settle())
    await asyncio.sleep(0)  # one turn of the loop, in which it begins to wait
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    session.close()
    assert gate.held[0].cancelled()
    assert bench.endings.refusals == ["ClientGoneError"]
    assert bench.endings.causes == []
    assert (bench.in_flight, bench.served) == (0, 0)


async def test_streamed_body_passes_once_the_headers_were_answered(bench, gate):
    session = bench.session()
    _, held = hold(session, saying("STREAMED"))
    gate.held[0].set_result(None)
    await held.settle()
    session.resume()
    for end in (False, True):
        assert kinds(session.receive(request_body(b"piece", end=end))) == ["request_body"]


async def test_gateway_that_waits_without_saying_a_mode_may_be_held_too(bench, gate):
    session = bench.session()
    assert session.receive(request_headers()) == []
    (held,) = session.on_silence()
    assert isinstance(held, PendingRequest)
    gate.held[0].set_result(None)
    await held.settle()
    (answer,) = session.resume()
    assert headers_set(answer)[DESTINATION]


async def test_error_after_a_hold_fails_this_request_alone(bench, gate):
    session = bench.session()
    _, held = hold(session, saying("STREAMED"))
    bench.endings.routed = raise_zero_division  # a defect: no part of the program expects it
    gate.held[0].set_result(None)
    await held.settle()
    (answer,) = session.resume()
    assert answer.immediate_response.status.code == 500
    assert session.done


def raise_zero_division(*_: object) -> None:
    raise ZeroDivisionError


FULL = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins: [{type: queue-scorer}]
flowControl: {defaultRequestTTL: PATIENCE, noEndpointRequestTTL: 40s}
"""


def asked_seconds(ttl: str, first: ProcessingRequest) -> list[int]:
    """Return for how much time the gateway is asked as its request begins to wait."""
    bench = new_bench(FULL.replace("PATIENCE", ttl))
    bench.store.replace([])
    *before, held = bench.session().receive(first, request_body(BODY))
    assert isinstance(held, PendingRequest)
    return [each.override_message_timeout.seconds for each in before if each.HasField("override_message_timeout")]


@pytest.mark.parametrize(("ttl", "seconds"), [("60s", 110), ("100ms", 51), ("2h", 3600), ("0s", 3600)])
async def test_envoy_is_asked_for_as_much_time_as_a_request_may_wait(ttl, seconds):
    assert asked_seconds(ttl, saying("BUFFERED")) == [seconds]


async def test_gateway_that_has_no_limit_or_does_not_state_its_modes_is_asked_for_nothing():
    assert asked_seconds("60s", saying("FULL_DUPLEX_STREAMED")) == []
    assert asked_seconds("60s", request_headers()) == []
