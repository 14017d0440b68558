# SPDX-License-Identifier: Apache-2.0
"""Every rule of the exchange, without a socket."""

import pytest
from google.protobuf.json_format import MessageToDict

from epp.extproc.exchange import ProtocolError
from epp.extproc.wire import HeaderValueOption, ProcessingRequest, ProcessingResponse
from epp.framework.accelerators.tag import AcceleratorTag, Cost
from epp.framework.datalayer import Report
from epp.framework.snapshot import ACCELERATOR
from epp.routing.director import Cause
from tests.support.exchanges import (
    BODY,
    Bench,
    Exchange,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    subset,
)

DESTINATION = "x-gateway-destination-endpoint"


def kinds(replies: list[ProcessingResponse]) -> list[str | None]:
    return [reply.WhichOneof("response") for reply in replies]


def set_headers(reply: ProcessingResponse) -> dict[str, str]:
    mutation = reply.request_headers.response.header_mutation
    return {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}


def pieces(replies: list[ProcessingResponse], kind: str) -> list[tuple[bytes, bool]]:
    bodies = [getattr(reply, kind) for reply in replies if reply.WhichOneof("response") == kind]
    streamed = [body.response.body_mutation.streamed_response for body in bodies]
    return [(piece.body, piece.end_of_stream) for piece in streamed]


def routed(bench: Bench, **options) -> Exchange:
    session = bench.session(**options)
    session.receive(request_headers())
    session.receive(request_body(BODY))
    return session


def test_headers_are_held_until_the_body_is_in_then_destination_and_body_follow(bench):
    session = bench.session()
    assert session.receive(request_headers()) == []
    assert session.receive(request_body(BODY[:20], end=False)) == []
    replies = session.receive(request_body(BODY[20:]))
    assert kinds(replies) == ["request_headers", "request_body"]
    assert pieces(replies, "request_body") == [(BODY, True)]
    assert set_headers(replies[0])[DESTINATION] == "10.0.0.1:8000"


def test_destination_is_the_same_in_header_and_metadata_and_overwrites_the_clients(bench):
    session = bench.session()
    session.receive(request_headers())
    reply = session.receive(request_body(BODY))[0]
    assert MessageToDict(reply.dynamic_metadata) == {"envoy.lb": {DESTINATION: set_headers(reply)[DESTINATION]}}
    actions = {option.append_action for option in reply.request_headers.response.header_mutation.set_headers}
    assert actions == {HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD}
    assert reply.request_headers.response.clear_route_cache


def test_end_of_body_may_come_as_an_empty_piece(bench):
    session = bench.session()
    session.receive(request_headers())
    session.receive(request_body(BODY, end=False))
    assert pieces(session.receive(request_body(b"")), "request_body") == [(BODY, True)]


def test_request_trailers_end_the_body_and_follow_it(bench):
    session = bench.session()
    session.receive(request_headers())
    session.receive(request_body(BODY, end=False))
    replies = session.receive(request_trailers())
    assert kinds(replies) == ["request_headers", "request_body", "request_trailers"]
    assert pieces(replies, "request_body") == [(BODY, False)]  # the trailers are the end


def test_request_of_headers_alone_is_scheduled_like_any_other(bench):
    message = request_headers("/v1/models", end=True)
    message.metadata_context.CopyFrom(subset("10.0.0.2:8001"))
    (reply,) = bench.session().receive(message)
    assert set_headers(reply)[DESTINATION] == "10.0.0.2:8001"


def test_ipv6_destination_is_in_brackets(bench):
    message = request_headers("/v1/models", end=True)
    message.metadata_context.CopyFrom(subset("[fd00::3]:8000"))
    (reply,) = bench.session().receive(message)
    assert set_headers(reply)[DESTINATION] == "[fd00::3]:8000"


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
        session = bench.session()
        message = request_headers("/v1/completions")
        message.metadata_context.CopyFrom(subset(*hint, as_string=as_string))
        session.receive(message)
        body = b'{"model":"m","prompt":"%d"}' % number
        picked.add(set_headers(session.receive(request_body(body))[0])[DESTINATION])
    assert picked == expected


def test_request_for_a_cached_prompt_is_refused_with_412(bench):
    session = bench.session()
    session.receive(request_headers(prefer="if-available"))
    (reply,) = session.receive(request_body(BODY))
    assert reply.immediate_response.status.code == 412
    assert b"no model server holds the KV cache of this prompt" in reply.immediate_response.body


def test_subset_may_come_with_the_body(bench):
    session = bench.session()
    session.receive(request_headers())
    message = request_body(BODY)
    message.metadata_context.CopyFrom(subset("10.0.0.2:8001"))
    assert set_headers(session.receive(message)[0])[DESTINATION] == "10.0.0.2:8001"


@pytest.mark.parametrize("hint", [[], ["10.9.9.9:1"], ["10.0.0.1:9999"], ["nonsense"]])
def test_gie_15_subset_without_anybody_is_503(bench, hint):
    message = request_headers("/v1/models", end=True)
    message.metadata_context.CopyFrom(subset(*hint))
    (reply,) = bench.session().receive(message)
    refusal = reply.immediate_response
    assert refusal.status.code == 503
    assert {o.header.key: o.header.raw_value for o in refusal.headers.set_headers}[
        "x-llm-d-request-dropped-reason"
    ] == b"rejected-no-endpoints"


def test_refusal_ends_the_session(bench):
    session = bench.session()
    session.receive(request_headers())
    (reply,) = session.receive(request_body(b"{"))
    assert reply.immediate_response.status.code == 400
    assert b'"message":"the request body is not valid JSON: ' in reply.immediate_response.body
    assert session.done
    assert bench.endings.refusals == ["MalformedBodyError"]
    assert bench.in_flight == 0


def test_scores_are_emitted_on_demand(bench):
    session = bench.session(emit_scores=True)
    session.receive(request_headers())
    lb = MessageToDict(session.receive(request_body(BODY))[0].dynamic_metadata)["envoy.lb"]
    scores = lb["x-gateway-destination-endpoint-scores"]
    assert set(scores) == {"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.2:8001", "[fd00::3]:8000"}
    assert lb["x-gateway-destination-endpoint-reason"].startswith("default: ")
    assert "x-gateway-destination-endpoint-accelerator" not in lb  # it is not known
    assert "x-gateway-destination-endpoint-cost-per-hour" not in lb


def test_gie_18_accelerator_and_price_of_the_pick_are_emitted_with_the_scores(bench):
    tag = AcceleratorTag(model="h100", classes=("fast",), count=2, cost=Cost(per_hour=3.0))
    for endpoint in bench.store.endpoints:
        bench.store.tag(endpoint, Report(attributes={ACCELERATOR: tag}))
    session = bench.session(emit_scores=True)
    session.receive(request_headers())
    lb = MessageToDict(session.receive(request_body(BODY))[0].dynamic_metadata)["envoy.lb"]
    assert lb["x-gateway-destination-endpoint-accelerator"] == "fast"
    assert lb["x-gateway-destination-endpoint-cost-per-hour"] == 6.0  # two devices
    assert lb["x-gateway-destination-endpoint-reason"].endswith("on fast")


def test_response_is_let_through_piece_by_piece_and_marked(bench):
    session = routed(bench)
    (reply,) = session.receive(response_headers())
    mutation = reply.response_headers.response.header_mutation
    assert {o.header.key: o.header.raw_value for o in mutation.set_headers} == {"x-went-into-resp-headers": b"true"}
    assert pieces(session.receive(response_body(b"one")), "response_body") == [(b"one", False)]
    assert not session.done
    assert pieces(session.receive(response_body(b"", end=True)), "response_body") == [(b"", True)]
    assert session.done
    assert bench.endings.causes == [Cause.NATURAL]


def test_response_trailers_end_the_exchange(bench):
    session = routed(bench)
    session.receive(response_headers())
    session.receive(response_body(b"x"))
    assert kinds(session.receive(response_trailers())) == ["response_trailers"]
    assert session.done
    assert bench.endings.causes == [Cause.NATURAL]


def test_response_of_headers_alone_ends_the_exchange(bench):
    session = routed(bench)
    session.receive(response_headers("204", end=True))
    assert session.done
    assert (bench.in_flight, bench.served) == (0, 1)


def test_prompt_tokens_are_credited_until_the_first_byte_and_the_request_until_the_end(bench):
    session = routed(bench)
    assert bench.in_flight == 1
    session.receive(response_headers())
    session.receive(response_body(b"x"))
    assert bench.in_flight == 1
    session.receive(response_body(b"", end=True))
    session.close()
    assert (bench.in_flight, bench.served) == (0, 1)
    assert bench.endings.causes == [Cause.NATURAL]


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
    session.receive(request_headers())
    session.receive(request_body(b"{", end=False))
    assert kinds(session.receive(response_headers("408"))) == ["response_headers"]
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
    bench.endings.routed = lambda request, result, seconds: seen.append(request.fairness_id)  # type: ignore[method-assign]
    for extra in (
        {"x-llm-d-inference-fairness-id": "new", "x-gateway-inference-fairness-id": "old"},
        {"x-gateway-inference-fairness-id": "old"},
        {},
    ):
        session = bench.session()
        session.receive(request_headers(**extra))
        session.receive(request_body(BODY))
    assert seen == ["new", "old", "default-flow"]
