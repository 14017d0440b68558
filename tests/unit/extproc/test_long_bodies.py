# SPDX-License-Identifier: Apache-2.0
"""Long request bodies are read, changed and returned in pieces that fit a message."""

from itertools import pairwise

import pytest

from epp.extproc.replies import PIECE_BYTES
from epp.extproc.wire import ProcessingRequest, ProcessingResponse
from epp.routing.bodies.model_member import with_model
from epp.routing.director import PoolPolicies, Rewrite
from tests.support.exchanges import (
    Bench,
    common,
    headers_set,
    in_modes,
    request_body,
    request_headers,
    request_trailers,
    streamed,
)

SIZE = 5_000_000
TEXT = b"hello " * (SIZE // 6)
NAMED = b'{"model":"m","prompt":"%b"}' % TEXT
THRICE = b'{"model":"m","model":"m","prompt":"%b","model":"m"}' % TEXT
REWRITING = PoolPolicies(generic=Rewrite("all", generic=True, models=("other",), weights=(1,)))


@pytest.fixture
def rewriting(bench) -> Bench:
    bench.director.use_policies(REWRITING)
    return bench


def messages(mode: str, body: bytes, *, trailers: bool = False) -> list[ProcessingRequest]:
    first = in_modes(request_headers("/v1/completions"), mode)
    found = [first, request_body(body, end=not trailers)]
    return [*found, request_trailers()] if trailers else found


def answers(bench: Bench, sent: list[ProcessingRequest]) -> list[ProcessingResponse]:
    """Send an exchange's messages; return the answers to the last one."""
    found = bench.session().receive(*sent)
    for each in found:
        if each.HasField("request_body"):
            assert len(common(each).body_mutation.streamed_response.body) <= PIECE_BYTES
    return found


@pytest.mark.parametrize("trailers", [False, True])
def test_body_goes_back_as_it_is(bench, trailers):
    first, *rest = answers(bench, messages("FULL_DUPLEX_STREAMED", NAMED, trailers=trailers))
    assert headers_set(first).get("content-length") == (None if trailers else str(len(NAMED)))
    body, ends = streamed(rest, "request_body")
    assert body == NAMED
    assert ends == [False] * (len(ends) - 1) + [not trailers]


@pytest.mark.parametrize("cuts", [(), (1,), (16_384,), (2_000_000, 2_000_001), (SIZE // 2, SIZE // 2 + 4097, SIZE - 5)])
def test_body_goes_back_with_another_model_however_it_came(rewriting, cuts):
    start, _ = messages("FULL_DUPLEX_STREAMED", NAMED)
    pieces = [NAMED[start:end] for start, end in pairwise([0, *cuts, len(NAMED)])]
    first, *rest = answers(rewriting, [start, *(request_body(piece, end=piece is pieces[-1]) for piece in pieces)])
    changed = with_model(NAMED, "other")
    assert headers_set(first)["content-length"] == str(len(changed))
    assert streamed(rest, "request_body")[0] == changed


@pytest.mark.parametrize(
    ("ending", "place", "problem"),
    [
        (b",}", 1, "a key was expected after the comma"),
        (b"", 0, "before it is complete"),
        (rb',"x":"\ud83d"}', 6, "half of a surrogate pair was found"),
        (b',"model":"\xff"}', 10, "is not UTF-8"),
    ],
)
def test_long_body_that_is_no_json_is_refused_with_the_place(bench, ending, place, problem):
    body = NAMED[:-1] + ending
    (answer,) = answers(bench, messages("FULL_DUPLEX_STREAMED", body))
    assert answer.immediate_response.status.code == 400
    told = answer.immediate_response.body.decode()
    assert problem in told
    assert f"(byte {len(NAMED) - 1 + place})" in told


def test_body_with_too_many_models_is_refused_as_a_short_one(rewriting):
    (answer,) = answers(rewriting, messages("FULL_DUPLEX_STREAMED", THRICE))
    assert answer.immediate_response.status.code == 400
    assert b"more than twice" in answer.immediate_response.body
    assert rewriting.in_flight == 0
