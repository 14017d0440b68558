# SPDX-License-Identifier: Apache-2.0
"""Rules of an exchange, without a socket."""

import pytest
from google.protobuf.json_format import MessageToDict

from epp.extproc.exchange import ProtocolError
from epp.extproc.wire import HeaderValueOption, ProcessingRequest
from epp.framework.accelerators.tag import AcceleratorTag, Cost
from epp.framework.datalayer import Report
from epp.framework.snapshot import ACCELERATOR
from epp.routing.director import Cause
from tests.support.exchanges import (
    BODY,
    common,
    headers_set,
    kinds,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    streamed,
    subset,
)

DESTINATION = "x-gateway-destination-endpoint"


def test_headers_are_held_until_the_body_is_in_then_destination_and_body_follow(bench):
    session = bench.session()
    assert session.receive(request_headers()) == []
    assert session.receive(request_body(BODY[:20], end=False)) == []
    replies = session.receive(request_body(BODY[20:]))
    assert kinds(replies) == ["request_headers", "request_body"]
    assert streamed(replies, "request_body") == (BODY, [True])
    assert headers_set(replies[0])[DESTINATION] == "10.0.0.1:8000"


def test_destination_is_the_same_in_header_and_metadata_and_overwrites_the_clients(bench):
    reply, _ = bench.session().receive(request_headers(), request_body(BODY))
    assert MessageToDict(reply.dynamic_metadata) == {"envoy.lb": {DESTINATION: headers_set(reply)[DESTINATION]}}
    actions = {option.append_action for option in common(reply).header_mutation.set_headers}
    assert actions == {HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD}
    assert common(reply).clear_route_cache


def test_end_of_body_may_come_as_an_empty_piece(bench):
    replies = bench.session().receive(request_headers(), request_body(BODY, end=False), request_body(b""))
    assert streamed(replies, "request_body") == (BODY, [True])


def test_request_trailers_end_the_body_and_follow_it(bench):
    replies = bench.session().receive(request_headers(), request_body(BODY, end=False), request_trailers())
    assert kinds(replies) == ["request_headers", "request_body", "request_trailers"]
    assert streamed(replies, "request_body") == (BODY, [False])  # the trailers are the end


@pytest.mark.parametrize("address", ["10.0.0.2:8001", "[fd00::3]:8000"])
def test_request_of_headers_alone_is_scheduled_like_any_other(bench, address):
    message = request_headers("/v1/models", end=True)
    message.metadata_context.CopyFrom(subset(address))
    (reply,) = bench.session().receive(message)
    assert headers_set(reply)[DESTINATION] == address


@pytest.mark.parametrize("as_string", [False, True])
@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (["10.0.0.2:8001"], {"10.0.0.2:8001"}),
        (["10.0.0.2"], {"10.0.0.2:8000", "10.0.0.2:8001"}),
        (["10.0.0.1:8000", "10.0.0.2:8001"], {"10.0.0.1:8000", "10.0.0.2:8001"}),
        (["[fd00:0:0::3]:8000"], {"[fd00::3]:8000"}),
        (["fd00::3"], {"[fd00::3]:8000"}),
        (["10.9.9.9:1", "10.0.0.1:8000"], {"10.0.0.1:8000"}),
    ],
)
def test_gie_15_pick_comes_from_the_subset(bench, hint, expected, as_string):
    picked = set()
    for number in range(6):  # of prompts without a common prefix, which would go to one endpoint
        message = request_headers("/v1/completions")
        message.metadata_context.CopyFrom(subset(*hint, as_string=as_string))
        reply, _ = bench.session().receive(message, request_body(b'{"model":"m","prompt":"%d"}' % number))
        picked.add(headers_set(reply)[DESTINATION])
    assert picked == expected


def test_request_for_a_cached_prompt_is_refused_with_412(bench):
    (reply,) = bench.session().receive(request_headers(prefer="if-available"), request_body(BODY))
    assert reply.immediate_response.status.code == 412
    assert b"no model server holds the KV cache of this prompt" in reply.immediate_response.body


def test_subset_may_come_with_the_body(bench):
    message = request_body(BODY)
    message.metadata_context.CopyFrom(subset("10.0.0.2:8001"))
    reply, _ = bench.session().receive(request_headers(), message)
    assert headers_set(reply)[DESTINATION] == "10.0.0.2:8001"


@pytest.mark.parametrize("hint", [[], ["10.9.9.9:1"], ["10.0.0.1:9999"], ["nonsense"]])
def test_gie_15_subset_without_anybody_is_503(bench, hint):
    message = request_headers("/v1/models", end=True)
    message.metadata_context.CopyFrom(subset(*hint))
    (reply,) = bench.session().receive(message)
    refusal = reply.immediate_response
    assert refusal.status.code == 503
    reasons = [o.header.raw_value for o in refusal.headers.set_headers if o.header.key.endswith("dropped-reason")]
    assert reasons == [b"rejected-no-endpoints"]


def test_refusal_ends_the_session(bench):
    session = bench.session()
    (reply,) = session.receive(request_headers(), request_body(b"{"))
    assert reply.immediate_response.status.code == 400
    assert b'"message":"the request body is not valid JSON: ' in reply.immediate_response.body
    assert session.done
    assert bench.endings.refusals == ["MalformedBodyError"]
    assert bench.in_flight == 0


def emitted(bench):
    """Return the metadata beside the destination, without the name that all keys begin with."""
    reply, _ = bench.session(emit_scores=True).receive(request_headers(), request_body(BODY))
    metadata = MessageToDict(reply.dynamic_metadata)["envoy.lb"]
    return {key.removeprefix(f"{DESTINATION}-"): value for key, value in metadata.items() if key != DESTINATION}


def test_scores_are_emitted_on_demand(bench):
    found = emitted(bench)
    assert set(found["scores"]) == {"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.2:8001", "[fd00::3]:8000"}
    assert found["reason"].startswith("default: ")
    assert found.keys() == {"scores", "reason"}  # accelerator and price are not known


def test_gie_18_accelerator_and_price_of_the_pick_are_emitted_with_the_scores(bench):
    tag = AcceleratorTag(model="h100", classes=("fast",), count=2, cost=Cost(per_hour=3.0))
    for endpoint in bench.store.endpoints:
        bench.store.tag(endpoint, Report(attributes={ACCELERATOR: tag}))
    found = emitted(bench)
    assert (found["accelerator"], found["cost-per-hour"]) == ("fast", 6.0)  # two devices
    assert found["reason"].endswith("on fast")


def test_response_is_let_through_piece_by_piece_and_marked(bench):
    session = bench.routed()
    (reply,) = session.receive(response_headers())
    assert headers_set(reply) == {"x-went-into-resp-headers": "true"}
    assert streamed(session.receive(response_body(b"one")), "response_body") == (b"one", [False])
    assert (session.done, bench.in_flight) == (False, 1)
    assert streamed(session.receive(response_body(b"", end=True)), "response_body") == (b"", [True])
    assert session.done
    session.close()
    assert bench.endings.causes == [Cause.NATURAL]
    assert (bench.in_flight, bench.served) == (0, 1)


def test_response_trailers_end_the_exchange(bench):
    session = bench.routed()
    replies = session.receive(response_headers(), response_body(b"x"), response_trailers())
    assert kinds(replies) == ["response_trailers"]
    assert session.done
    assert bench.endings.causes == [Cause.NATURAL]


def test_response_of_headers_alone_ends_the_exchange(bench):
    session = bench.routed()
    session.receive(response_headers("204", end=True))
    assert session.done
    assert (bench.in_flight, bench.served) == (0, 1)


@pytest.mark.parametrize("steps", range(5))
def test_exchange_cut_anywhere_leaves_nothing_in_flight(bench, steps):
    messages = [request_headers(), request_body(BODY), response_headers(), response_body(b"x")]
    session = bench.session()
    for message in messages[:steps]:
        session.receive(message)
    session.close()
    assert bench.in_flight == 0
    assert bench.endings.causes == ([Cause.CLIENT_DISCONNECT] if steps > 1 else [])


def test_gateways_own_answer_before_the_request_is_in_passes(bench):
    """Envoy answers by itself, when a client's body takes too long say, and shows that answer to the picker."""
    session = bench.session()
    replies = session.receive(request_headers(), request_body(b"{", end=False), response_headers("408"))
    assert kinds(replies) == ["response_headers"]
    assert kinds(session.receive(response_body(b"timeout", end=True))) == ["response_body"]
    assert session.done


@pytest.mark.parametrize(
    "messages",
    [
        [request_body(BODY)],
        [request_headers(), request_headers()],
        [request_headers(), request_body(BODY), request_body(BODY)],
        [request_headers(end=True), request_body(BODY)],
        [request_headers(), request_body(BODY), response_headers(), response_headers()],
        [request_headers(), request_body(BODY), response_trailers(), response_body(b"x")],
        [ProcessingRequest()],
    ],
)
def test_messages_out_of_order_are_a_protocol_error(bench, messages):
    session = bench.session()
    *in_order, last = messages
    for message in in_order:
        session.receive(message)
    with pytest.raises(ProtocolError):
        session.receive(last)
    session.close()
    assert bench.in_flight == 0


def test_new_header_name_wins_over_the_deprecated_one(bench):
    seen = []
    bench.endings.routed = lambda request, result, seconds: seen.append(request.fairness_id)
    old = {"x-gateway-inference-fairness-id": "old"}
    for extra in ({"x-llm-d-inference-fairness-id": "new", **old}, old, {}):
        bench.routed(request_headers(**extra))
    assert seen == ["new", "old", "default-flow"]
