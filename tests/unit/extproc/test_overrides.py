# SPDX-License-Identifier: Apache-2.0
"""Body modes of responses that the picker requests, and the causes of responses that end unseen."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.settings import ResponseUsage
from epp.extproc.wire import ProcessingMode, ProcessingRequest
from epp.routing.director import Cause
from tests.support.exchanges import (
    BODY,
    Bench,
    in_modes,
    kinds,
    new_bench,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
)

MODES = ["NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"]
AUTO, ALWAYS, NEVER = ResponseUsage
REWRITE = {"x-llm-d-model-name-rewrite": "other"}
STREAM = {"content-type": "text/event-stream"}
EVENTS = response_headers(**STREAM)
RATES = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: endpoint-rates-producer}, {type: queue-scorer}]
"""


def routed(bench: Bench, request_mode: str | None, response_mode: str = "NONE", *, rewrite: bool = False, **options):
    """A session whose request has gone to its endpoint."""
    session = bench.session(**options)
    first = request_headers(**REWRITE if rewrite else {})
    session.receive(first if request_mode is None else in_modes(first, request_mode, response_mode))
    if request_mode != "NONE":
        session.receive(request_body(BODY))
    return session


def asked_for(session, message: ProcessingRequest | None = None) -> str | None:
    """The mode that the answer to the response's headers asks for."""
    (reply,) = session.receive(message or response_headers())
    assert reply.HasField("response_headers")
    if not reply.HasField("mode_override"):
        return None
    override = reply.mode_override
    assert (override.response_header_mode, override.response_trailer_mode) == (ProcessingMode.SEND, ProcessingMode.SEND)
    return MODES[override.response_body_mode]


@pytest.mark.parametrize(
    ("response_mode", "usage", "rewrite", "asks"),
    [
        ("NONE", AUTO, False, None),
        ("NONE", NEVER, False, None),
        ("NONE", ALWAYS, False, "STREAMED"),
        ("NONE", NEVER, True, "STREAMED"),
        ("STREAMED", AUTO, False, None),
        ("STREAMED", ALWAYS, False, None),
        ("STREAMED", NEVER, False, "NONE"),
        ("BUFFERED", NEVER, False, "NONE"),
        ("BUFFERED_PARTIAL", NEVER, False, "NONE"),
        ("STREAMED", NEVER, True, None),
        ("FULL_DUPLEX_STREAMED", NEVER, False, None),
    ],
)
def test_response_is_shown_where_it_is_read_and_only_there(bench, response_mode, usage, rewrite, asks):
    session = routed(bench, "BUFFERED", response_mode, rewrite=rewrite, response_usage=usage)
    assert asked_for(session) == asks


def test_request_mode_stays_as_it_was(bench):
    session = routed(bench, "BUFFERED_PARTIAL", "STREAMED", response_usage=NEVER)
    (reply,) = session.receive(response_headers())
    assert reply.mode_override.request_body_mode == 3


@pytest.mark.parametrize("request_mode", ["FULL_DUPLEX_STREAMED", None])
def test_gateway_that_would_not_listen_is_asked_for_nothing(bench, request_mode):
    assert asked_for(routed(bench, request_mode, "STREAMED", response_usage=NEVER)) is None


def test_response_without_a_body_is_not_asked_for(bench):
    assert asked_for(routed(bench, "BUFFERED", response_usage=ALWAYS), response_headers(end=True)) is None


def test_response_to_a_request_that_no_parser_counts_tokens_for_is_declined(bench):
    first = in_modes(request_headers("/v1/messages/count_tokens"), "BUFFERED", "STREAMED")
    assert asked_for(bench.routed(first)) == "NONE"


def test_plugin_that_times_streams_gets_them_alone():
    assert asked_for(routed(new_bench(RATES), "BUFFERED", response_usage=NEVER), EVENTS) == "STREAMED"
    assert asked_for(routed(new_bench(RATES), "BUFFERED", response_usage=NEVER)) is None
    settled = RATES.replace("endpoint-rates-producer}", "endpoint-rates-producer, parameters: {learn: false}}")
    assert asked_for(routed(new_bench(settled), "BUFFERED", response_usage=NEVER), EVENTS) is None


def test_plugin_that_reads_prompts_in_flight_gets_streams_alone():
    config = RATES.replace("endpoint-rates-producer", "prefix-cache-affinity-filter")
    assert asked_for(routed(new_bench(config), "BUFFERED"), EVENTS) == "STREAMED"
    assert (
        asked_for(routed(new_bench(config), "BUFFERED"), response_headers(**{"content-type": "application/json"}))
        is None
    )


def test_gateway_s_own_mode_holds_where_a_wish_is_not_granted(bench):
    session = routed(bench, "BUFFERED", "STREAMED", response_usage=NEVER)
    assert asked_for(session) == "NONE"
    for last in (False, True):
        (reply,) = session.receive(response_body(b"piece", end=last))
        assert reply.HasField("response_body")
        assert not reply.response_body.response.HasField("body_mutation")
    assert session.done


def test_name_of_a_rewritten_model_is_put_back_where_the_response_is_granted(bench):
    session = routed(bench, "BUFFERED", rewrite=True)
    assert asked_for(session) == "STREAMED"
    (reply,) = session.receive(response_body(b'{"model":"other"}', end=True))
    assert reply.response_body.response.body_mutation.body == b'{"model":"m"}'


def test_first_byte_of_a_stream_that_is_not_shown_is_unknown(bench):
    routings = []
    bench.endings.completed = lambda routing, cause: routings.append(routing)
    for headers in ({}, STREAM):
        session = routed(bench, "BUFFERED")
        session.receive(response_headers(**headers))
        session.close()
    whole, stream = routings
    assert whole.first_byte_at is not None
    assert stream.first_byte_at is None


@pytest.mark.parametrize("usage", ResponseUsage)
def test_response_of_which_only_headers_are_shown_may_have_been_complete_or_cut(bench, usage):
    session = routed(bench, "BUFFERED", response_usage=usage)
    session.receive(response_headers())
    assert bench.in_flight == 1
    session.close()
    assert bench.endings.causes == [Cause.UNSEEN]
    assert bench.in_flight == 0


def test_response_that_is_granted_and_not_seen_to_its_end_was_cut(bench):
    session = routed(bench, "BUFFERED", response_usage=ALWAYS)
    session.receive(response_headers(), response_body(b"x"))
    session.close()
    assert bench.endings.causes == [Cause.CLIENT_DISCONNECT]


@pytest.mark.parametrize("usage", ResponseUsage)
def test_trailers_tell_that_a_response_was_complete(bench, usage):
    session = routed(bench, "BUFFERED", response_usage=usage)
    assert kinds(session.receive(response_headers(), response_trailers())) == ["response_trailers"]
    assert session.done
    assert bench.endings.causes == [Cause.NATURAL]


@pytest.mark.parametrize("mode", ["STREAMED", "FULL_DUPLEX_STREAMED"])
def test_usage_of_a_response_that_ends_with_trailers_is_known(bench, mode):
    usages = []
    bench.endings.completed = lambda routing, cause: usages.append(routing.usage)
    body = b'{"model":"m","usage":{"prompt_tokens":7,"completion_tokens":3}}'
    routed(bench, mode, mode).receive(response_headers(), response_body(body), response_trailers())
    assert usages[0].completion_tokens == 3


def test_body_that_the_gateway_refused_by_itself_is_counted_as_too_large(bench):
    session = bench.session()
    session.receive(in_modes(request_headers(), "BUFFERED"), response_headers("413"))
    session.close()
    assert bench.endings.refusals == ["BodyTooLargeError"]


@given(st.integers(0, 2**32))
def test_books_balance_whatever_the_gateway_makes_of_what_it_is_asked(seed):
    """Gateways that heed wishes and that do not, trailers and none, and clients that stay and that leave."""
    random = Random(seed)
    bench = new_bench()
    for _ in range(10):
        request_mode, response_mode = random.choice(MODES), random.choice(MODES)
        heeds, trailers = random.random() < 0.5, random.random() < 0.5
        for _ in range(5):
            usage, rewrite = random.choice(list(ResponseUsage)), random.random() < 0.3
            session = routed(bench, request_mode, response_mode, rewrite=rewrite, response_usage=usage)
            (reply,) = session.receive(response_headers(**random.choice([{}, STREAM])))
            asked = reply.mode_override.response_body_mode if reply.HasField("mode_override") else None
            shown = MODES[asked] if heeds and asked is not None else response_mode
            cut = random.random() < 0.3
            pieces = random.randint(1, 3) if shown != "NONE" else 0
            for number in range(pieces):
                assert bench.in_flight == 1
                (answer,) = session.receive(response_body(b"{}", end=number == pieces - 1 and not cut and not trailers))
                assert answer.HasField("response_body")
            if trailers and not cut:
                assert bench.in_flight == 1
                session.receive(response_trailers())
            session.close()
            assert bench.in_flight == 0
            cause = bench.endings.causes.pop()
            if shown != "NONE" or (trailers and not cut):
                assert cause is (Cause.CLIENT_DISCONNECT if cut else Cause.NATURAL)
            else:
                assert cause is Cause.UNSEEN
