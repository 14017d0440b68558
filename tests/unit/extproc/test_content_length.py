# SPDX-License-Identifier: Apache-2.0
"""The content-length of forwarded request bodies and of responses."""

import pytest

from epp.extproc.wire import ProcessingRequest, ProcessingResponse
from epp.routing.director import Cause
from tests.support.exchanges import (
    BODY,
    Bench,
    common,
    headers_set,
    in_modes,
    kinds,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
)

LENGTH = "content-length"
REWRITE = {"x-llm-d-model-name-rewrite": "other"}
REWRITTEN = BODY.replace(b'"m"', b'"other"')
TRAILERS = "request_trailers"
ELSEWHERE = "/v2/models"
"""A path of no API that wants a body."""
WHOLE = ["FULL_DUPLEX_STREAMED", "BUFFERED", "BUFFERED_PARTIAL"]
"""Modes that show the whole body before its headers leave."""


def answers(
    bench: Bench, mode: str | None, *messages: ProcessingRequest, path: str = "/v1/chat/completions", **headers: str
) -> list[ProcessingResponse]:
    """What a gateway that says this mode is told, until the request is over."""
    first = request_headers(path, **{LENGTH: str(len(BODY)), **headers})
    if mode is not None:
        in_modes(first, mode)
    session = bench.session()
    replies = [reply for message in (first, *messages) for reply in session.receive(message)]
    session.close()
    return replies


def told(replies: list[ProcessingResponse]) -> tuple[str | None, bool]:
    """The length set, and whether the client's own is removed."""
    answered = [reply for reply in replies if not reply.HasField(TRAILERS)]
    lengths = [found[LENGTH] for reply in answered if LENGTH in (found := headers_set(reply))]
    assert len(lengths) <= 1
    removed = any(LENGTH in common(reply).header_mutation.remove_headers for reply in answered)
    return next(iter(lengths), None), removed


@pytest.mark.parametrize("mode", [None, *WHOLE])
@pytest.mark.parametrize(("headers", "sent"), [({}, BODY), (REWRITE, REWRITTEN)], ids=["unchanged", "rewritten"])
def test_whole_body_goes_with_its_own_length(bench, mode, headers, sent):
    assert told(answers(bench, mode, request_body(BODY), **headers)) == (str(len(sent)), False)


@pytest.mark.parametrize("mode", WHOLE)
def test_empty_body_has_length_0(bench, mode):
    assert told(answers(bench, mode, request_body(b""), path=ELSEWHERE)) == ("0", False)


@pytest.mark.parametrize("mode", WHOLE)
@pytest.mark.parametrize(("headers", "removed"), [({}, False), (REWRITE, True)], ids=["unchanged", "rewritten"])
def test_body_before_trailers_has_no_length_but_the_clients_where_that_is_right(bench, mode, headers, removed):
    """HTTP/1.1 has no trailers beside a content-length."""
    replies = answers(bench, mode, request_body(BODY, end=False), request_trailers(), **headers)
    assert told(replies) == (None, removed)


@pytest.mark.parametrize(("headers", "removed"), [({}, False), (REWRITE, True)], ids=["unchanged", "rewritten"])
def test_part_of_a_body_has_no_length_but_the_clients_where_that_is_right(bench, headers, removed):
    replies = answers(bench, "BUFFERED_PARTIAL", request_body(BODY[:-1], end=False), **headers)
    assert told(replies) == (None, removed)


@pytest.mark.parametrize("mode", ["NONE", "STREAMED"])
def test_length_of_a_body_that_comes_later_is_the_clients(bench, mode):
    assert told(answers(bench, mode, **REWRITE)) == (None, False)


def test_request_without_a_body_gets_no_length(bench):
    assert told(bench.session().receive(request_headers("/v1/models", end=True))) == (None, False)


def test_trailers_without_a_body_are_answered_without_a_body(bench):
    """Envoy takes a piece for none of its own as a violation of the protocol, and ends the request with 503."""
    replies = answers(bench, "FULL_DUPLEX_STREAMED", request_trailers(), path=ELSEWHERE)
    assert kinds(replies) == ["request_headers", TRAILERS]
    assert told(replies) == (None, False)


ANSWER = b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}'


@pytest.mark.parametrize(
    ("pieces", "cause", "completion_tokens"),
    [
        ((ANSWER,), Cause.NATURAL, 2),
        ((ANSWER[:9], ANSWER[9:]), Cause.NATURAL, 2),
        ((ANSWER, b""), Cause.NATURAL, 2),
        ((ANSWER[:9],), Cause.CLIENT_DISCONNECT, None),
    ],
    ids=["at once", "in pieces", "and more", "cut"],
)
def test_response_of_a_known_length_is_over_with_its_last_byte(bench, pieces, cause, completion_tokens):
    """A client that has it all may close its connection, and the gateway the stream, before its end was shown."""
    ends = []
    bench.endings.completed = lambda routing, cause: ends.append((cause, routing.usage))
    session = bench.routed()
    session.receive(response_headers(**{LENGTH: str(len(ANSWER))}), *map(response_body, pieces))
    session.close(Cause.CLIENT_DISCONNECT)
    ((ended_by, usage),) = ends
    assert ended_by is cause
    assert (usage and usage.completion_tokens) == completion_tokens
