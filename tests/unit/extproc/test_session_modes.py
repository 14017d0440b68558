# SPDX-License-Identifier: Apache-2.0
"""Answers in each body mode."""

import json

import pytest

from epp.extproc.exchange import GatewayTraits, ProtocolError
from epp.extproc.wire import HttpHeaders, ProcessingRequest
from epp.framework.snapshot import SERVED
from epp.routing.director import Cause
from tests.support.exchanges import (
    BODY,
    Bench,
    Exchange,
    common,
    header_map,
    headers_set,
    in_modes,
    kinds,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
    served_by,
)

DESTINATION = "x-gateway-destination-endpoint"
REWRITE = {"x-llm-d-model-name-rewrite": "other"}


def saying(request_mode: str, response_mode: str = "NONE", path: str = "/v1/chat/completions", **headers: str):
    """The first message of a gateway that says its modes."""
    return in_modes(request_headers(path, **headers), request_mode, response_mode)


def routed(bench: Bench, response_mode: str, **headers: str) -> Exchange:
    return bench.routed(saying("FULL_DUPLEX_STREAMED", response_mode, **headers))


def changes_body(reply) -> bool:
    return common(reply).HasField("body_mutation")


def test_buffered_headers_are_let_wait_and_the_body_is_answered_with_the_destination(bench):
    session = bench.session()
    (first,) = session.receive(saying("BUFFERED"))
    assert kinds([first]) == ["request_headers"]
    assert not headers_set(first)
    (second,) = session.receive(request_body(BODY))
    assert kinds([second]) == ["request_body"]
    assert headers_set(second)[DESTINATION] == "10.0.0.1:8000"
    assert second.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION].string_value == "10.0.0.1:8000"
    assert not changes_body(second)


def test_second_piece_of_a_buffered_body_is_a_protocol_error_and_the_books_balance(bench):
    session = bench.session()
    session.receive(saying("BUFFERED"), request_body(BODY, end=False))
    with pytest.raises(ProtocolError, match="has been answered"):
        session.receive(request_body(BODY))
    session.close()
    assert (bench.in_flight, bench.served) == (0, 1)


def test_buffered_body_is_replaced_only_where_the_model_is(bench):
    (reply,) = bench.session().receive(saying("BUFFERED", **REWRITE), request_body(BODY))
    assert common(reply).body_mutation.body == BODY.replace(b'"m"', b'"other"')


def test_trailers_in_place_of_a_buffered_body_are_a_request_without_one(bench):
    (reply,) = bench.session().receive(saying("BUFFERED"), request_trailers())
    assert reply.immediate_response.status.code == 400
    assert b"the request has no body" in reply.immediate_response.body
    assert bench.endings.refusals == ["BodyMissingError"]


def test_buffered_body_with_trailers_ends_with_them(bench):
    session = bench.session()
    (reply,) = session.receive(saying("BUFFERED"), request_body(BODY, end=False))
    assert headers_set(reply)[DESTINATION]
    assert kinds(session.receive(request_trailers())) == ["request_trailers"]


@pytest.mark.parametrize(
    ("path", "body", "sent"),
    [
        (
            "/v1/chat/completions",
            b'{"messages":[{"role":"user"}]}',
            b'{"model":"other","messages":[{"role":"user"}]}',
        ),
        ("/v1/completions", b' { "prompt" : "p" }', b' {"model":"other", "prompt" : "p" }'),
    ],
)
def test_model_that_only_the_gateway_names_is_added(bench, path, body, sent):
    session = bench.session()
    (reply,) = session.receive(saying("BUFFERED", "STREAMED", path, **REWRITE), request_body(body))
    assert common(reply).body_mutation.body == sent
    (reply,) = session.receive(response_headers(), response_body(b'{"model":"other"}', end=True))
    assert not changes_body(reply)  # there is no name to put back


def test_body_that_no_parser_reads_is_never_rewritten(bench):
    _, reply = bench.session().receive(request_headers("/anything", **REWRITE), request_body(b'{"model":"m"}'))
    assert common(reply).body_mutation.streamed_response.body == b'{"model":"m"}'


def test_partial_body_is_routed_by_what_is_there(bench):
    seen = []
    bench.endings.routed = lambda request, result, seconds: seen.append(request)
    long = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 5000}]}).encode()
    (reply,) = bench.session().receive(saying("BUFFERED_PARTIAL"), request_body(long[:3000], end=False))
    assert headers_set(reply)[DESTINATION]
    assert seen[0].model == "m"
    assert seen[0].body.prompt.startswith(b"user\nxxx")


def test_partial_body_that_says_too_little_is_routed_like_none_and_a_whole_one_is_refused(bench):
    body = b'{"messages":['
    (reply,) = bench.session().receive(saying("BUFFERED_PARTIAL"), request_body(body, end=False))
    assert headers_set(reply)[DESTINATION]
    (reply,) = bench.session().receive(saying("BUFFERED_PARTIAL"), request_body(body, end=True))
    assert reply.immediate_response.status.code == 400


def test_partial_body_that_is_nested_too_deeply_is_routed_by_its_headers(bench):
    body = b'{"model":"m","messages":' + b"[" * 400_000
    (reply,) = bench.session().receive(saying("BUFFERED_PARTIAL"), request_body(body, end=False))
    assert headers_set(reply)[DESTINATION]


def test_streamed_request_is_routed_by_its_headers_and_each_piece_passes(bench):
    session = bench.session()
    (first,) = session.receive(saying("STREAMED"))
    assert headers_set(first)[DESTINATION]
    for end in (False, True):
        (reply,) = session.receive(request_body(b"piece", end=end))
        assert (kinds([reply]), changes_body(reply)) == (["request_body"], False)


def test_request_whose_body_is_not_shown_is_routed_by_its_headers(bench):
    (reply,) = bench.session().receive(saying("NONE"))
    assert headers_set(reply)[DESTINATION]


@pytest.mark.parametrize("mode", ["STREAMED", "BUFFERED", "FULL_DUPLEX_STREAMED"])
def test_request_whose_headers_are_not_shown_cannot_be_answered(bench, mode):
    with pytest.raises(ProtocolError, match="request_header_mode SEND"):
        bench.session().receive(in_modes(request_body(BODY), mode))


def test_mode_that_is_not_known_is_refused_with_the_remedy(bench):
    with pytest.raises(ProtocolError, match="request_body_mode 5 is not supported"):
        bench.session().receive(saying("GRPC"))


def test_gateway_that_says_nothing_and_sends_its_body_is_in_full_duplex_and_waited_for_from_then_on(bench):
    traits = GatewayTraits()
    for silence_timeout in (0.1, None):  # nothing is known of it at first
        session = bench.session(traits=traits)
        session.receive(request_headers())
        assert session.silence_timeout == silence_timeout
        assert kinds(session.receive(request_body(BODY))) == ["request_headers", "request_body"]
        assert session.silence_timeout is None


def test_gateway_that_says_nothing_and_waits_is_answered_by_its_headers(bench):
    session = bench.session()
    session.receive(request_headers())
    (first,) = session.on_silence()
    assert headers_set(first)[DESTINATION]
    assert session.on_silence() == []
    (reply,) = session.receive(request_body(BODY))
    assert not changes_body(reply)
    (reply,) = session.receive(response_headers(), response_body(b"x", end=True))
    assert not changes_body(reply)  # a streamed piece would be refused


@pytest.mark.parametrize("mode", ["STREAMED", "BUFFERED", "BUFFERED_PARTIAL"])
def test_response_pieces_pass_without_being_sent_back(bench, mode):
    session = routed(bench, mode)
    (reply,) = session.receive(response_headers(), response_body(b"piece", end=True))
    assert (kinds([reply]), changes_body(reply)) == (["response_body"], False)
    assert session.done
    assert bench.in_flight == 0


def test_response_that_is_not_shown_and_never_came_was_cut(bench):
    routed(bench, "NONE").close()
    assert bench.endings.causes == [Cause.CLIENT_DISCONNECT]


def test_response_headers_that_are_not_sent_do_no_harm(bench):
    session = routed(bench, "STREAMED")
    session.receive(response_body(b"x", end=True))
    assert session.done


@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "STREAMED", "BUFFERED"])
@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_models_name_is_put_back_however_the_response_is_cut(bench, mode, cut):
    session = routed(bench, mode, **REWRITE)
    session.receive(response_headers())
    answer = b'{"id":"1","model": "other","choices":[{"text":"model: other"}]}'
    pieces = [answer] if mode == "BUFFERED" else [answer[:cut], answer[cut:]]
    received = b""
    for piece in pieces:
        for reply in session.receive(response_body(piece, end=piece is pieces[-1])):
            mutation = common(reply).body_mutation
            if not changes_body(reply):
                received += piece
            elif mutation.HasField("streamed_response"):
                received += mutation.streamed_response.body
            elif not mutation.clear_body:
                received += mutation.body
    assert received == answer.replace(b'"model": "other"', b'"model": "m"')


def test_length_of_a_response_whose_model_is_put_back_is_not_claimed(bench):
    (reply,) = routed(bench, "STREAMED", **REWRITE).receive(response_headers())
    assert list(common(reply).header_mutation.remove_headers) == ["content-length"]


def test_trailers_of_a_response_come_after_what_was_held_back(bench):
    session = routed(bench, "FULL_DUPLEX_STREAMED", **REWRITE)
    replies = session.receive(response_headers(), response_body(b'{"mod'), response_trailers())
    assert kinds(replies)[-1] == "response_trailers"
    held = b"".join(common(reply).body_mutation.streamed_response.body for reply in replies[:-1])
    assert b'{"mod'.endswith(held)


def test_control_headers_do_not_reach_the_model_server(bench):
    sent = {
        "x-llm-d-inference-fairness-id": "f",
        "x-gateway-model-name-rewrite": "other",
        "x-gateway-destination-endpoint": "6.6.6.6:6",
        "x-prefiller-host-port": "6.6.6.6:6",
        "x-encoder-hosts-ports": "6.6.6.6:6",
        "x-data-parallel-host-port": "6.6.6.6:6",
        "x-data-parallel-rank": "6",
        "x-kv-cache-source-host-port": "6.6.6.6:6",
        "x-slo-ttft-ms": "1",
        "x-epp-accelerator-class": "h100",
        "x-forwarded-for": "1.2.3.4",
    }
    reply, _ = bench.session().receive(request_headers(**sent), request_body(BODY))
    removed = set(common(reply).header_mutation.remove_headers)
    assert removed == set(sent) - {"x-gateway-destination-endpoint", "x-forwarded-for"}
    assert headers_set(reply)[DESTINATION] == "10.0.0.1:8000"


def test_request_id_is_made_where_there_is_none(bench):
    headers = HttpHeaders(headers=header_map({":path": "/v1/chat/completions"}))
    reply, _ = bench.session().receive(ProcessingRequest(request_headers=headers), request_body(BODY))
    assert len(headers_set(reply)["x-request-id"]) == 36


def test_body_over_the_limit_is_413_as_soon_as_it_is_known(bench):
    session = bench.session(max_body_bytes=100)
    assert session.receive(request_headers(), request_body(b"x" * 100, end=False)) == []
    (reply,) = session.receive(request_body(b"x", end=False))
    assert reply.immediate_response.status.code == 413
    assert session.done


SERVED_BY = "10.0.0.2:8001"


@pytest.mark.parametrize(
    ("messages", "served"),
    [
        ([served_by(response_headers(), SERVED_BY), response_body(b"", end=True)], [0, 0, 1, 0]),
        ([served_by(response_body(b"", end=True), SERVED_BY)], [0, 0, 1, 0]),
        ([response_body(b"first"), served_by(response_body(b"", end=True), SERVED_BY)], [1, 0, 0, 0]),
    ],
    ids=["with the headers", "with the first piece", "with a later one"],
)
def test_defect_25_endpoint_that_served_is_told_by_the_first_message_of_the_response_or_never(bench, messages, served):
    """A gateway that shows no response headers tells it with the body; it does not change its mind."""
    routed(bench, "FULL_DUPLEX_STREAMED").receive(*messages)
    assert bench.store.snapshot().column(SERVED)[:4].tolist() == served
