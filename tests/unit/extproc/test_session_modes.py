# SPDX-License-Identifier: Apache-2.0
"""How each body mode is answered."""

import json

import pytest

from epp.extproc.exchange import GatewayTraits, ProtocolError
from epp.extproc.wire import ProcessingRequest, ProcessingResponse, ProtocolConfiguration
from epp.framework.snapshot import SERVED
from epp.routing.director import Cause
from tests.support.exchanges import (
    BODY,
    Bench,
    header_map,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)

DESTINATION = "x-gateway-destination-endpoint"
REWRITE = {"x-llm-d-model-name-rewrite": "other"}


def saying(message: ProcessingRequest, request_mode: str, response_mode: str = "NONE") -> ProcessingRequest:
    """The first message of a gateway that says its modes."""
    message.protocol_config.CopyFrom(
        ProtocolConfiguration(request_body_mode=request_mode, response_body_mode=response_mode)
    )
    return message


def kinds(replies: list[ProcessingResponse]) -> list[str | None]:
    return [reply.WhichOneof("response") for reply in replies]


def common(reply: ProcessingResponse):
    return getattr(reply, reply.WhichOneof("response")).response


def set_in(reply: ProcessingResponse) -> dict[str, str]:
    return {o.header.key: o.header.raw_value.decode() for o in common(reply).header_mutation.set_headers}


def routed(bench: Bench, response_mode: str, **headers: str):
    session = bench.session()
    session.receive(saying(request_headers(**headers), "FULL_DUPLEX_STREAMED", response_mode))
    session.receive(request_body(BODY))
    return session


def test_buffered_headers_are_let_wait_and_the_body_is_answered_with_the_destination(bench):
    session = bench.session()
    (first,) = session.receive(saying(request_headers(), "BUFFERED"))
    assert kinds([first]) == ["request_headers"]
    assert not common(first).header_mutation.set_headers
    (second,) = session.receive(request_body(BODY))
    assert kinds([second]) == ["request_body"]
    assert set_in(second)[DESTINATION] == "10.0.0.1:8000"
    assert second.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION].string_value == "10.0.0.1:8000"
    assert not common(second).HasField("body_mutation")  # the body stays as it is


def test_second_piece_of_a_buffered_body_is_a_protocol_error_and_the_books_balance(bench):
    session = bench.session()
    session.receive(saying(request_headers(), "BUFFERED"))
    session.receive(request_body(BODY, end=False))
    with pytest.raises(ProtocolError, match="has been answered"):
        session.receive(request_body(BODY))
    session.close()
    assert (bench.in_flight, bench.served) == (0, 1)


def test_buffered_body_is_replaced_only_where_the_model_is(bench):
    session = bench.session()
    session.receive(saying(request_headers(**REWRITE), "BUFFERED"))
    (reply,) = session.receive(request_body(BODY))
    assert common(reply).body_mutation.body == BODY.replace(b'"m"', b'"other"')


def test_trailers_in_place_of_a_buffered_body_are_a_request_without_one(bench):
    session = bench.session()
    session.receive(saying(request_headers(), "BUFFERED"))
    (reply,) = session.receive(request_trailers())
    assert reply.immediate_response.status.code == 400
    assert b"the request has no body" in reply.immediate_response.body
    assert bench.endings.refusals == ["BodyMissingError"]


def test_buffered_body_with_trailers_ends_with_them(bench):
    session = bench.session()
    session.receive(saying(request_headers(), "BUFFERED"))
    (reply,) = session.receive(request_body(BODY, end=False))
    assert set_in(reply)[DESTINATION]
    assert kinds(session.receive(request_trailers())) == ["request_trailers"]


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b'{"messages":[{"role":"user"}]}', b'{"model":"other","messages":[{"role":"user"}]}'),
        (b' { "prompt" : "p" }', b' {"model":"other", "prompt" : "p" }'),
    ],
)
def test_model_that_only_the_gateway_names_is_added(bench, body, sent):
    path = "/v1/chat/completions" if b"messages" in body else "/v1/completions"
    session = bench.session()
    session.receive(saying(request_headers(path, **REWRITE), "BUFFERED", "STREAMED"))
    (reply,) = session.receive(request_body(body))
    assert common(reply).body_mutation.body == sent
    session.receive(response_headers())
    (reply,) = session.receive(response_body(b'{"model":"other"}', end=True))
    assert not common(reply).HasField("body_mutation")  # there is no name to put back


def test_model_that_nobody_names_is_400(bench):
    session = bench.session()
    session.receive(request_headers())
    (reply,) = session.receive(request_body(b'{"messages":[{"role":"user","content":"x"}]}'))
    assert b"the request names no model" in reply.immediate_response.body


def test_body_that_no_parser_reads_is_never_rewritten(bench):
    session = bench.session()
    session.receive(request_headers("/anything", **REWRITE))
    replies = session.receive(request_body(b'{"model":"m"}'))
    assert common(replies[1]).body_mutation.streamed_response.body == b'{"model":"m"}'


def test_partial_body_is_routed_by_what_is_there(bench):
    seen = []
    bench.endings.routed = lambda request, result, seconds: seen.append(request)  # type: ignore[method-assign]
    session = bench.session()
    session.receive(saying(request_headers(), "BUFFERED_PARTIAL"))
    long = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 5000}]}).encode()
    (reply,) = session.receive(request_body(long[:3000], end=False))
    assert set_in(reply)[DESTINATION]
    assert seen[0].model == "m"
    assert seen[0].body.prompt.startswith(b"user\nxxx")


def test_partial_body_that_says_too_little_is_routed_like_none(bench):
    session = bench.session()
    session.receive(saying(request_headers(), "BUFFERED_PARTIAL"))
    (reply,) = session.receive(request_body(b'{"messages":[', end=False))
    assert set_in(reply)[DESTINATION]


def test_partial_body_that_is_whole_and_bad_is_refused(bench):
    session = bench.session()
    session.receive(saying(request_headers(), "BUFFERED_PARTIAL"))
    (reply,) = session.receive(request_body(b'{"messages":[', end=True))
    assert reply.immediate_response.status.code == 400


def test_streamed_request_is_routed_by_its_headers_and_each_piece_passes(bench):
    session = bench.session()
    (first,) = session.receive(saying(request_headers(), "STREAMED"))
    assert set_in(first)[DESTINATION]
    for end in (False, True):
        (reply,) = session.receive(request_body(b"piece", end=end))
        assert kinds([reply]) == ["request_body"]
        assert not common(reply).HasField("body_mutation")


def test_request_whose_body_is_not_shown_is_routed_by_its_headers(bench):
    (reply,) = bench.session().receive(saying(request_headers(), "NONE"))
    assert set_in(reply)[DESTINATION]


@pytest.mark.parametrize("mode", ["STREAMED", "BUFFERED", "FULL_DUPLEX_STREAMED"])
def test_request_whose_headers_are_not_shown_cannot_be_answered(bench, mode):
    with pytest.raises(ProtocolError, match="request_header_mode SEND"):
        bench.session().receive(saying(request_body(BODY), mode))


def test_mode_that_is_not_known_is_refused_with_the_remedy(bench):
    with pytest.raises(ProtocolError, match="request_body_mode 5 is not supported"):
        bench.session().receive(saying(request_headers(), "GRPC"))


def test_gateway_that_says_nothing_and_sends_its_body_is_in_full_duplex(bench):
    session = bench.session()
    session.receive(request_headers())
    assert session.silence_timeout is not None
    replies = session.receive(request_body(BODY))
    assert kinds(replies) == ["request_headers", "request_body"]
    assert session.silence_timeout is None


def test_late_body_of_a_gateway_that_never_waits_is_waited_for(bench):
    traits = GatewayTraits()
    first = bench.session(traits=traits)
    first.receive(request_headers())
    assert first.silence_timeout is not None  # nothing is known of it yet
    first.receive(request_body(BODY))
    second = bench.session(traits=traits)
    second.receive(request_headers())
    assert second.silence_timeout is None
    assert kinds(second.receive(request_body(BODY))) == ["request_headers", "request_body"]


def test_gateway_that_says_nothing_and_waits_is_answered_by_its_headers(bench):
    session = bench.session()
    session.receive(request_headers())
    (first,) = session.on_silence()
    assert set_in(first)[DESTINATION]
    assert session.on_silence() == []
    (reply,) = session.receive(request_body(BODY))
    assert not common(reply).HasField("body_mutation")
    session.receive(response_headers())
    (reply,) = session.receive(response_body(b"x", end=True))
    assert not common(reply).HasField("body_mutation")  # a streamed piece would be refused


@pytest.mark.parametrize("mode", ["STREAMED", "BUFFERED", "BUFFERED_PARTIAL"])
def test_response_pieces_pass_without_being_sent_back(bench, mode):
    session = routed(bench, mode)
    session.receive(response_headers())
    (reply,) = session.receive(response_body(b"piece", end=True))
    assert kinds([reply]) == ["response_body"]
    assert not common(reply).HasField("body_mutation")
    assert session.done
    assert bench.in_flight == 0


def test_response_that_is_not_shown_ends_with_the_stream(bench):
    session = routed(bench, "NONE")
    session.receive(response_headers())
    assert bench.in_flight == 1
    session.close()
    assert bench.endings.causes == [Cause.UNSEEN]
    assert bench.in_flight == 0


def test_response_that_is_not_shown_and_never_came_was_cut(bench):
    session = routed(bench, "NONE")
    session.close()
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
            if not common(reply).HasField("body_mutation"):
                received += piece
            elif mutation.HasField("streamed_response"):
                received += mutation.streamed_response.body
            elif not mutation.clear_body:
                received += mutation.body
    assert received == answer.replace(b'"model": "other"', b'"model": "m"')


def test_length_of_a_response_whose_model_is_put_back_is_not_claimed(bench):
    session = routed(bench, "STREAMED", **REWRITE)
    (reply,) = session.receive(response_headers())
    assert list(common(reply).header_mutation.remove_headers) == ["content-length"]


def test_trailers_of_a_response_come_after_what_was_held_back(bench):
    session = routed(bench, "FULL_DUPLEX_STREAMED", **REWRITE)
    session.receive(response_headers())
    session.receive(response_body(b'{"mod'))
    replies = session.receive(response_trailers())
    assert kinds(replies)[-1] == "response_trailers"
    held = b"".join(common(reply).body_mutation.streamed_response.body for reply in replies[:-1])
    assert b'{"mod'.endswith(held)


def test_control_headers_do_not_reach_the_model_server(bench):
    session = bench.session()
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
    session.receive(request_headers(**sent))
    reply = session.receive(request_body(BODY))[0]
    removed = set(common(reply).header_mutation.remove_headers)
    assert removed == set(sent) - {"x-gateway-destination-endpoint", "x-forwarded-for"}
    assert set_in(reply)[DESTINATION] == "10.0.0.1:8000"


def test_request_id_is_made_where_there_is_none(bench):
    session = bench.session()
    message = ProcessingRequest()
    message.request_headers.headers.CopyFrom(header_map({":path": "/v1/chat/completions"}))
    session.receive(message)
    assert len(set_in(session.receive(request_body(BODY))[0])["x-request-id"]) == 36


def test_body_over_the_limit_is_413_as_soon_as_it_is_known(bench):
    session = bench.session(max_body_bytes=100)
    session.receive(request_headers())
    assert session.receive(request_body(b"x" * 100, end=False)) == []
    (reply,) = session.receive(request_body(b"x", end=False))
    assert reply.immediate_response.status.code == 413
    assert session.done


def test_defect_25_endpoint_that_really_served_is_the_one_credited(bench):
    session = routed(bench, "FULL_DUPLEX_STREAMED")
    message = response_headers()
    message.metadata_context.filter_metadata["envoy.lb"].update(
        {"x-gateway-destination-endpoint-served": "10.0.0.2:8001"}
    )
    session.receive(message)
    session.receive(response_body(b"", end=True))
    assert bench.store.snapshot().column(SERVED)[:4].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("late", [False, True], ids=["with the first piece", "with a later one"])
def test_endpoint_that_served_is_told_by_the_first_message_of_the_response_or_never(bench, late):
    """A gateway that shows no response headers tells it with the body; it does not change its mind."""
    session = routed(bench, "FULL_DUPLEX_STREAMED")
    if late:
        session.receive(response_body(b"first"))
    message = response_body(b"", end=True)
    message.metadata_context.filter_metadata["envoy.lb"].update(
        {"x-gateway-destination-endpoint-served": "10.0.0.2:8001"}
    )
    session.receive(message)
    assert bench.store.snapshot().column(SERVED)[:4].tolist() == ([1, 0, 0, 0] if late else [0, 0, 1, 0])
